// Every tensor that the programs keep or hand on, searchable; repeated layers as one row.

const KINDS = { weight: "weight", state: "optimizer state", prepared: "prepared weight", batch: "batch", activation: "activation", gradient: "gradient", update: "update value", result: "result" };

function tensorRows() {
  const t = data.tensors;
  return t.names.map((name, i) => {
    const [shape, dtype, spec, whole, held] = t.forms[t.form[i]];
    return { name, kind: KINDS[t.kinds[i]] || t.kinds[i], shape, dtype, spec, whole, held, mesh: t.mesh[i], stages: t.stages[i], form: t.form[i], count: 1 };
  });
}

/** Rows whose names differ in numbers only, and which are split alike on meshes of one shape. */
function folded(rows) {
  const groups = new Map();
  for (const row of rows) {
    const name = row.name.replace(/\d+/g, "*");
    const key = [name, row.kind, row.dtype, row.shape, row.spec.map((a) => a.join("*")).join(), data.meshes[row.mesh].shape].join("|");
    const group = groups.get(key);
    if (!group) groups.set(key, { ...row, members: [row.name], stages: new Set(row.stages) });
    else {
      group.members.push(row.name);
      group.count += 1;
      row.stages.forEach((s) => group.stages.add(s));
    }
  }
  return [...groups.values()].map((g) => ({ ...g, stages: [...g.stages].sort((a, b) => a - b), name: g.count > 1 ? g.name.replace(/\d+/g, "*") : g.name }));
}

function tensorTable() {
  const all = tensorRows();
  const together = folded(all);
  const columns = [
    { name: "Tensor", of: (r) => r.name, node: (r) => (r.count > 1 ? el("span", { title: r.members.slice(0, 12).join("\n") + (r.count > 12 ? "\n…" : "") }, el("code", {}, r.name)) : el("code", {}, r.name)), class: "wide" },
    { name: "Count", of: (r) => r.count, text: (r) => count(r.count), number: true },
    { name: "Kind", of: (r) => r.kind },
    { name: "Shape", of: (r) => r.shape.reduce((a, b) => a * b, 1), text: (r) => r.shape.map(count).join(" × ") || "scalar", number: true },
    { name: "Dtype", of: (r) => r.dtype },
    { name: "Split", of: (r) => specText(r), node: (r) => specNode(`[${specText(r)}]`) },
    { name: "Stages", of: (r) => r.stages[0], node: (r) => stageChips(r.stages) },
    { name: "Whole", of: (r) => r.whole, text: (r) => bytes(r.whole), number: true },
    { name: "On a device", of: (r) => r.held, text: (r) => bytes(r.held), number: true },
  ];
  const node = table(columns, together, { caption: "Tensors", most: 40, sort: [8, -1], id: "tensors" });
  const search = el("input", { type: "search", id: "tensor-search", placeholder: "name, dtype, axis …", autocomplete: "off", spellcheck: "false" });
  const kind = el("select", { id: "tensor-kind" }, el("option", { value: "" }, "all kinds"),
    [...new Set(all.map((r) => r.kind))].map((k) => el("option", { value: k }, k)));
  const fold = el("input", { type: "checkbox", id: "tensor-fold", checked: true });
  const found = el("span", { class: "quiet", id: "tensor-count", "aria-live": "polite" });
  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = (fold.checked ? together : all).filter((r) => (!kind.value || r.kind === kind.value) && words.every((word) =>
      (r.members || [r.name]).some((n) => n.toLowerCase().includes(word)) || r.dtype.includes(word) || r.kind.includes(word) || r.spec.some((axes) => axes.includes(word))));
    node.show(rows);
    const number = rows.reduce((sum, r) => sum + r.count, 0);
    found.textContent = `${plural(number, "tensor")}${fold.checked ? ` in ${plural(rows.length, "row")}` : ""}`;
  };
  for (const input of [search, kind, fold]) input.addEventListener("input", update);
  update();
  return el("div", {}, el("h3", {}, "All tensors"),
    el("div", { class: "controls" }, el("label", {}, "Search ", search), el("label", {}, "Kind ", kind), el("label", {}, fold, " repeated layers as one row"), found), node);
}
