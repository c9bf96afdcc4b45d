// What else could have been, and what the solver proved.

/** How many times as long; what cannot be told apart is the same. */
function against(value, best) {
  if (value === null || best === null || !best) return "";
  return Math.abs(value / best - 1) < 5e-4 ? "the same" : `${(value / best).toFixed(value / best < 9.995 ? 2 : 0)} ×`;
}

function drawAlternatives() {
  const h = data.header;
  const best = h.predicted_seconds;
  const tried = data.candidates.length ? [
    el("h3", {}, "Candidates of the search"),
    table([
      { name: "Micro-batches", of: (r) => r.num_micro_batches, node: (r) => [r.chosen ? el("span", { class: "badge good" }, "taken") : "", ` ${count(r.num_micro_batches)}`], number: true },
      { name: "Rematerialized", of: (r) => r.remat },
      { name: "Schedule", of: (r) => (r.stages === 1 ? "" : r.schedule) },
      { name: "Stages", of: (r) => r.stages || null, text: (r) => r.stages || "", number: true },
      { name: "Step", of: (r) => r.seconds, text: (r) => (r.seconds === null ? "no plan" : `${r.exact ? "" : "about "}${seconds(r.seconds)}`), number: true },
      { name: "Against this plan", of: (r) => r.seconds, text: (r) => (r.chosen ? "" : against(r.seconds, best)), number: true },
      { name: "Measured", of: (r) => r.measured_seconds, text: (r) => (r.measured_seconds === null ? "" : seconds(r.measured_seconds)), number: true, optional: true },
      { name: "Memory a device", of: (r) => r.peak_bytes || null, text: (r) => (r.peak_bytes ? bytes(r.peak_bytes) : ""), number: true },
      { name: "Remark", of: (r) => r.reason, optional: true },
    ].filter((column) => !column.optional || data.candidates.some((row) => column.of(row))), data.candidates, { caption: "Candidates", most: 20 })] : [];
  const numbers = Object.fromEntries(data.search);
  const facts = [["possible_stages", "possible stages"], ["solved_stages", "stages solved"], ["reused_stages", "stages taken from others that are alike"], ["dp_seconds", "in the dynamic program"], ["search_seconds", "in all"]]
    .filter(([name]) => numbers[name] !== undefined)
    .map(([name, text]) => el("li", {}, el("strong", {}, name.endsWith("seconds") ? seconds(numbers[name]) : count(Math.round(numbers[name]))), ` ${text}`));
  const search = facts.length ? [el("h3", {}, "The search"), el("ul", { class: "facts" }, facts)] : [];
  const decisions = data.decisions.length ? [
    el("h3", {}, "Decisions and their runners-up", el("span", { class: "quiet" }, " what the step takes more, at most, if one of them falls otherwise, memory left out")),
    table([
      { name: "Op", of: (r) => r.op, node: (r) => [el("code", {}, r.op), el("div", { class: "quiet" }, r.where === r.op ? "" : r.where)] },
      { name: "Phase", of: (r) => r.phase },
      { name: "Taken", of: (r) => r.chosen, node: (r) => specNode(r.chosen) },
      { name: "Runner-up", of: (r) => r.runner_up, node: (r) => specNode(r.runner_up) },
      { name: "Alike", of: (r) => r.count, text: (r) => count(r.count), number: true },
      { name: "Choices", of: (r) => r.choices, text: (r) => count(r.choices), number: true },
      { name: "Taken costs", of: (r) => r.seconds, text: (r) => seconds(r.seconds), number: true },
      { name: "Otherwise", of: (r) => r.more_seconds, text: otherwise, class: "wide" },
    ], data.decisions, { caption: "Decisions", most: 12 })] : [];
  section("alternatives", "Alternatives", null, ...tried, ...search, ...decisions);
}

function drawCertificates() {
  const rows = data.certificates;
  section("certificates", "What the solver proved",
    rows.length ? "Each stage's shardings are the answer to an integer program. The bound is proven: no other choice of shardings for that stage can take less. A gap of zero is the best answer there is." : null,
    rows.length ? table([
      { name: "Stage", of: (r) => r.stage, node: (r) => stageChips([r.stage]) },
      { name: "Status", of: (r) => r.status, node: (r) => el("span", { class: `badge ${r.status === "optimal" ? "good" : "fair"}` }, r.status) },
      { name: "Objective", of: (r) => r.objective_seconds, text: (r) => seconds(r.objective_seconds), number: true },
      { name: "Lower bound", of: (r) => r.lower_bound_seconds, text: (r) => seconds(r.lower_bound_seconds), number: true },
      { name: "Gap", of: (r) => r.gap, text: (r) => (r.gap === 0 ? "0" : percent(r.gap)), number: true },
      { name: "Decisions", of: (r) => r.nodes, text: (r) => count(r.nodes), number: true },
      { name: "Choices", of: (r) => r.choices, text: (r) => count(r.choices), number: true },
      { name: "Time", of: (r) => r.seconds, text: (r) => (r.seconds ? seconds(r.seconds) : "not noted"), number: true },
    ], rows, { caption: "Certificates", most: 40 }) : "");
}
