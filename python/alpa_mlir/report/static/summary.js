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
    idle > 0 ? `, ${plural(idle, "device")} idle` : "",
  ].join("");
  const utilization = h.tflops_per_device !== null && h.peak_tflops ? h.tflops_per_device / h.peak_tflops : null;
  const timed = mean ?? h.simulated_seconds ?? step;
  const node = document.getElementById("summary");
  node.append(
    el("p", { class: "eyebrow" }, "Plan report"),
    el("h1", { id: "h-summary" }, h.name),
    el("p", { class: "lead" }, where),
    h.parallelism ? el("p", { class: "lead" }, `Parallelism: ${h.parallelism}.`) : "",
    microBatches(),
    el("div", { class: "cards" },
      card("Step", step === null ? UNKNOWN : seconds(step),
        h.predicted_seconds !== null ? "predicted by the search" : "simulated",
        h.simulated_seconds !== null && h.predicted_seconds !== null ? `${seconds(h.simulated_seconds)} simulated` : "",
        mean !== null ? `${seconds(mean)} real, mean of ${plural(real.length, "step")}` : ""),
      card("Throughput", h.examples && timed ? `${figures(h.examples / timed)}/s` : UNKNOWN,
        h.examples ? `examples; ${count(h.examples)} a step` : "The plan's batch arguments do not agree on a number of examples."),
      card("Computation", h.tflops_per_device === null ? UNKNOWN : `${figures(h.tflops_per_device)} TFLOP/s`,
        "of each device on average, recomputation included",
        utilization !== null ? el("span", {}, `${percent(utilization)} of ${figures(h.peak_tflops)} (${h.dtype} peak)`, bar(utilization, `${percent(utilization)} of the peak`)) : ""),
      card("Memory", bytes(h.peak_bytes), "on the fullest device",
        h.capacity_bytes && h.peak_bytes !== null ? el("span", {}, `${percent(h.peak_bytes / h.capacity_bytes)} of ${bytes(h.capacity_bytes)}`, bar(h.peak_bytes / h.capacity_bytes, "part of the device's memory")) : ""),
      card("Pipeline", h.schedule || UNKNOWN, plural(h.num_micro_batches, "micro-batch", "micro-batches"),
        h.bubble_fraction !== null ? `${percent(h.bubble_fraction)} of all devices' time is idle` : ""),
      card("Model", roughly(h.weights), "weights that the forward pass reads", `${bytes(h.state_bytes)} of state, optimizer included`,
        h.model_flops !== null ? `${decimal(h.model_flops, "FLOP")} a step` : ""),
      card("Solver", h.solver || UNKNOWN,
        h.gap !== null ? (h.gap === 0 ? "no gap to the lower bound" : `largest gap ${percent(h.gap)}`) : "",
        h.search_seconds !== null ? `the search took ${seconds(h.search_seconds)}` : ""),
      card("Made by", h.compiler ? `alpa_mlir ${h.compiler}` : UNKNOWN, `report by ${h.version}, plan format ${h.plan_version}`,
        h.fingerprint ? el("span", { title: h.fingerprint }, "step ", el("code", {}, `${h.fingerprint.slice(0, 19)}…`)) : "for no traced step")),
  );
  sections.push(["summary", "Summary"]);
}
