function card(title, value, ...details) {
  return el("div", { class: "card" }, el("h3", {}, title), el("p", { class: "value" }, value),
    details.filter(Boolean).map((text) => el("p", { class: "detail" }, text)));
}

function bar(part, label) {
  const width = Math.max(0, Math.min(1, part)) * 100;
  return el("div", { class: "meter", role: "img", "aria-label": label },
    el("div", { style: { width: `${width}%` }, class: part > 1 ? "over" : part > 0.9 ? "near" : null }));
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
    el("div", { class: "cards" },
      card("Step", step === null ? UNKNOWN : seconds(step),
        h.predicted_seconds !== null ? "predicted by the search" : "simulated",
        h.simulated_seconds !== null && h.predicted_seconds !== null ? `${seconds(h.simulated_seconds)} simulated` : "",
        mean !== null ? `${seconds(mean)} real, mean of ${plural(real.length, "step")}` : ""),
      card("Throughput", h.examples && timed ? `${figures(h.examples / timed)} examples/s` : UNKNOWN,
        h.examples ? `${count(h.examples)} examples a step` : "The plan's batch arguments do not agree on a number of examples."),
      card("Computation", h.tflops_per_device === null ? UNKNOWN : `${figures(h.tflops_per_device)} TFLOP/s`,
        "of each device on average, recomputation included",
        utilization !== null ? el("span", {}, `${percent(utilization)} of ${figures(h.peak_tflops)} (${h.dtype} peak)`, bar(utilization, `${percent(utilization)} of the peak`)) : ""),
      card("Memory", bytes(h.peak_bytes), "on the fullest device",
        h.capacity_bytes && h.peak_bytes !== null ? el("span", {}, `${percent(h.peak_bytes / h.capacity_bytes)} of ${bytes(h.capacity_bytes)}`, bar(h.peak_bytes / h.capacity_bytes, "part of the device's memory")) : ""),
      card("Pipeline", h.schedule || UNKNOWN, plural(h.num_micro_batches, "micro-batch", "micro-batches"),
        h.bubble_fraction !== null ? `${percent(h.bubble_fraction)} of all devices' time is idle` : ""),
      card("Model", `${roughly(h.weights)} weights`, `${bytes(h.state_bytes)} of state, optimizer included`,
        h.model_flops !== null ? `${figures(h.model_flops)} FLOPs a step`.replace(/,/g, " ") : ""),
      card("Solver", h.solver || UNKNOWN,
        h.gap !== null ? (h.gap === 0 ? "no gap to the lower bound" : `largest gap ${percent(h.gap)}`) : "",
        h.search_seconds !== null ? `search took ${seconds(h.search_seconds)}` : "")),
    el("p", { class: "fine" }, `Compiler ${h.compiler || "unknown"}, report by alpa_mlir ${h.version}, plan format ${h.plan_version}`,
      h.fingerprint ? el("span", {}, ", step ", el("code", {}, h.fingerprint.slice(0, 19)), "…") : ", made for no traced step"),
  );
  sections.push(["summary", "Summary"]);
}
