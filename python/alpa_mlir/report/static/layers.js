// How the ops of each kind of layer are split.

function layersText(group) {
  const known = group.layers.filter(([, layer]) => layer !== null).map(([, layer]) => layer);
  const stages = [...new Set(group.layers.map(([stage]) => stage))];
  if (!known.length) return `Stage${stages.length > 1 ? "s" : ""} ${ranges(stages)}, layers not said`;
  return `Layer${known.length > 1 ? "s" : ""} ${ranges(known.sort((a, b) => a - b))}`;
}

function layerGroup(group, open) {
  const mesh = meshOf(group.mesh_shape);
  const stages = [...new Set(group.layers.map(([stage]) => stage))];
  const most = Math.max(...group.ops.map((op) => op.seconds), 1e-30);
  const head = el("summary", {}, el("strong", {}, layersText(group)), " ", stageChips(stages),
    el("span", { class: "quiet" }, ` mesh ${group.mesh_shape.join(" × ")}`,
      group.layers.length > 1 ? `, ${group.layers.length} alike` : "",
      group.repeats > 1 ? `, each ${group.repeats} times this block` : "", `, ${plural(group.ops.length, "op")}`));
  const node = el("details", { class: "layer", open });
  node.append(head);
  const fillIn = () => {
    if (node.childElementCount > 1) return;
    node.append(el("ol", { class: "ops" }, group.ops.map((op) => el("li", {},
      el("div", { class: "op" }, el("code", {}, op.op), el("span", { class: "quiet where" }, op.where === op.op ? "" : op.where),
        el("span", { class: "names" }, op.operands.filter((t) => t.name).map((t) => t.name).join(", "))),
      el("div", { class: "flow" }, op.operands.map((t) => tensorBox(t, mesh)), el("span", { class: "arrow", "aria-label": "gives" }, "→"), op.results.map((t) => tensorBox(t, mesh))),
      el("div", { class: "cost" }, el("span", {}, seconds(op.seconds)), bar(op.seconds / most, ""),
        op.runner_up ? el("span", { class: "quiet" }, `next best +${seconds(op.more_seconds)} of ${op.choices}`) : el("span", { class: "quiet" }, plural(op.choices, "choice")))))));
  };
  node.addEventListener("toggle", fillIn);
  if (open) fillIn();
  return node;
}

function drawSharding() {
  const axes = [...new Set(data.meshes.flatMap((mesh) => mesh.axes))];
  section("sharding", "How tensors are split",
    "Boxes are tensors; lines in an axis' colour are where that mesh axis cuts them, and the dark part is what the mesh's first device holds. Layers that do the same in the same way stand once. Costs are seconds of a step, of what each decision entails.",
    legend(axes.map((axis) => [`mesh axis ${axis}`, axisColour(axis)])),
    data.layers.length ? el("div", { class: "layers" }, data.layers.map((group, i) => layerGroup(group, i < 2))) : "",
    tensorTable());
}
