// Communication: collectives of stages, what goes between meshes, and what links carry.

const COLLECTIVE_COLOURS = { all_reduce: "#0072b2", reduce_scatter: "#56b4e9", all_gather: "#e69f00", all_to_all: "#d55e00", collective_permute: "#cc79a7", permute: "#cc79a7" };

function linkName(link) {
  return link === "network" ? "between hosts" : link === "host" ? "within hosts" : link === null ? "" : link;
}

function drawCommunication() {
  const rows = data.collectives;
  const kinds = [...new Set(rows.map((r) => r.collective))];
  const colour = (kind) => COLLECTIVE_COLOURS[kind] || "#8c8c8c";
  const perStage = data.stages.map((_, stage) => ({
    label: `stage ${stage}`,
    parts: kinds.map((kind) => [kind.replaceAll("_", " "), rows.filter((r) => r.stage === stage && r.collective === kind).reduce((sum, r) => sum + r.seconds, 0), colour(kind)]),
  }));
  const inner = rows.length ? [
    el("h3", {}, "Within stages", el("span", { class: "quiet" }, " seconds of a step in collectives, as the cost model foresees them")),
    legend(kinds.map((kind) => [kind.replaceAll("_", " "), colour(kind)])),
    stackedBars(perStage.slice(0, 64), seconds, "Seconds in collectives by stage"),
    table([
      { name: "Stage", of: (r) => r.stage, node: (r) => stageChips([r.stage]) },
      { name: "Collective", of: (r) => r.collective, text: (r) => r.collective.replaceAll("_", " ") },
      { name: "Mesh axis", of: (r) => r.axis, text: (r) => (r.axis === null ? "several" : `${r.axis} ${r.size}`) },
      { name: "Links", of: (r) => r.link, text: (r) => linkName(r.link) },
      { name: "Times", of: (r) => r.count, text: (r) => count(r.count), number: true },
      { name: "Buffers a device", of: (r) => r.bytes, text: (r) => bytes(r.bytes), number: true },
      { name: "Time", of: (r) => r.seconds, text: (r) => seconds(r.seconds), number: true },
    ], rows, { caption: "Collectives in a step", most: 12, sort: [6, -1] })] : [];
  const between = data.crossings.length ? [
    el("h3", {}, "Between meshes", el("span", { class: "quiet" }, " what programs send in a step; the time is that of all transfers, if each had the links to itself")),
    table([
      { name: "From", of: (r) => r.source, node: (r) => stageChips(stagesOf[r.source]) },
      { name: "To", of: (r) => r.target, node: (r) => stageChips(stagesOf[r.target]) },
      { name: "How", of: (r) => r.strategies.join(", ") },
      { name: "Transfers", of: (r) => r.count, text: (r) => count(r.count), number: true },
      { name: "Bytes", of: (r) => r.bytes, text: (r) => bytes(r.bytes), number: true },
      { name: "Time", of: (r) => r.seconds, text: (r) => seconds(r.seconds), number: true },
    ], data.crossings, { caption: "Transfers in a step", most: 12, sort: [5, -1] })] : [];
  const links = data.links.length ? [
    el("h3", {}, "Links", el("span", { class: "quiet" }, " that transfers between meshes use, in the simulated step")),
    table([
      { name: "Links", of: (r) => r.kind.replaceAll("*", "n") },
      { name: "In use", of: (r) => r.count, text: (r) => count(r.count), number: true },
      { name: "Bandwidth", of: (r) => r.bandwidth, text: (r) => decimal(r.bandwidth, "B/s"), number: true },
      { name: "Bytes, all", of: (r) => r.bytes, text: (r) => bytes(r.bytes), number: true },
      { name: "Busiest", of: (r) => r.busiest },
      { name: "Its bytes", of: (r) => r.busiest_bytes, text: (r) => bytes(r.busiest_bytes), number: true },
      { name: "Its use", of: (r) => r.utilization, text: (r) => percent(r.utilization), number: true },
    ], data.links, { caption: "Links" })] : [];
  const dear = data.ops.length ? [
    el("h3", {}, "The dearest ops", el("span", { class: "quiet" }, " ops that are alike as one row, seconds of a step of all of them")),
    table([
      { name: "Op", of: (r) => r.op, node: (r) => [el("code", {}, r.op), el("div", { class: "quiet" }, r.where === r.op ? "" : r.where)] },
      { name: "Phase", of: (r) => r.phase },
      { name: "Split", of: (r) => r.specs, node: (r) => specNode(r.specs) },
      { name: "Stages", of: (r) => r.stages[0], text: (r) => ranges(r.stages) },
      { name: "Ops", of: (r) => r.count, text: (r) => count(r.count), number: true },
      { name: "Computing", of: (r) => r.compute_seconds, text: (r) => seconds(r.compute_seconds), number: true },
      { name: "Communicating", of: (r) => r.communication_seconds, text: (r) => seconds(r.communication_seconds), number: true },
    ], data.ops, { caption: "Ops by cost", most: 12 })] : [];
  const none = !inner.length && !between.length ? [el("p", {}, "The plan holds no communication.")] : [];
  section("communication", "Communication", null, ...inner, ...between, ...links, ...dear, ...none);
}
