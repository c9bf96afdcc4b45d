// The pipeline over time: rows of runs on a canvas, to zoom into and to move along.

const ROW = 22;
const BAR = 17;
const LEFT = 112;
const AXIS = 24;
const MOST_TRANSFERS = 260; // More than so many lines cannot be told apart.
const OTHERS = 0.22; // How opaque other micro-batches are, where one is shown alone.
const WAITING = 0.32; // How opaque waiting is drawn.

/** First index whose value is more than `time`, in a rising list. */
function after(list, time) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

function rowName(activity, row) {
  return [meshName(activity.meshes[row]), activity.rows[row]].filter(Boolean).join(", ");
}

class TimelineView {
  constructor(activity, label) {
    this.activity = activity;
    this.label = label;
    this.from = 0;
    this.to = activity.seconds || 1;
    this.batch = null; // The micro-batch that is shown alone.
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": this.describe(), class: "timeline" });
    this.note = el("span", { class: "quiet view", "aria-live": "polite" });
    this.frame = el("div", { class: "rows" }, this.canvas);
    this.node = el("div", { class: "view-box" }, this.toolbar(), this.frame);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.frame.addEventListener("scroll", () => this.draw());
    addEventListener("beforeprint", () => this.draw(true));
    addEventListener("afterprint", () => this.draw());
  }

  describe() {
    const rows = this.activity.rows.length;
    return `${this.label} timeline of ${plural(rows, "row")} over ${seconds(this.activity.seconds)}; the table below says how each spends it. Plus and minus zoom, arrows move, zero shows all.`;
  }

  toolbar() {
    const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    return el("div", { class: "controls" },
      button("+", "zoom in", () => this.zoom(0.5)), button("−", "zoom out", () => this.zoom(2)),
      button("‹", "earlier", () => this.move(-0.25)), button("›", "later", () => this.move(0.25)),
      button("all", "show all", () => { this.batch = null; this.show(0, this.activity.seconds); }),
      this.batchControl(button),
      this.activity.steps.length > 1 ? this.activity.steps.slice(0, 8).map(([a, b], i) => button(`step ${i}`, `show step ${i}`, () => this.show(a, b))) : "",
      this.note);
  }

  /** Buttons that show one micro-batch, from its first run to its last, and the next or the one before. */
  batchControl(button) {
    const most = Math.max(-1, ...this.activity.spans.map((row) => row[3].reduce((a, b) => Math.max(a, b), -1)));
    if (most < 1) return "";
    const go = (by) => this.showBatch(this.batch === null ? (by < 0 ? most : 0) : (this.batch + by + most + 1) % (most + 1));
    return [button("micro-batch ‹", "the micro-batch before alone", () => go(-1)), button("micro-batch ›", "the next micro-batch alone", () => go(1))];
  }

  showBatch(batch) {
    this.batch = batch;
    let [from, to] = [Infinity, 0];
    for (const [, starts, ends, batches] of this.activity.spans) {
      batches.forEach((b, i) => {
        if (b !== batch) return;
        from = Math.min(from, starts[i]);
        to = Math.max(to, ends[i]);
      });
    }
    this.show(from, to);
  }

  show(from, to) {
    const all = this.activity.seconds || 1;
    const width = Math.min(all, Math.max(to - from, all * 1e-6));
    this.from = Math.max(0, Math.min(from, all - width));
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(part) {
    const by = (this.to - this.from) * part;
    this.show(this.from + by, this.to + by);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (e) => {
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.move(e.deltaX / this.width);
      else if (e.ctrlKey || e.metaKey || e.shiftKey || document.activeElement === canvas) this.zoom(2 ** (e.deltaY / 240), this.timeAt(e.offsetX));
      else return;
      e.preventDefault();
    }, { passive: false });
    let held = null;
    canvas.addEventListener("pointerdown", (e) => {
      held = [e.clientX, this.from, this.to];
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointerup", () => (held = null));
    canvas.addEventListener("pointermove", (e) => {
      if (!held) return this.point(e);
      const by = ((held[0] - e.clientX) / this.width) * (held[2] - held[1]);
      this.show(held[1] + by, held[2] + by);
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (e) => this.zoom(0.25, this.timeAt(e.offsetX)));
    const all = () => { this.batch = null; this.show(0, this.activity.seconds); };
    const keys = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: all, ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2) };
    canvas.addEventListener("keydown", (e) => {
      if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      keys[e.key]();
      e.preventDefault();
    });
  }

  timeAt(x) {
    return this.from + ((x - LEFT) / this.width) * (this.to - this.from);
  }

  /** The span under a point: its row and number, or null. */
  hit(x, y) {
    const row = Math.floor((y - AXIS) / ROW);
    if (x < LEFT || y < this.frame.scrollTop + AXIS || row >= this.activity.rows.length) return null;
    const [, starts, ends] = this.activity.spans[row];
    const time = this.timeAt(x);
    for (let i = after(starts, time) - 1, tries = 0; i >= 0 && tries < 8; i--, tries++) if (ends[i] >= time) return [row, i];
    return null;
  }

  point(e) {
    const found = this.hit(e.offsetX, e.offsetY);
    if (!found) return hideTip();
    const [row, i] = found;
    const [kinds, starts, ends, batches, stages] = this.activity.spans[row];
    const kind = this.activity.kinds[kinds[i]].replace("_", " ");
    showTip(e.clientX, e.clientY, [
      batches[i] >= 0 ? `${kind} of micro-batch ${batches[i]}` : kind,
      [rowName(this.activity, row), stages[i] >= 0 && stagesOf[this.activity.meshes[row]].length > 1 ? `for stage ${stages[i]}` : ""].filter(Boolean).join(", "),
      `${seconds(ends[i] - starts[i])}, from ${seconds(starts[i])} to ${seconds(ends[i])}`,
    ]);
  }

  /** Draws the rows that can be seen, or all of them; the axis stays at the top. */
  draw(all = false) {
    const total = this.node.clientWidth;
    if (!total) return;
    const rows = this.activity.rows.length;
    const height = AXIS + rows * ROW + 6;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.width = total - LEFT - 2;
    const size = [Math.round(total * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) {
      [this.canvas.width, this.canvas.height] = size;
      Object.assign(this.canvas.style, { width: `${total}px`, height: `${height}px` });
    }
    const top = all ? 0 : this.frame.scrollTop;
    const bottom = all ? height : Math.min(height, top + (this.frame.clientHeight || height));
    const c = this.canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, top, total, bottom - top);
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    const colours = { ink: themed("--ink"), quiet: themed("--ink-2"), line: themed("--line"), paper: themed("--paper") };
    this.drawGrid(c, colours, top, bottom);
    const first = Math.max(0, Math.floor((top - AXIS) / ROW));
    for (let row = first; row < rows && AXIS + row * ROW < bottom; row++) this.drawRow(c, colours, row);
    this.drawTransfers(c, colours);
    this.drawAxis(c, colours, top, total);
    this.note.textContent = `${this.batch === null ? "" : `micro-batch ${this.batch}: `}${seconds(this.from)} to ${seconds(this.to)} of ${seconds(this.activity.seconds)}`;
  }

  x(time) {
    return LEFT + ((time - this.from) / (this.to - this.from)) * this.width;
  }

  marks() {
    const span = this.to - this.from;
    const step = ticks(span, Math.max(2, this.width / 130))[1] || span;
    const found = [];
    for (let i = Math.ceil(this.from / step); i * step <= this.to; i++) found.push(i * step);
    return found;
  }

  drawGrid(c, colours, top, bottom) {
    const line = (time) => {
      const x = Math.round(this.x(time)) + 0.5;
      c.beginPath();
      c.moveTo(x, top);
      c.lineTo(x, bottom);
      c.stroke();
    };
    c.lineWidth = 1;
    c.strokeStyle = colours.line;
    this.marks().forEach(line);
    c.strokeStyle = colours.quiet;
    c.setLineDash([4, 3]);
    const steps = this.activity.steps;
    steps.map(([start, end]) => (steps.length > 1 ? start : end)).filter((time) => time >= this.from && time <= this.to).forEach(line);
    c.setLineDash([]);
  }

  drawAxis(c, colours, top, total) {
    c.fillStyle = colours.paper;
    c.fillRect(0, top, total, AXIS - 4);
    c.fillStyle = colours.quiet;
    for (const time of this.marks()) {
      const x = this.x(time);
      c.textAlign = x > total - 24 ? "right" : "center";
      c.fillText(seconds(time), Math.min(Math.max(x, LEFT + 12), total - 2), top + 9);
    }
  }

  drawRow(c, colours, row) {
    const y = AXIS + row * ROW;
    const [kinds, starts, ends, batches, stages] = this.activity.spans[row];
    const mesh = this.activity.meshes[row];
    c.fillStyle = meshColour(mesh);
    c.fillRect(2, y + 3, 8, BAR - 6);
    c.fillStyle = colours.ink;
    c.textAlign = "left";
    c.fillText(rowName(this.activity, row), 16, y + BAR / 2 + 1, LEFT - 22);
    const names = this.activity.kinds;
    const scale = this.width / (this.to - this.from);
    const right = LEFT + this.width;
    const shares = new Float64Array(names.length);
    let pixel = -1;
    let sum = 0;
    // Runs that are narrower than a pixel share it by their time.
    const flush = () => {
      let at = y;
      for (let kind = 0; sum > 0 && kind < shares.length; kind++) {
        if (!shares[kind]) continue;
        const size = (shares[kind] / Math.max(sum, 1)) * BAR;
        c.globalAlpha = names[kind] === "wait" ? WAITING : 1;
        c.fillStyle = KIND_COLOURS[names[kind]];
        c.fillRect(pixel, at, 1, size);
        at += size;
        shares[kind] = 0;
      }
      sum = 0;
    };
    let first = after(starts, this.from);
    while (first > 0 && ends[first - 1] > this.from) first--;
    for (let i = first; i < starts.length && starts[i] < this.to; i++) {
      const begin = Math.max(LEFT, LEFT + (starts[i] - this.from) * scale);
      const end = Math.min(right, LEFT + (ends[i] - this.from) * scale);
      const width = end - begin;
      if (width < 1) {
        const here = Math.floor(begin);
        if (here !== pixel) {
          flush();
          pixel = here;
        }
        const part = Math.max(width, 0.02);
        shares[kinds[i]] += part;
        sum += part;
        continue;
      }
      flush();
      const name = names[kinds[i]];
      c.globalAlpha = name === "wait" ? WAITING : this.batch === null || batches[i] === this.batch ? 1 : OTHERS;
      c.fillStyle = KIND_COLOURS[name];
      c.fillRect(begin, y, width > 4 ? width - 0.6 : width, BAR);
      if (batches[i] >= 0 && width > 16 && (this.batch === null || batches[i] === this.batch)) {
        c.fillStyle = inkOn(KIND_COLOURS[name]);
        c.textAlign = "center";
        const several = stagesOf[mesh].length > 1 && stages[i] >= 0 && width > 52;
        c.fillText(several ? `${batches[i]} · s${stages[i]}` : batches[i], (begin + end) / 2, y + BAR / 2 + 1);
      }
    }
    flush();
    c.globalAlpha = 1;
  }

  /** Transfers as lines from sender to receiver, where there are few enough to tell them apart. */
  drawTransfers(c, colours) {
    const rowOf = new Map(this.activity.meshes.map((mesh, row) => [mesh, row]));
    const seen = [];
    for (const transfer of this.activity.transfers) {
      if (transfer[3] < this.from || transfer[2] > this.to) continue;
      seen.push(transfer);
      if (seen.length > MOST_TRANSFERS) return;
    }
    c.strokeStyle = colours.ink;
    c.globalAlpha = 0.55;
    c.lineWidth = 1;
    c.save();
    c.beginPath();
    c.rect(LEFT, AXIS, this.width, this.activity.rows.length * ROW);
    c.clip();
    for (const [from, to, start, end] of seen) {
      const [source, target] = [rowOf.get(from), rowOf.get(to)];
      c.beginPath();
      c.moveTo(this.x(start), AXIS + source * ROW + (target > source ? BAR : 0));
      c.lineTo(this.x(end), AXIS + target * ROW + (target > source ? 0 : BAR));
      c.stroke();
    }
    c.restore();
    c.globalAlpha = 1;
  }
}

const views = {};

function uses(activity) {
  return activity.rows.map((_, row) => {
    const [kinds, starts, ends] = activity.spans[row];
    const sums = {};
    kinds.forEach((kind, i) => {
      const what = activity.kinds[kind];
      sums[what] = (sums[what] || 0) + ends[i] - starts[i];
    });
    const busy = Object.entries(sums).reduce((sum, [what, time]) => sum + (what === "wait" ? 0 : time), 0);
    return { name: rowName(activity, row), mesh: activity.meshes[row], sums, busy, idle: Math.max(0, activity.seconds - busy) };
  });
}

function useTable(activity, label) {
  const kinds = activity.kinds.filter((kind) => kind !== "wait" && activity.spans.some((row) => row[0].includes(activity.kinds.indexOf(kind))));
  return table([
    { name: "Mesh", of: (r) => r.mesh, text: (r) => r.name },
    ...kinds.map((kind) => ({ name: kind.replace("_", " "), of: (r) => r.sums[kind] || 0, text: (r) => seconds(r.sums[kind] || 0), number: true })),
    { name: "busy", of: (r) => r.busy, text: (r) => percent(r.busy / activity.seconds), number: true },
    { name: "idle or waiting", of: (r) => r.idle, text: (r) => seconds(r.idle), number: true },
  ], uses(activity), { caption: `${label}: how each mesh spends the time`, most: 16 });
}

function drawTimeline() {
  const shown = [["simulated", data.simulated], ["real", data.real]].filter(([, activity]) => activity);
  const used = new Set(shown.flatMap(([, a]) => a.spans.flatMap((row) => [...new Set(row[0])].map((k) => a.kinds[k]))));
  section("timeline", "Pipeline timeline",
    shown.length ? "A row for each mesh, with the micro-batch of each run. Drag to move, double-click or use the buttons to zoom; after a click the wheel zooms. Lines between rows are transfers." : null,
    shown.length ? legend([...used].map((kind) => [kind.replace("_", " "), kind === "wait" ? `color-mix(in srgb, ${KIND_COLOURS.wait} ${WAITING * 100}%, transparent)` : KIND_COLOURS[kind]])) : "",
    ...shown.flatMap(([name, activity]) => {
      views[name] = new TimelineView(activity, name);
      const rows = uses(activity);
      const mean = rows.reduce((sum, r) => sum + r.busy, 0) / rows.length / activity.seconds;
      return [el("h3", {}, name === "real" ? `Real, ${plural(activity.steps.length, "step")}` : "Simulated",
        el("span", { class: "quiet" }, ` ${seconds(activity.seconds)}, meshes busy ${percent(mean)} of the time`)),
      views[name].node,
      el("details", { class: "more-table" }, el("summary", {}, "How each mesh spends the time, as a table"), useTable(activity, name))];
    }));
}
