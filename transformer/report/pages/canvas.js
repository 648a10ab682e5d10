"use strict";
// Two views of a matrix of weights. Each is a canvas as large as what is seen of it, drawn anew when it is scrolled.

const ROW = 22; // pixels of a token in the view of lines
const FAINTEST = 0.02; // lighter lines are not drawn
const MOST_LINES = 4000;

/** A scrolled area of which only the part that is seen is drawn. */
class Viewport {
  constructor(root, label) {
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.spacer = element("div", { "aria-hidden": "true" });
    this.scroller = element("div", { className: "scroll", tabIndex: 0, role: "application", "aria-label": label }, this.canvas, this.spacer);
    root.append(this.scroller);
    this.spacer.style.cssText = "position:absolute;left:0;top:0;pointer-events:none";
    this.scroller.addEventListener("scroll", () => this.redraw());
    new ResizeObserver(() => this.layout()).observe(root);
    redraws.add(() => this.redraw());
  }

  /** Args: width and height of all there is, height of what is seen at most. */
  resize(width, height, most) {
    this.spacer.style.width = `${width}px`;
    this.spacer.style.height = `${height}px`;
    this.scroller.style.height = `${Math.min(height, most) + 2}px`;
    const ratio = devicePixelRatio || 1;
    const seen = [this.scroller.clientWidth, this.scroller.clientHeight];
    this.width = seen[0];
    this.height = seen[1];
    this.canvas.style.width = `${seen[0]}px`;
    this.canvas.style.height = `${seen[1]}px`;
    this.canvas.width = Math.round(seen[0] * ratio);
    this.canvas.height = Math.round(seen[1] * ratio);
    this.redraw();
  }

  redraw() {
    if (!this.data || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const ratio = devicePixelRatio || 1;
      const context = this.canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      context.font = "13px system-ui, sans-serif";
      context.textBaseline = "middle";
      this.draw(context, this.scroller.scrollLeft, this.scroller.scrollTop);
    });
  }

  /** Where a pointer is, in all there is. */
  place(event) {
    const box = this.scroller.getBoundingClientRect();
    return [event.clientX - box.left - 1, event.clientY - box.top - 1];
  }
}

/** A text cut to a width. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = [...text];
  while (characters.length > 1 && context.measureText(`${characters.join("")}…`).width > width) characters.pop();
  return `${characters.join("")}…`;
}

/** Queries on the left, keys on the right, a line between them as strong as the weight. */
class Lines extends Viewport {
  constructor(root, { onSelect, onPoint }) {
    super(root, "Attention as lines; arrow keys move through the tokens, left and right change the side");
    this.onSelect = onSelect;
    this.onPoint = onPoint;
    this.active = null; // { side: "query" | "key", index }
    this.pinned = null;
    this.scroller.addEventListener("pointermove", (event) => this.point(this.tokenAt(event)));
    this.scroller.addEventListener("pointerleave", () => this.point(this.pinned));
    this.scroller.addEventListener("click", (event) => this.pin(this.tokenAt(event)));
    this.scroller.addEventListener("keydown", (event) => this.key(event));
  }

  /** Args: data: `queries`, `keys` (labels), `weights` [T, S]. */
  show(data) {
    this.data = data;
    const limit = data.queries.length;
    if (this.pinned && this.pinned.index >= (this.pinned.side === "query" ? limit : data.keys.length)) this.pinned = null;
    this.active = this.pinned;
    this.layout();
  }

  layout() {
    if (this.data) this.resize(0, ROW * Math.max(this.data.queries.length, this.data.keys.length) + 12, 560);
  }

  get side() {
    return Math.min(150, this.width * 0.33);
  }

  tokenAt(event) {
    const [x, y] = this.place(event);
    const index = Math.floor((y + this.scroller.scrollTop - 6) / ROW);
    const side = x < this.width / 2 ? "query" : "key";
    const number = side === "query" ? this.data.queries.length : this.data.keys.length;
    return index >= 0 && index < number ? { side, index } : null;
  }

  point(token) {
    if (this.active?.side === token?.side && this.active?.index === token?.index) return;
    this.active = token;
    this.onPoint(token);
    this.redraw();
  }

  pin(token) {
    this.pinned = this.active = token;
    this.onPoint(token);
    if (token?.side === "query") this.onSelect(token.index);
    this.redraw();
  }

  key(event) {
    const moves = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    const from = this.active ?? { side: "query", index: event.key === "ArrowUp" ? 1 : -1 };
    if (event.key === "Escape") this.pin(null);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const side = event.key === "ArrowLeft" ? "query" : "key";
      const most = (side === "query" ? this.data.queries : this.data.keys).length - 1;
      this.pin({ side, index: Math.max(0, Math.min(from.index, most)) });
    } else if (event.key in moves) {
      const most = (from.side === "query" ? this.data.queries : this.data.keys).length - 1;
      this.pin({ side: from.side, index: Math.max(0, Math.min(most, from.index + moves[event.key])) });
      const top = this.pinned.index * ROW, seen = this.scroller.clientHeight;
      if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
      if (top + ROW + 12 > this.scroller.scrollTop + seen) this.scroller.scrollTop = top + ROW + 12 - seen;
    } else return;
    event.preventDefault();
  }

  draw(context, _, top) {
    const { queries, keys, weights } = this.data;
    const S = keys.length, side = this.side;
    const first = Math.max(0, Math.floor((top - 6) / ROW));
    const last = (number) => Math.min(number - 1, Math.ceil((top + this.height) / ROW));
    const y = (index) => 6 + ROW * (index + 0.5) - top;
    const active = this.active;
    context.strokeStyle = palette.accent;
    const line = (t, s, weight) => {
      context.globalAlpha = Math.min(1, 0.08 + 0.92 * weight ** 0.8);
      context.lineWidth = 0.6 + 3.4 * weight;
      const from = side + 4, to = this.width - side - 4, bend = (to - from) * 0.4;
      context.beginPath();
      context.moveTo(from, y(t));
      context.bezierCurveTo(from + bend, y(t), to - bend, y(s), to, y(s));
      context.stroke();
    };
    this.drawn = 0;
    const row = (t) => {
      for (let s = 0; s < S && this.drawn < MOST_LINES; s++) {
        if (weights[t * S + s] >= FAINTEST) {
          line(t, s, weights[t * S + s]);
          this.drawn++;
        }
      }
    };
    if (active?.side === "query") row(active.index);
    else if (active?.side === "key") {
      for (let t = 0; t < queries.length; t++) {
        if (weights[t * S + active.index] >= FAINTEST) line(t, active.index, weights[t * S + active.index]);
      }
    } else for (let t = first; t <= last(queries.length); t++) row(t);
    context.globalAlpha = 1;
    const column = (labels, x, align, shareOf, isActive) => {
      context.textAlign = align;
      for (let i = first; i <= last(labels.length); i++) {
        const share = shareOf(i);
        if (share !== null) {
          context.fillStyle = palette.of(share);
          context.fillRect(x, y(i) - ROW / 2 + 1, side, ROW - 2);
        }
        if (isActive(i)) {
          context.strokeStyle = palette.second;
          context.lineWidth = 2;
          context.strokeRect(x + 1, y(i) - ROW / 2 + 2, side - 2, ROW - 4);
        }
        context.fillStyle = share === null ? palette.ink : palette.inkOn(share);
        const text = fitted(context, labels[i], side - 12);
        context.fillText(text, align === "right" ? x + side - 6 : x + 6, y(i) + 1);
      }
    };
    const ofQuery = active?.side === "key" ? (t) => weights[t * S + active.index] : () => null;
    const ofKey = active?.side === "query" ? (s) => weights[active.index * S + s] : () => null;
    column(queries, 0, "right", ofQuery, (i) => active?.side === "query" && active.index === i);
    column(keys, this.width - side, "left", ofKey, (i) => active?.side === "key" && active.index === i);
  }
}

/** A heat map, a row for each query, with the numbers in it where there is room. */
class HeatMap extends Viewport {
  constructor(root, { onSelect, onPoint }) {
    super(root, "Heat map; arrow keys move from cell to cell");
    this.onSelect = onSelect;
    this.onPoint = onPoint;
    this.large = false;
    this.cursor = null; // [t, s]
    this.scroller.addEventListener("pointermove", (event) => this.move(this.cellAt(event)));
    this.scroller.addEventListener("pointerleave", () => this.move(null));
    this.scroller.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.onSelect(cell[0]);
    });
    this.scroller.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (event.key === "Enter" && this.cursor) this.onSelect(this.cursor[0]);
      else if (event.key in moves) {
        const [t, s] = this.cursor ?? [-moves[event.key][0], -moves[event.key][1]];
        const { queries, keys } = this.data;
        const within = (value, number) => Math.max(0, Math.min(number - 1, value));
        this.move([within(t + moves[event.key][0], queries.length), within(s + moves[event.key][1], keys.length)]);
        this.reveal();
      } else return;
      event.preventDefault();
    });
  }

  /** Args: data: `queries`, `keys`, `weights` [T, S], `visible(t, s)`; `root`: colours follow the square root. */
  show(data) {
    this.data = data;
    this.largest = data.weights.reduce((most, weight) => (weight > most ? weight : most), 1e-9);
    this.cursor = null;
    this.layout();
  }

  layout() {
    if (!this.data) return;
    const { queries, keys } = this.data;
    const context = this.canvas.getContext("2d");
    context.font = "13px system-ui, sans-serif";
    const widest = (labels) => Math.max(...labels.slice(0, 200).map((label) => context.measureText(label).width));
    const room = this.scroller.parentElement.clientWidth;
    this.before = Math.min(110, Math.max(28, widest(queries) + 10), room * 0.3);
    this.above = Math.min(90, Math.max(20, widest(keys) * 0.8 + 14));
    const fit = Math.floor((room - this.before - 20) / keys.length);
    this.cell = this.large ? 38 : Math.max(1, Math.min(46, fit));
    this.cellHeight = this.large || this.cell > 26 ? Math.min(this.cell, 26) : this.cell;
    this.resize(this.before + this.cell * keys.length, this.above + this.cellHeight * queries.length, 560);
  }

  cellAt(event) {
    const [x, y] = this.place(event);
    if (x < this.before || y < this.above) return null;
    const s = Math.floor((x - this.before + this.scroller.scrollLeft) / this.cell);
    const t = Math.floor((y - this.above + this.scroller.scrollTop) / this.cellHeight);
    return t < this.data.queries.length && s < this.data.keys.length ? [t, s] : null;
  }

  move(cell) {
    if (this.cursor?.join() === cell?.join()) return;
    this.cursor = cell;
    this.onPoint(cell);
    this.redraw();
  }

  reveal() {
    const [t, s] = this.cursor, { scroller } = this;
    const y = t * this.cellHeight, x = s * this.cell;
    scroller.scrollTop = Math.max(Math.min(scroller.scrollTop, y), y + this.cellHeight - (this.height - this.above));
    scroller.scrollLeft = Math.max(Math.min(scroller.scrollLeft, x), x + this.cell - (this.width - this.before));
  }

  draw(context, left, top) {
    const { queries, keys, weights, visible, root } = this.data;
    const { cell, cellHeight, before, above } = this;
    const S = keys.length;
    const from = [Math.floor(top / cellHeight), Math.floor(left / cell)];
    const to = [
      Math.min(queries.length - 1, Math.floor((top + this.height - above) / cellHeight)),
      Math.min(S - 1, Math.floor((left + this.width - before) / cell)),
    ];
    context.save();
    context.beginPath();
    context.rect(before, above, this.width - before, this.height - above);
    context.clip();
    context.textAlign = "center";
    context.font = "11px system-ui, sans-serif";
    for (let t = from[0]; t <= to[0]; t++) {
      for (let s = from[1]; s <= to[1]; s++) {
        const x = before + s * cell - left, y = above + t * cellHeight - top;
        const weight = weights[t * S + s];
        const share = root ? Math.sqrt(weight / this.largest) : weight / this.largest;
        const gap = cell > 6 ? 1 : 0;
        context.fillStyle = visible(t, s) ? palette.of(share) : palette.hidden;
        context.fillRect(x, y, cell - gap, cellHeight - gap);
        if (cell >= 30 && visible(t, s)) {
          context.fillStyle = palette.inkOn(share);
          context.fillText(weight.toFixed(2).replace("0.", "."), x + cell / 2, y + cellHeight / 2 + 0.5);
        }
      }
    }
    if (this.cursor) {
      const [t, s] = this.cursor;
      context.strokeStyle = palette.second;
      context.lineWidth = 2;
      context.strokeRect(before + s * cell - left, above + t * cellHeight - top, Math.max(cell - 1, 3), Math.max(cellHeight - 1, 3));
    }
    context.restore();
    context.font = "12px system-ui, sans-serif";
    const every = Math.ceil(13 / cellHeight), everyKey = Math.ceil(13 / cell);
    context.textAlign = "right";
    for (let t = from[0]; t <= to[0]; t++) {
      const y = above + (t + 0.5) * cellHeight - top, here = this.cursor?.[0] === t;
      if ((t % every && !here) || y < above) continue;
      context.fillStyle = here ? palette.second : palette.ink;
      context.fillText(fitted(context, queries[t], before - 8), before - 5, y);
    }
    context.textAlign = "left";
    for (let s = from[1]; s <= to[1]; s++) {
      const x = before + (s + 0.5) * cell - left, here = this.cursor?.[1] === s;
      if ((s % everyKey && !here) || x < before) continue;
      context.save();
      context.fillStyle = here ? palette.second : palette.ink;
      context.translate(x, above - 5);
      context.rotate(-Math.PI / 3.2);
      context.fillText(fitted(context, keys[s], (above - 8) / 0.83), 0, 0);
      context.restore();
    }
  }
}
