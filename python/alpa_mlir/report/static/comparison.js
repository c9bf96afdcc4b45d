// Other plans beside this one.

function drawComparison() {
  const node = document.getElementById("comparison");
  if (!data.compared.length) return node.remove();
  const h = data.header;
  const f = data.figures;
  const here = { name: "this plan", strategy: h.strategy, figures: f, stages: h.stages, num_micro_batches: h.num_micro_batches, schedule: h.schedule, devices: h.used_devices, bubble_fraction: h.bubble_fraction, reason: "" };
  const rows = [here, ...data.compared];
  const best = f.step_seconds;
  const of = (name) => (r) => (r.figures ? r.figures[name] : null);
  const figure = (name, text) => ({ of: of(name), text: (r) => (of(name)(r) === null ? "" : text(of(name)(r))), number: true });
  const most = Math.max(...rows.map((r) => of("step_seconds")(r) || 0));
  section("comparison", "Comparison",
    "Predictions for each plan, on its own cluster.",
    table([
      { name: "Plan", of: (r) => r.name, node: (r) => el("strong", {}, r.name) },
      { name: "Step", ...figure("step_seconds", seconds), text: (r) => (r.figures ? seconds(r.figures.step_seconds) : r.reason.split(":")[0]) },
      { name: "Time", of: of("step_seconds"), node: (r) => (r.figures ? el("span", { class: "ratio" }, bar(r.figures.step_seconds / most), r === here ? "" : r.reason || against(r.figures.step_seconds, best)) : "") },
      { name: `${f.rate_of[0].toUpperCase()}${f.rate_of.slice(1)}/s`, ...figure("rate", (v) => amount(v)) },
      { name: "MFU", ...figure("mfu", percent) },
      { name: "HFU", ...figure("hfu", percent) },
      { name: "Memory a device", ...figure("needed_bytes", bytes) },
      { name: "Waiting", of: (r) => r.bubble_fraction, text: (r) => (r.bubble_fraction === null ? "" : percent(r.bubble_fraction)), number: true },
      { name: "Devices", of: (r) => r.devices || null, text: (r) => (r.devices ? count(r.devices) : ""), number: true },
      { name: "Strategy", of: (r) => r.strategy || r.reason, class: "wide" },
    ], rows, { caption: "Plans side by side" }),
    ...data.compared.filter((other) => other.figures).map((other) => el("details", { class: "more-table" },
      el("summary", {}, other.changes.length ? `${plural(other.changes.length + other.more_changes, "difference")} from ${other.name}` : `${other.name} decides the same`),
      table([
        { name: "What", of: (r) => r[0], class: "wide" },
        { name: "This plan", of: (r) => r[1], text: (r) => r[1] ?? "–" },
        { name: other.name, of: (r) => r[2], text: (r) => r[2] ?? "–" },
      ], other.changes, { caption: `Differences from ${other.name}`, most: 30 }),
      other.more_changes ? el("p", { class: "note" }, `and ${plural(other.more_changes, "more difference")}`) : "")));
}
