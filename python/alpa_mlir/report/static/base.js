const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

/** An element; text always goes in as text, never as markup. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style" && typeof value === "object") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const UNKNOWN = "not said";

function figures(value, digits = 3) {
  if (value === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  const decimals = Math.max(0, Math.min(12, digits - 1 - magnitude));
  return value.toLocaleString("en-US", { maximumFractionDigits: decimals });
}

function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const size = Math.abs(value);
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (size >= scale) return `${figures(value / scale)} ${unit}`;
  }
  return size ? `${figures(value / 1e-9)} ns` : "0 s";
}

function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${figures(size)} ${unit}`;
    size /= 1024;
  }
  return `${figures(size)} TiB`;
}

/** Decimal units, as links and FLOPs have them. */
function decimal(value, unit) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [prefix, scale] of [["Z", 1e21], ["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= scale) return `${figures(value / scale)} ${prefix}${unit}`;
  }
  return `${figures(value)} ${unit}`;
}

function count(value) {
  return value === null || value === undefined ? UNKNOWN : value.toLocaleString("en-US");
}

/** 175,233,024,000 as 175 billion. */
function roughly(value) {
  for (const [name, scale] of [["trillion", 1e12], ["billion", 1e9], ["million", 1e6]]) {
    if (value >= scale) return `${figures(value / scale)} ${name}`;
  }
  return count(value);
}

/** 865,376 as 865k. */
function amount(value) {
  for (const [letter, scale] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= scale) return `${figures(value / scale)}${letter}`;
  }
  return figures(value);
}

function percent(value, digits = 3) {
  return value === null || value === undefined ? UNKNOWN : `${figures(value * 100, digits)} %`;
}

function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many || one + "s"}`;
}

/** Numbers as ranges: 0-3, 7. */
function ranges(numbers) {
  const parts = [];
  for (const n of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

// Okabe and Ito's colours, which people with any form of colour blindness can tell apart, then the
// same again, lighter or darker. Neighbouring stages always differ; numbers say which one it is.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#8c8c8c"];

function hueOf(number) {
  const hue = HUES[number % HUES.length];
  const round = Math.floor(number / HUES.length) % 3;
  return round === 0 ? hue : mix(hue, round === 1 ? "#ffffff" : "#000000", 0.38);
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function mix(a, b, part) {
  const [x, y] = [channels(a), channels(b)];
  const hex = x.map((v, i) => Math.round(v + (y[i] - v) * part).toString(16).padStart(2, "0"));
  return `#${hex.join("")}`;
}

/** What a runner-up costs. */
function otherwise(row) {
  return row.more.startsWith("the step") ? `${seconds(row.more_seconds)} more` : row.more;
}

/** Black or white, whichever is easier to read on a colour (WCAG's relative luminance). */
function inkOn(colour) {
  const [r, g, b] = channels(colour).map((v) => {
    const c = v / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#111111" : "#ffffff"; // Equal contrast.
}

const KIND_COLOURS = {
  forward: "#0072b2",
  backward: "#e69f00",
  prepare: "#f0e442",
  barrier: "#56b4e9",
  backward_input: "#e69f00",
  backward_weight: "#d55e00",
  update: "#009e73",
  wait: "#b8b8b8",
  other: "#cc79a7",
};

/** Of a mesh axis, by what it does; a number behind tells apart those that do the same. */
function axisColour(name) {
  return `var(--axis-${name.replace(/\d+$/, "")}, var(--ink-2))`;
}

function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Stages of each mesh. */
const stagesOf = data.meshes.map((_, mesh) =>
  data.stages.flatMap((stage, number) => (stage.mesh === mesh ? [number] : [])),
);

/** A mesh, and all stages that run on it, have the colour of the first of them. */
function meshColour(mesh) {
  return stagesOf[mesh].length ? hueOf(stagesOf[mesh][0]) : "#8c8c8c";
}

function stageColour(stage) {
  return meshColour(data.stages[stage].mesh);
}

function meshName(mesh) {
  const stages = stagesOf[mesh];
  if (!stages || !stages.length) return `mesh ${mesh}`;
  return `stage${stages.length > 1 ? "s" : ""} ${ranges(stages)}`;
}

const AXES = [...new Set(data.meshes.flatMap((mesh) => [...mesh.axes, ...mesh.kinds]))];
const AXIS_NAME = new RegExp(`\\b(${AXES.map((name) => name.replace(/[^A-Za-z0-9_]/g, "\\$&")).join("|")})\\b`);

/** A sharding, with the names of mesh axes in their colours. */
function specNode(text) {
  return el("code", { class: "specs" }, text.split(AXIS_NAME).map((part, i) =>
    (i % 2 ? axisMark(part) : part.replaceAll("->", "→"))));
}

function axisMark(name) {
  return el("b", { style: { color: axisColour(name) } }, name);
}

// --- What stands under the pointer ------------------------------------------------------------------
const tip = document.getElementById("tip");

function showTip(x, y, lines) {
  tip.replaceChildren(...lines.map((line, i) => el(i ? "div" : "strong", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** Shows lines while the pointer or the keyboard is on a node. */
function withTip(node, lines) {
  node.addEventListener("pointermove", (e) => showTip(e.clientX, e.clientY, lines()));
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("focus", () => {
    const box = node.getBoundingClientRect();
    showTip(box.left, box.bottom - 10, lines());
  });
  node.addEventListener("blur", hideTip);
  return node;
}

document.addEventListener("keydown", (e) => e.key === "Escape" && hideTip());

// --- Parts of sections ------------------------------------------------------------------------------
const sections = [];

/** Fills a section of the page and names it in the navigation. */
function section(id, title, lead, ...children) {
  const node = document.getElementById(id);
  const notes = (data.missing[id] || []).map((text) => el("p", { class: "note" }, text));
  node.append(
    el("h2", { id: `h-${id}` }, title),
    lead ? el("p", { class: "lead" }, lead) : "",
    ...notes,
    ...children.filter(Boolean),
  );
  sections.push([id, title]);
}

/**
 * A table. Columns are {name, of(row), text(row), number, node(row), title}; headers sort by `of`.
 * At first `most` rows are shown, and a button shows more.
 */
function table(columns, rows, { caption = "", most = 60, sort = null, id = null } = {}) {
  let order = sort;
  let shown = most;
  const head = el("tr");
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more", onclick: () => { shown += 200; draw(); } });
  const node = el("div", { class: "table", role: "region", "aria-label": caption, tabindex: "0", id },
    el("table", {}, caption ? el("caption", {}, caption) : "", el("thead", {}, head), body), more);
  let current = rows;
  function draw() {
    head.replaceChildren(...columns.map((column, i) => {
      const active = order && order[0] === i;
      const direction = active ? (order[1] > 0 ? "ascending" : "descending") : "none";
      const label = column.of
        ? el("button", { type: "button", onclick: () => { order = [i, active ? -order[1] : (column.number ? -1 : 1)]; draw(); head.children[i].firstChild.focus(); } },
            column.name, el("span", { class: "arrow", "aria-hidden": "true" }, active ? (order[1] > 0 ? "▲" : "▼") : ""))
        : column.name;
      return el("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": column.of ? direction : null }, label);
    }));
    let sorted = current;
    if (order) {
      const of = columns[order[0]].of;
      sorted = current.map((row, i) => [of(row), i, row]).sort((a, b) => order[1] * compare(a[0], b[0]) || a[1] - b[1]).map((x) => x[2]);
    }
    body.replaceChildren(...sorted.slice(0, shown).map((row) => el("tr", {}, columns.map((column) => {
      const content = column.node ? column.node(row) : column.text ? column.text(row) : column.of(row);
      return el("td", { class: column.number ? "number" : column.class || null }, content);
    }))));
    more.hidden = sorted.length <= shown;
    more.textContent = `Show more (${count(shown)} of ${count(sorted.length)} rows)`;
  }
  node.show = (found) => { current = found; shown = most; draw(); };
  draw();
  return node;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}

function chip(text, colour, attributes = {}) {
  return el("span", { class: "chip", ...attributes, style: { background: colour, color: inkOn(colour) } }, text);
}

/** Chips of stages, as a few ranges where they are many. */
function stageChips(stages) {
  if (stages.length > 6) return el("span", {}, `stages ${ranges(stages)}`);
  return stages.map((s) => chip(s, stageColour(s), { title: `stage ${s}`, "aria-label": `stage ${s}` }));
}

function legend(items) {
  return el("ul", { class: "legend" }, items.map(([name, colour]) =>
    el("li", {}, el("span", { class: "swatch", style: { background: colour } }), name)));
}
