function card(title, value, ...details) {
  return el("div", { class: "card" }, el("p", { class: "label" }, title), el("p", { class: "value" }, value),
    details.filter(Boolean).map((text) => el("p", { class: "detail" }, text)));
}

/** A bar that is full at 1; with a label it stands for itself, else for a text beside it. */
function bar(part, label = null) {
  const width = Math.max(0, Math.min(1, part)) * 100;
  return el("div", { class: "meter", role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true" },
    el("div", { style: { width: `${width}%` }, class: !label ? null : part > 1 ? "over" : part > 0.95 ? "near" : null }));
}

/** What several micro-batches compute, in a line; source lines where that is not the whole batch's. */
function microBatches() {
  const found = data.micro_batches;
  if (!found.exact) {
    const rows = found.estimates.map((place) => el("li", {}, el("code", {}, place)));
    return el("div", { class: "note" },
      "Results differ from those of jax.jit on the whole batch: as micro_batch_semantics asks, each micro-batch takes values of its own examples",
      rows.length ? el("span", {}, " at", el("ul", {}, rows)) : ".");
  }
  const number = data.header.num_micro_batches;
  const parts = ["sum", "join", "scale", "repeat"].map((what) => [found[`${what}s`], what])
    .filter(([many]) => many).map(([many, what]) => plural(many, what));
  return el("p", { class: "lead" }, "Results are those of jax.jit on the whole batch",
    parts.length ? `, over ${number} micro-batches with ${parts.join(", ")}.` : ".");
}

function drawSummary() {
  const h = data.header;
  const step = h.predicted_seconds ?? h.simulated_seconds;
  const real = h.real_seconds;
  const mean = real.length ? real.reduce((a, b) => a + b, 0) / real.length : null;
  const types = h.device_types.map(([name, number]) => `${count(number)} ${name}`).join(", ");
  const idle = h.devices - h.used_devices;
  const where = [
    plural(h.stages, "stage"), ` on ${plural(h.used_devices, "device")}`,
    h.cluster ? ` of ${h.cluster}` : "",
    h.hosts ? ` (${plural(h.hosts, "host")}, ${types})` : "",
    idle > 0 && !h.notes.length ? `, ${plural(idle, "device")} idle` : "",
  ].join("");
  const f = data.figures;
  const rate = f.rate === null ? null : `${amount(f.rate)} ${f.rate_of}/s`;
  const node = document.getElementById("summary");
  node.append(
    el("p", { class: "eyebrow" }, "Plan report"),
    el("h1", { id: "h-summary" }, h.name),
    h.strategy ? el("p", { class: "strategy" }, h.strategy) : "",
    el("p", { class: "lead" }, where),
    h.notes.map((text) => el("p", { class: "lead" }, `${text}.`)),
    microBatches(),
    el("div", { class: "cards" },
      card("Step", step === null ? UNKNOWN : seconds(step),
        h.predicted_seconds !== null ? "predicted by the search" : "simulated",
        h.simulated_seconds !== null && h.predicted_seconds !== null ? `${seconds(h.simulated_seconds)} simulated` : "",
        mean !== null ? `${seconds(mean)} real, mean of ${plural(real.length, "step")}` : ""),
      card("Throughput", rate || UNKNOWN,
        f.tokens ? `${count(f.tokens)} tokens a step` : f.rows ? `${count(f.rows)} rows a step` : "The plan's batch arguments do not agree on a number of examples.",
        rate && h.used_devices > 1 ? `${amount(f.rate / h.used_devices)} ${f.rate_of}/s on each device` : "",
        f.unit_price !== null ? `${f.unit} for ${count(Math.round(f.unit_price * 100) / 100)}` : ""),
      card("MFU", f.mfu === null ? UNKNOWN : percent(f.mfu),
        f.mfu === null ? "" : el("span", {}, `of ${figures(f.peak_tflops)} TFLOP/s (${f.dtype})`, bar(f.mfu, `${percent(f.mfu)} of the peak`)),
        f.hfu === null ? "" : `HFU ${percent(f.hfu)}, with what is computed again`,
        f.model_flops === null ? "" : `${decimal(f.model_flops, "FLOP")} a step`),
      card("Memory", f.needed_bytes === null ? UNKNOWN : `${f.is_compiled ? "" : "about "}${bytes(f.needed_bytes)}`,
        f.is_compiled ? `on the fullest device, as compiled; about ${bytes(f.foreseen_bytes)} were foreseen` : "on the fullest device, foreseen; what a compiler adds within its programs is an estimate",
        f.capacity_bytes && f.needed_bytes !== null ? el("span", {}, `${percent(f.needed_bytes / f.capacity_bytes)} of ${bytes(f.capacity_bytes)}`, bar(f.needed_bytes / f.capacity_bytes, "part of the device's memory")) : ""),
      card("Pipeline", h.schedule || "none", plural(h.num_micro_batches, "micro-batch", "micro-batches"),
        h.bubble_fraction !== null ? `${percent(h.bubble_fraction)} of all devices' time is spent waiting` : ""),
      card("Model", roughly(h.weights), "weights that the forward pass reads", `${bytes(h.state_bytes)} of state, optimizer included`),
      card("How far from the best", f.is_optimal ? "optimal" : f.gap === null ? UNKNOWN : `≤ ${percent(Math.max(1e-4, Math.ceil(f.gap * 1e4) / 1e4))}`,
        "each stage's shardings, for these costs",
        h.solver && !f.is_optimal && f.gap === null ? `solver: ${h.solver}` : "",
        f.published_error === null ? "no published run judges these costs" : `costs: median error ${percent(f.published_error)} on ${plural(f.published_runs, "published run")} of this preset`,
        h.search_seconds !== null ? `the search took ${seconds(h.search_seconds)}` : ""),
      card("Made by", h.compiler ? `alpa_mlir ${h.compiler}` : UNKNOWN, `report by ${h.version}, plan format ${h.plan_version}`,
        h.fingerprint ? el("span", { title: h.fingerprint }, "step ", el("code", {}, `${h.fingerprint.slice(0, 19)}…`)) : "for no traced step")),
  );
  sections.push(["summary", "Summary"]);
}
