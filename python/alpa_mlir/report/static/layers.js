// How the ops of each kind of layer are split.

function layersText(group) {
  const known = [...new Set(group.layers.map(([, layer]) => layer).filter((layer) => layer !== null))];
  const stages = [...new Set(group.layers.map(([stage]) => stage))];
  if (!known.length) return `Stage${stages.length > 1 ? "s" : ""} ${ranges(stages)}, layers not said`;
  const numbers = `layer${known.length > 1 ? "s" : ""} ${ranges(known.sort((a, b) => a - b))}`;
  return group.modules ? `${group.modules} (${numbers})` : numbers[0].toUpperCase() + numbers.slice(1);
}

/** A name that may be broken after its slashes. */
function breakable(name) {
  return name.split(/(?<=\/)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

function opRow(op, mesh, most, several) {
  const shown = (name) => (several ? name.replace(/\d+/g, "*") : name);
  const names = op.operands.filter((tensor) => tensor.name).map((tensor) => el("div", {}, shown(tensor.name)));
  const next = op.runner_up
    ? withTip(el("span", { class: "quiet", tabindex: "0" }, `next best: ${otherwise(op)}`), () => [`the best of ${op.choices - 1} other choices`, op.runner_up])
    : el("span", { class: "quiet" }, op.choices > 1 ? plural(op.choices, "choice") : "the only choice");
  return el("li", {},
    el("div", { class: "op" }, el("code", {}, op.op), op.where === op.op ? "" : el("span", { class: "quiet where" }, breakable(op.where)), el("span", { class: "names" }, names)),
    el("div", { class: "flow" }, op.operands.map((tensor) => tensorBox(tensor, mesh)),
      el("span", { class: "arrow", role: "img", "aria-label": "gives" }, "→"), op.results.map((tensor) => tensorBox(tensor, mesh))),
    el("div", { class: "cost" }, el("span", {}, seconds(op.seconds)), bar(op.seconds / most), next));
}

/** Sizes of a mesh by what its axes do: fsdp 8 × tensor 2. */
function axesWords({ mesh_shape: sizes, axes }) {
  const shown = sizes.flatMap((size, i) => (size > 1 ? [`${axes[i]} ${size}`] : []));
  return shown.join(" × ") || "one device";
}

function layerGroup(group, open) {
  const mesh = meshOf(group);
  const stages = [...new Set(group.layers.map(([stage]) => stage))];
  const ops = group.blocks.flatMap(([, found]) => found);
  const most = Math.max(...ops.map((op) => op.seconds), 1e-30);
  const head = el("summary", {}, el("strong", {}, layersText(group)), " ", stageChips(stages),
    el("span", { class: "quiet" }, ` ${axesWords(group)}`,
      group.layers.length > 1 ? `, ${group.layers.length} layers alike` : "", `, ${plural(ops.length, "op")}`));
  const node = el("details", { class: "layer", open }, head);
  const fillIn = () => {
    if (node.childElementCount > 1) return;
    node.append(...group.blocks.map(([times, found]) => el("div", { class: times > 1 ? "block times" : "block" },
      times > 1 ? el("p", { class: "repeat" }, `${times} times, costs are means:`) : "",
      el("ol", { class: "ops" }, found.map((op) => opRow(op, mesh, most, times > 1 || group.layers.length > 1))))));
  };
  node.addEventListener("toggle", fillIn);
  if (open) fillIn();
  return node;
}

function drawSharding() {
  const axes = [...new Set(data.meshes.flatMap((mesh) => mesh.axes.filter((_, i) => mesh.shape[i] > 1)))];
  section("sharding", "How tensors are split",
    "Boxes are tensors of one micro-batch. Lines in an axis' colour are where that mesh axis cuts them, and the filled part is what the first device holds: a box that is filled all over is whole on every device. Layers that do the same in the same way stand once. Costs are seconds of a step, for what a decision entails.",
    legend(axes.map((axis) => [axis, axisColour(axis)])),
    data.layers.length ? el("div", { class: "layers" }, data.layers.map((group, i) => layerGroup(group, i === Math.min(1, data.layers.length - 1)))) : "",
    tensorTable());
}
