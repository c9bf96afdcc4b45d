// Tensors as boxes cut by mesh axes, in the manner of figure 12 of the Alpa paper.

const MOST_PIECES = 8;

/** How many pieces the axes of one dimension make. */
function pieces(axes, mesh) {
  return axes.reduce((n, axis) => n * (mesh.sizes[axis] || 1), 1);
}

/** A tensor's dimensions as text with the axes that split them: 2,048/y. */
function dimsText(tensor) {
  if (!tensor.spec.length) return el("span", { class: "dims" }, "scalar");
  return el("span", { class: "dims" }, tensor.spec.map((axes, i) => [
    i ? " × " : "",
    tensor.shape ? count(tensor.shape[i]) : "·",
    axes.map((axis) => el("b", { style: { color: axisColour(axis) } }, `/${axis}`)),
  ]));
}

function specText(tensor) {
  return tensor.spec.map((axes) => axes.join("*") || "R").join(", ");
}

/** The two dimensions that are drawn: split ones first, else the last, in order; and the third. */
function drawnDims(tensor, mesh) {
  const split = tensor.spec.map((axes, i) => [pieces(axes, mesh), i]).filter(([n]) => n > 1).map(([, i]) => i);
  const chosen = split.slice(0, 3);
  for (let i = tensor.spec.length - 1; i >= 0 && chosen.length < 2; i--) if (!chosen.includes(i)) chosen.push(i);
  chosen.sort((a, b) => a - b);
  const depth = chosen.length === 3 ? chosen.shift() : null;
  return chosen.length === 1 ? [null, chosen[0], depth] : [chosen[0] ?? null, chosen[1] ?? null, depth];
}

/** The box of a tensor: filled what the mesh's first device holds, lines where axes cut it. */
function tensorBox(tensor, mesh) {
  const [row, column, depth] = drawnDims(tensor, mesh);
  // Of more than eight pieces eight are drawn; the text says which axes cut.
  const number = (dim) => (dim === null ? 1 : Math.min(pieces(tensor.spec[dim], mesh), MOST_PIECES));
  const colourOf = (dim) => (dim === null || !tensor.spec[dim].length ? "var(--ink-2)" : axisColour(tensor.spec[dim][0]));
  const [rows, columns, layers] = [number(row), number(column), number(depth)];
  const width = 66;
  const height = row === null ? 16 : 44;
  const back = Math.min(layers - 1, 3) * 4;
  const parts = [];
  for (let i = Math.min(layers - 1, 3); i > 0; i--) {
    parts.push(svg("rect", { x: 1 + i * 4, y: 1 + back - i * 4, width, height, class: "sheet", style: `stroke: ${colourOf(depth)}` }));
  }
  const [x, y] = [1, 1 + back];
  parts.push(svg("rect", { x, y, width, height, class: "whole" }));
  parts.push(svg("rect", { x, y, width: width / columns, height: height / rows, class: "mine" }));
  const lines = (total, dim, vertical) => {
    for (let i = 1; i < total; i++) {
      const at = (i / total) * (vertical ? width : height);
      parts.push(svg("line", vertical
        ? { x1: x + at, x2: x + at, y1: y, y2: y + height, style: `stroke: ${colourOf(dim)}` }
        : { x1: x, x2: x + width, y1: y + at, y2: y + at, style: `stroke: ${colourOf(dim)}` }));
    }
  };
  lines(columns, column, true);
  lines(rows, row, false);
  parts.push(svg("rect", { x, y, width, height, class: "edge" }));
  const total = tensor.spec.reduce((n, axes) => n * pieces(axes, mesh), 1);
  const copies = mesh.size / total;
  const size = { width: width + 2 + back, height: height + 2 + back };
  return withTip(el("span", { class: "tensor", role: "img",
    "aria-label": `${tensor.name || "tensor"} ${tensor.shape ? tensor.shape.join(" by ") : ""} split ${specText(tensor) || "not at all"}, ${total} parts` },
  svg("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" }, parts),
  dimsText(tensor)), () => [
    tensor.name || "value",
    tensor.shape ? `${tensor.dtype}[${tensor.shape.join(", ")}]` : "the plan does not say its shape",
    `split as [${specText(tensor)}]: ${plural(total, "part")}, ${copies > 1 ? `each on ${plural(copies, "device")}` : "one on each device"}`,
    ...(tensor.unreduced.length ? [`terms of a sum over ${tensor.unreduced.join(", ")}`] : []),
  ]);
}

function meshOf(group) {
  const sizes = Object.fromEntries(group.mesh_shape.map((size, i) => [group.axes[i], size]));
  group.kinds.forEach((kind, i) => {
    if (kind !== group.axes[i]) sizes[kind] = (sizes[kind] || 1) * group.mesh_shape[i];
  });
  return { sizes, size: group.mesh_shape.reduce((a, b) => a * b, 1) };
}
