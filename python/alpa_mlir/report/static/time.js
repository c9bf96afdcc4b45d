// Where the seconds of a step go, and how near stages come to the roofs of their devices.

const TIME_COLOURS = { products: "#0072b2", attention: "#56b4e9", "other ops": "#009e73", recomputation: "#f0e442", update: "#cc79a7", communication: "#d55e00", "host copies": "#e69f00", waiting: "#b8b8b8" };

/** Points on logarithmic axes below the two roofs: memory's, which rises, and the peak. */
function rooflineChart(points, peak, bandwidth) {
  const [width, height, left, bottom] = [560, 300, 74, 38];
  const ridge = peak / bandwidth;
  const xs = [...points.map((p) => p.intensity), ridge];
  const [low, high] = [Math.min(...xs) / 3, Math.max(...xs) * 3];
  const [least, top] = [Math.min(...points.map((p) => p.flops_per_second), low * bandwidth) / 2, peak * 2];
  const scale = (value, from, to, a, b) => a + (Math.log(value / from) / Math.log(to / from)) * (b - a);
  const x = (value) => scale(value, low, high, left, width - 12);
  const y = (value) => scale(value, least, top, height - bottom, 10);
  const powers = (from, to) => {
    const found = [];
    for (let p = Math.ceil(Math.log10(from)); p <= Math.log10(to); p++) found.push(10 ** p);
    return found;
  };
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "memory roofline", role: "img",
    "aria-label": `Roofline: ${points.map((p) => `stage ${p.stage} ${p.phase} ${decimal(p.flops_per_second, "FLOP/s")}`).slice(0, 16).join(", ")}` },
  powers(low, high).map((value) => [svg("line", { x1: x(value), x2: x(value), y1: 10, y2: height - bottom, class: "grid" }),
    svg("text", { x: x(value), y: height - bottom + 14, class: "tick middle" }, count(value))]),
  powers(least, top).map((value) => [svg("line", { x1: left, x2: width - 12, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: left - 5, y: y(value) + 4, class: "tick end" }, decimal(value, "FLOP/s"))]),
  svg("text", { x: (left + width) / 2, y: height - 6, class: "tick middle" }, "FLOPs for each byte of memory traffic"),
  svg("path", { d: `M ${x(low)} ${y(low * bandwidth)} L ${x(ridge)} ${y(peak)} H ${x(high)}`, class: "roof" }),
  points.map((p) => {
    const colour = stageColour(p.stage);
    const [px, py] = [x(p.intensity), y(p.flops_per_second)];
    const mark = p.phase === "forward" ? svg("circle", { cx: px, cy: py, r: 5, fill: colour, class: "mark" })
      : svg("rect", { x: px - 4.5, y: py - 4.5, width: 9, height: 9, fill: colour, class: "mark" });
    return withTip(mark, () => [`stage ${p.stage}, ${p.phase}`, `${decimal(p.flops_per_second, "FLOP/s")}, ${percent(p.flops_per_second / peak)} of the peak`, `${figures(p.intensity)} FLOPs for a byte`]);
  }));
}

function drawTime() {
  const f = data.figures;
  const rows = data.time.map((use) => ({
    label: use.mesh === null ? "all devices" : meshName(use.mesh),
    parts: data.time_parts.map((name, i) => [name, use.seconds[i], TIME_COLOURS[name]]),
  }));
  const used = data.time_parts.filter((_, i) => data.time.some((use) => use.seconds[i] > 0));
  const bars = rows.length ? [
    legend(used.map((name) => [name, TIME_COLOURS[name]])),
    stackedBars(data.meshes.length === 1 ? rows.slice(-1) : [rows[rows.length - 1], ...rows.slice(0, -1).slice(0, 64)], seconds, "Where the seconds of a step go"),
    el("details", { class: "more-table" }, el("summary", {}, "The same as a table"),
      table([
        { name: "Devices of", of: (r) => r.label },
        ...used.map((name) => ({ name, of: (r) => r.parts.find((p) => p[0] === name)[1], text: (r) => seconds(r.parts.find((p) => p[0] === name)[1]), number: true })),
      ], rows, { caption: "Seconds of a step", most: 40 }))] : [];
  const peak = f.peak_tflops && f.peak_tflops * 1e12;
  const roof = data.roofline.length && peak && f.bandwidth ? [
    el("h3", {}, "Roofline of the stages", el("span", { class: "quiet" }, ` of one device while it computes; the roofs are ${figures(f.peak_tflops)} TFLOP/s (${f.dtype}) and ${decimal(f.bandwidth, "B/s")}. Circles are forward runs, squares backward runs.`)),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Roofline of the stages" }, rooflineChart(data.roofline, peak, f.bandwidth))] : [];
  section("time", "Where the time goes",
    rows.length ? "Seconds of a step on a device: what its ops take, collectives that nothing hides, and waiting for other stages and transfers." : "The plan does not say what takes its time.",
    ...bars, ...roof);
}
