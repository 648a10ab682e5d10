"use strict";
// One chart: lines of all runs, drawn as SVG in the size that it is seen in, with a cursor that mouse and keys move.

const HEIGHT = 220;
const MARGIN = { left: 48, right: 20, top: 12, bottom: 22 };
const MARKED = 40; // points of validation that are seen, up to which each has a mark
const LETTER = 12; // pixels that the letters at the ends of lines are apart at least

function svgElement(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

class LineChart {
  /** Args: what all charts share, see Report in run.js; the chart's data. */
  constructor(view, chart) {
    this.view = view;
    this.chart = chart;
    this.parts = [...new Set(chart.lines.map(([part]) => part))];
    this.svg = svgElement("svg", { class: "lines", "aria-hidden": "true" });
    this.box = element("div", { className: "lines-box", tabIndex: 0, role: "slider", "aria-label": `${chart.title}: cursor` }, this.svg);
    this.readout = element("div", { className: "readout" });
    this.extra = element("span", { className: "note" });
    const key = this.parts.length < 2 ? null : element("span", { className: "note key" },
      element("i", { className: "swatch" }), " training ", element("i", { className: "swatch dashed" }), " validation");
    this.root = element("figure", { className: "chart" }, element("h3", {}, chart.title),
      element("figcaption", {}, element("span", {}, chart.note), key, this.extra), this.box, this.readout);
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.listen();
  }

  /** The lines that can be seen now, each with its points: { run, part, xs, ys }. */
  lines() {
    const { axis, hidden } = this.view;
    const found = [];
    for (const run of this.view.runs) {
      if (hidden.has(run.letter)) continue;
      for (const [part, name] of this.chart.lines) {
        const xs = run.parts[part].axes[axis], ys = run.parts[part].columns[name];
        if (xs && ys) found.push({ run, part, xs, ys });
      }
    }
    return found;
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width) return; // not seen: drawn when it is
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", HEIGHT);
    const [low, high] = this.view.range();
    this.scaleX = new Scale(low, high, MARGIN.left, width - MARGIN.right, this.view.logX);
    this.shown = this.lines().map((line) => ({ ...line, ...this.within(line, low, high) }));
    this.scaleY = this.verticalScale();
    this.cursor = svgElement("g", { class: "cursor" });
    this.selection = svgElement("rect", { class: "selection", y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom, visibility: "hidden" });
    this.svg.replaceChildren(...this.grid(width), ...this.restarts(), ...this.curves(width), this.selection, this.cursor);
    this.showCursor();
  }

  /** Places of a line's points that are seen, with one beyond on each side, to which lines lead. */
  within({ xs }, low, high) {
    const from = firstAtLeast(xs, low), to = firstAtLeast(xs, high * (1 + 1e-12) + 1e-12);
    return { from: Math.max(0, from - 1), to: Math.min(xs.length, to + 1) };
  }

  verticalScale() {
    let low = Infinity, high = -Infinity;
    for (const { ys, from, to } of this.shown) {
      for (let i = from; i < to; i++) {
        if (ys[i] === null) continue;
        if (ys[i] < low) low = ys[i];
        if (ys[i] > high) high = ys[i];
      }
    }
    if (low > high) [low, high] = [0, 1];
    const log = this.view.logY && low > 0;
    this.extra.textContent = this.view.logY && !log ? "linear: some values have no logarithm" : "";
    const scale = new Scale(low, high, HEIGHT - MARGIN.bottom, MARGIN.top, log);
    const room = 0.04 * (scale.high - scale.low); // or the line would lie on the edge
    const bounds = [low >= 0 && !log ? Math.max(0, scale.low - room) : scale.low - room, scale.high + room];
    return new Scale(...(log ? bounds.map(Math.exp) : bounds), HEIGHT - MARGIN.bottom, MARGIN.top, log);
  }

  grid(width) {
    const made = [];
    for (const value of this.scaleY.ticks(5)) {
      const y = this.scaleY.at(value);
      made.push(svgElement("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
      made.push(svgElement("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, tickText(value)));
    }
    for (const value of this.scaleX.ticks(Math.max(2, Math.floor(width / 90)))) {
      const x = this.scaleX.at(value);
      made.push(svgElement("line", { class: "axis", x1: x, x2: x, y1: HEIGHT - MARGIN.bottom, y2: HEIGHT - MARGIN.bottom + 4 }));
      made.push(svgElement("text", { x, y: HEIGHT - 5, "text-anchor": "middle" }, tickText(value)));
    }
    const base = HEIGHT - MARGIN.bottom;
    made.push(svgElement("line", { class: "base", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));
    return made;
  }

  restarts() {
    const [low, high] = this.view.range();
    const made = [];
    for (const run of new Set(this.shown.map((line) => line.run))) {
      for (const { axes, said } of run.restarts) {
        const place = axes[this.view.axis];
        if (place === undefined || place < low || place > high) continue;
        const x = this.scaleX.at(place);
        made.push(svgElement("g", { class: "restart", style: `--run: ${run.colour}` },
          svgElement("title", {}, said),
          svgElement("line", { x1: x, x2: x, y1: MARGIN.top - 2, y2: HEIGHT - MARGIN.bottom }),
          svgElement("path", { d: `M${x - 5} ${MARGIN.top - 9}h10l-5 8z` })));
      }
    }
    return made;
  }

  curves(width) {
    const columns = Math.max(1, width - MARGIN.left - MARGIN.right);
    const clip = `clip-${this.chart.number}`;
    const area = svgElement("g", { "clip-path": `url(#${clip})` });
    const ends = [];
    let most = 0;
    for (const line of this.shown) {
      const { run, part, xs, ys, from, to } = line;
      const found = pieces(xs, ys, from, to, this.scaleX, this.scaleY, columns);
      if (found.joined) most = Math.max(most, to - from);
      const dashed = part === "validation" && this.parts.length > 1;
      const group = svgElement("g", { class: dashed ? "curve dashed" : "curve", style: `--run: ${run.colour}` });
      if (found.joined) group.append(svgElement("path", { class: "band", d: found.pieces.map(bandPath).join("") }));
      group.append(svgElement("path", { class: "line", d: found.pieces.map(linePath).join("") }));
      const alone = found.pieces.filter((piece) => piece.length === 1);
      const marked = part === "validation" && to - from <= MARKED ? found.pieces.flat() : alone.flat();
      for (const { x, y } of marked) group.append(svgElement("circle", { cx: x, cy: y, r: 2.5 }));
      area.append(group);
      const last = found.pieces.flat().findLast((point) => point.x <= width - MARGIN.right + 1);
      if (last && !(dashed && this.shown.some((other) => other.run === run && other.part === "training"))) ends.push({ run, ...last });
    }
    if (most) this.extra.textContent += ` mean and range of up to ${most.toLocaleString("en")} points a line`;
    const plot = svgElement("clipPath", { id: clip }, svgElement("rect", {
      x: MARGIN.left - 3, y: 0, width: columns + 6, height: HEIGHT - MARGIN.bottom + 3 })); // marks at the edges are whole
    return [plot, area, ...this.letters(ends, width)];
  }

  /** Who is who, at the ends of the lines; not of a single run. */
  letters(ends, width) {
    if (this.view.runs.length < 2) return [];
    spread(ends, LETTER, MARGIN.top, HEIGHT - MARGIN.bottom);
    return ends.map(({ run, x, place }) => svgElement("text", {
      class: "letter", style: `--run: ${run.colour}`, x: Math.min(x + 5, width - MARGIN.right + 5), y: place + 4 }, run.letter));
  }

  /** The line of the cursor, the points nearest to it, and their values; without a cursor the last of each line. */
  showCursor() {
    const { cursor } = this.view;
    const [low, high] = this.view.range();
    const seen = cursor !== null && cursor >= low && cursor <= high;
    const marks = [], texts = new Map();
    if (seen) marks.push(svgElement("line", { x1: this.scaleX.at(cursor), x2: this.scaleX.at(cursor), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    for (const { run, part, xs, ys } of this.shown) {
      if (!texts.has(run)) texts.set(run, []);
      if (seen && cursor > this.view.end(run)) continue;
      const i = seen ? nearest(xs, cursor) : ys.findLastIndex((y) => y !== null);
      if (i < 0) continue;
      if (seen && ys[i] !== null) marks.push(svgElement("circle", { style: `--run: ${run.colour}`, cx: this.scaleX.at(xs[i]), cy: this.scaleY.at(ys[i]), r: 4 }));
      texts.get(run).push([part, ys[i] === null ? "no number" : valueText(ys[i])]);
    }
    this.cursor.replaceChildren(...marks);
    const place = seen ? this.view.placeText(cursor) : "last";
    this.readout.replaceChildren(element("span", { className: "place" }, place), ...[...texts].map(([run, values]) => this.values(run, values)));
    this.box.setAttribute("aria-valuemin", low);
    this.box.setAttribute("aria-valuemax", high);
    this.box.setAttribute("aria-valuenow", seen ? cursor : high);
    this.box.setAttribute("aria-valuetext", [...this.readout.children].map((each) => each.textContent).join(", "));
  }

  values(run, values) {
    const named = values.length > 1 || this.parts.length > 1;
    const children = this.view.runs.length > 1 ? [element("b", { className: "run", style: `--run: ${run.colour}` }, run.letter)] : [];
    for (const [part, text] of values) {
      children.push(" ", element("span", {}, named && part === "validation" ? element("i", {}, "validation ") : "", text));
    }
    if (!values.length) children.push(" ended");
    return element("span", { className: "of-run" }, ...children);
  }

  listen() {
    const place = (event) => event.clientX - this.box.getBoundingClientRect().left;
    const snapped = (pixel) => {
      const value = this.scaleX.back(pixel);
      const line = this.shown.find((each) => each.part === "training") ?? this.shown[0];
      return line ? line.xs[nearest(line.xs, value)] ?? null : null;
    };
    let start = null;
    this.box.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      start = place(event);
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointermove", (event) => {
      this.view.moveTo(snapped(place(event)));
      if (start === null) return;
      const [from, to] = [start, place(event)].sort((a, b) => a - b);
      this.selection.setAttribute("x", from);
      this.selection.setAttribute("width", to - from);
      this.selection.setAttribute("visibility", "visible");
    });
    this.box.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [from, to] = [start, place(event)].sort((a, b) => a - b);
      start = null;
      this.selection.setAttribute("visibility", "hidden");
      if (to - from > 8) this.view.zoomTo(this.scaleX.back(from), this.scaleX.back(to));
    });
    this.box.addEventListener("pointercancel", () => { start = null; });
    this.box.addEventListener("pointerleave", () => {
      if (start === null) this.view.moveTo(null);
    });
    this.box.addEventListener("dblclick", () => this.view.zoomTo(null, null));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const jumps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
    const [low, high] = this.view.range();
    if (event.key in jumps || ["Home", "End", "PageUp", "PageDown"].includes(event.key)) {
      const every = new Set();
      for (const { xs, ys } of this.shown) xs.forEach((x, i) => { if (x >= low && x <= high && ys[i] !== null) every.add(x); });
      const xs = [...every].sort((a, b) => a - b);
      if (!xs.length) return;
      const last = xs.length - 1;
      let i = this.view.cursor === null ? last : nearest(xs, this.view.cursor);
      if (event.key in jumps) i = this.view.cursor === null ? i : i + jumps[event.key];
      else if (event.key === "Home") i = 0;
      else if (event.key === "End") i = last;
      else i += Math.ceil(xs.length / 10) * (event.key === "PageUp" ? 1 : -1);
      this.view.moveTo(xs[Math.max(0, Math.min(last, i))]);
    } else if (event.key === "+" || event.key === "=") this.view.zoom(0.5);
    else if (event.key === "-") this.view.zoom(2);
    else if (event.key === "0") this.view.zoomTo(null, null);
    else if (event.key === "Escape") this.view.moveTo(null);
    else return;
    event.preventDefault();
  }
}

function linePath(points) {
  return points.map(({ x, y }, i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function bandPath(points) {
  const there = points.map(({ x, high }) => `${x.toFixed(1)} ${high.toFixed(1)}`);
  const back = points.map(({ x, low }) => `${x.toFixed(1)} ${low.toFixed(1)}`).reverse();
  return `M${[...there, ...back].join("L")}Z`;
}
