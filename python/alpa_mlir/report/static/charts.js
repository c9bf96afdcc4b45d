/** A round number of `parts` or so, and its steps up to `most`. */
function ticks(most, parts = 4, base = 10) {
  if (!(most > 0)) return [0];
  const rough = most / parts;
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough) || power * base;
  const found = [];
  for (let i = 0; i * step <= most * 1.0001; i++) found.push(i * step);
  return found;
}

/** Ticks of bytes, round in powers of two. */
function byteTicks(most, parts = 4) {
  let step = 1;
  while (most / step > parts) step *= 2;
  const found = [];
  for (let i = 0; i * step <= most * 1.0001; i++) found.push(i * step);
  return found;
}

/** Bars of parts: rows are {label, parts: [[name, value, colour]], note}. */
function stackedBars(rows, format, label) {
  const most = Math.max(...rows.map((row) => row.parts.reduce((sum, part) => sum + part[1], 0)), 0);
  return el("div", { class: "bars", role: "list", "aria-label": label }, rows.map((row) => {
    const total = row.parts.reduce((sum, part) => sum + part[1], 0);
    const spoken = row.parts.filter((p) => p[1] > 0).map((p) => `${p[0]} ${format(p[1])}`).join(", ");
    const line = el("div", { class: "line", "aria-hidden": "true" }, row.parts.filter((p) => p[1] > 0).map(([name, value, colour]) =>
      withTip(el("span", { style: { width: `${(value / most) * 100}%`, background: colour } }),
        () => [name, `${format(value)} of ${format(total)}`])));
    return el("div", { class: "row", role: "listitem", "aria-label": `${row.label}: ${spoken}` },
      el("span", { class: "name" }, row.label), line, el("span", { class: "total" }, row.note || format(total)));
  }));
}
