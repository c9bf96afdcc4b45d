// Bytes on a device of each mesh over the step, against what it has.

const FAR = 4; // What devices have is not drawn where it is so many times what they hold.

function memoryChart(memory, mesh, most, end) {
  const [width, height, left, bottom] = [380, 128, 52, 18];
  const x = (time) => left + (time / end) * (width - left - 6);
  const y = (value) => height - bottom - (value / most) * (height - bottom - 10);
  let path = `M ${x(0)} ${y(memory.bytes[0] || 0)}`;
  memory.times.forEach((time, i) => {
    if (i) path += ` H ${x(time).toFixed(1)} V ${y(memory.bytes[i]).toFixed(1)}`;
  });
  path += ` H ${x(end).toFixed(1)}`;
  const area = `${path} V ${y(0)} H ${x(0)} Z`;
  const colour = meshColour(mesh);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "memory", role: "img",
    "aria-label": `${meshName(mesh)}: peak ${bytes(memory.peak_bytes)} of ${bytes(memory.capacity_bytes)}` },
  byteTicks(most).map((value) => [
    svg("line", { x1: left, x2: width - 6, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: left - 5, y: y(value) + 4, class: "tick end" }, bytes(value))]),
  svg("text", { x: left, y: height - 4, class: "tick" }, "0"),
  svg("text", { x: width - 6, y: height - 4, class: "tick end" }, seconds(end)),
  svg("path", { d: area, fill: colour, "fill-opacity": 0.3 }),
  svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": 1.4 }),
  memory.capacity_bytes && memory.capacity_bytes <= most ? svg("line", { x1: left, x2: width - 6, y1: y(memory.capacity_bytes), y2: y(memory.capacity_bytes), class: "limit" }) : "");
  const cursor = svg("line", { y1: 6, y2: height - bottom, class: "cursor", visibility: "hidden" });
  chart.append(cursor);
  chart.addEventListener("pointermove", (e) => {
    const box = chart.getBoundingClientRect();
    const at = ((e.clientX - box.left) / box.width) * width;
    const time = Math.max(0, Math.min(end, ((at - left) / (width - left - 6)) * end));
    const i = Math.max(0, after(memory.times, time) - 1);
    cursor.setAttribute("x1", x(time));
    cursor.setAttribute("x2", x(time));
    cursor.setAttribute("visibility", "visible");
    showTip(e.clientX, e.clientY, [meshName(mesh), `${bytes(memory.bytes[i])} at ${seconds(time)}`, `peak ${bytes(memory.peak_bytes)}`]);
  });
  chart.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
  const part = memory.capacity_bytes ? ` (${percent(memory.peak_bytes / memory.capacity_bytes)} of ${bytes(memory.capacity_bytes)})` : "";
  return el("figure", {}, el("figcaption", {}, chip(ranges(stagesOf[mesh]), colour), ` peak ${bytes(memory.peak_bytes)}${part}`,
    el("span", { class: "quiet" }, `, foreseen ${bytes(memory.predicted_bytes)}`)), chart);
}

function drawMemory() {
  const rows = data.memory;
  if (!rows.length) return section("memory", "Memory over time", null);
  const held = Math.max(...rows.map((m) => Math.max(m.peak_bytes, m.predicted_bytes || 0)));
  const capacity = Math.max(...rows.map((m) => m.capacity_bytes || 0));
  const most = Math.max(held, capacity > FAR * held ? 0 : capacity) * 1.02;
  const end = data.simulated.seconds || 1;
  const grid = el("div", { class: "charts" });
  const first = 24;
  const add = (from, to) => grid.append(...rows.slice(from, to).map((m, i) => memoryChart(m, from + i, most, end)));
  add(0, first);
  const button = rows.length > first ? el("button", { type: "button", class: "more", onclick: (e) => { add(first, rows.length); e.target.remove(); } }, `Show all ${rows.length}`) : "";
  section("memory", "Memory over time",
    `Bytes on each device of a stage while the step runs, as simulated. ${capacity > FAR * held ? `Devices have ${bytes(capacity)}, far above the charts` : "The red line is what the device has"}; beside each peak stands the one that the search foresaw.`,
    grid, button);
}
