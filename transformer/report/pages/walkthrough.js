"use strict";
// The walkthrough: a small example, and what changes it.

const example = {
  tokens: ["the", "cat", "sat"],
  // What q · k is for d_k = 1; see the note beside the formula.
  luck: [[1.1, -0.4, 0.3], [0.2, 0.9, -0.7], [-0.5, 1.3, 0.6]],
  values: [[1, 0.2, -0.6, 0, 0.4, -0.2, 0.1, 0.7], [-0.4, 1, 0.3, -0.8, 0, 0.5, -0.1, 0.2], [0.1, -0.7, 0.9, 0.4, -0.5, 0, 0.8, -0.3]],
};

class Walkthrough {
  constructor() {
    this.inside = new InsideQuery(byId("inside-body"), { temperature: true });
    byId("query").replaceChildren(...example.tokens.map((token, t) => element("option", { value: t, selected: t === 2 }, token)));
    for (const id of ["query", "size", "causal"]) byId(id).addEventListener("input", () => this.show());
    this.inside.scaleBox.addEventListener("change", () => this.plotScale());
    byId("mask-value").addEventListener("input", showMask);
    byId("length").addEventListener("input", showLength);
    byId("groups").addEventListener("input", showGroups);
    byId("window").addEventListener("input", showWindow);
    byId("window-causal").addEventListener("input", showWindow);
    byId("theta").addEventListener("input", showRotary);
    redraws.add(showWindow);
    redraws.add(showGroups);
    this.show();
    for (const part of [showMask, showLength, showGroups, showWindow, showRotary]) part();
  }

  get size() {
    return 2 ** Number(byId("size").value);
  }

  problem(size) {
    const t = Number(byId("query").value), root = Math.sqrt(size);
    return {
      labels: example.tokens,
      products: example.luck[t].map((luck) => luck * root),
      visible: example.tokens.map((_, s) => !byId("causal").checked || s <= t),
      values: example.values,
      scale: 1 / root,
      scaleText: `divide by √${size} = ${shown(root)}`,
      ownName: "output as given",
    };
  }

  show() {
    byId("size-shown").textContent = this.size;
    this.inside.show(this.problem(this.size));
    this.plotScale();
  }

  plotScale() {
    const reaction = (size, scaled) => {
      const { products, visible, scale } = this.problem(size);
      return weightsOf(products, null, visible, { scale: scaled ? scale : 1 }).reduce((sum, w) => sum + w * (1 - w), 0);
    };
    const steps = Array.from({ length: 41 }, (_, i) => i / 4);
    byId("scale-plot").replaceChildren(plot({
      x: steps, lines: [["with the scale", steps.map((x) => reaction(2 ** x, true))], ["without", steps.map((x) => reaction(2 ** x, false))]],
      low: 0, high: 0.7, xLabel: (x) => String(2 ** x), ticks: [0, 2, 4, 6, 8, 10], here: Math.log2(this.size),
    }));
  }
}

/** A small line plot: `x`, `lines` ([name, values]), `ticks` on the x axis, and where the reader is. */
function plot({ x, lines, low, high, xLabel, ticks, here = null }) {
  const width = 360, height = 180, left = 34, right = 10, top = 10, bottom = 24;
  const make = (name, properties, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const first = x[0], last = x[x.length - 1];
  const toX = (value) => left + ((value - first) / (last - first)) * (width - left - right);
  const toY = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": lines.map(([name]) => name).join(" and ") });
  for (const tick of ticks) {
    svg.append(make("text", { x: toX(tick), y: height - 6, "text-anchor": tick === last ? "end" : "middle" }, xLabel(tick)));
  }
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(make("line", { class: "axis", x1: left, x2: width - right, y1: toY(value), y2: toY(value) }));
    svg.append(make("text", { x: left - 4, y: toY(value) + 4, "text-anchor": "end" }, shown(value, 2)));
  }
  if (here !== null) svg.append(make("line", { class: "here", x1: toX(here), x2: toX(here), y1: top, y2: height - bottom }));
  lines.forEach(([name, values], i) => {
    const kind = i ? "second" : "first";
    svg.append(make("polyline", { class: kind, points: values.map((value, j) => `${toX(x[j]).toFixed(1)},${toY(value).toFixed(1)}`).join(" ") }));
    if (lines.length > 1) svg.append(make("text", { class: kind, x: width - right - 4, y: top + 14 + 14 * i, "text-anchor": "end" }, name));
  });
  return svg;
}

/** The softmax as it is often written: the mask is added, and float16 holds all that stands in between. */
function addedInHalf(logits, visible, mask) {
  const masked = logits.map((x, s) => toHalf(toHalf(x) + (visible[s] ? 0 : toHalf(mask))));
  const highest = Math.max(...masked);
  const powers = masked.map((x) => toHalf(Math.exp(toHalf(x - highest))));
  const sum = powers.reduce((a, b) => toHalf(a + b), 0);
  return { masked, weights: powers.map((power) => toHalf(power / sum)) };
}

function showMask() {
  const mask = Number(byId("mask-value").value);
  const logits = [1.5, 0.5, -1];
  const row = (title, values, digits = 3) => element("tr", {}, element("th", { scope: "row" }, title),
    ...values.map((value) => element("td", {}, typeof value === "string" ? value : shown(value, digits))));
  const some = addedInHalf(logits, [true, true, false], mask), none = addedInHalf(logits, [false, false, false], mask);
  const ours = weightsOf(logits, null, [0, 0, 0], { scale: 1 });
  byId("mask-table").replaceChildren(
    row("the mask in float16", ["", "", toHalf(mask)], 0),
    row("logits, key 3 masked", some.masked, 1), row("their softmax", some.weights),
    row("logits, all masked", none.masked, 1), row("their softmax", none.weights),
    row("all masked, as here", [...ours]),
  );
}

function inBytes(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${(bytes / 1024 ** unit).toLocaleString("en", { maximumFractionDigits: 1 })} ${units[unit]}`;
}

function showLength() {
  const T = 2 ** Number(byId("length").value), H = 8, K = 64;
  byId("length-shown").textContent = T.toLocaleString("en");
  const row = (name, value) => element("tr", {}, element("th", { scope: "row" }, name), element("td", { className: "number" }, value));
  byId("length-table").replaceChildren(
    row("logits of a head, T × T", (T * T).toLocaleString("en")),
    row("of 8 heads in float32", inBytes(4 * H * T * T)),
    row("queries, keys and values of 8 heads of size 64 in float32", inBytes(4 * 3 * H * T * K)),
    row("multiply-adds for logits and output", `${(2 * H * T * T * K).toExponential(1)}`),
  );
}

function showGroups() {
  const groups = Number(byId("groups").value), heads = 8;
  const cells = (number, name, groupOf) => Array.from({ length: number }, (_, i) => {
    const share = groups === 1 ? 0.3 : 0.12 + (0.76 * groupOf(i)) / (groups - 1);
    return element("span", { style: `background:${palette.of(share)};color:${palette.inkOn(share)}` }, `${name}${i + 1}`);
  });
  byId("query-heads").replaceChildren(...cells(heads, "q", (i) => Math.floor(i / (heads / groups))));
  byId("key-heads").replaceChildren(...cells(groups, "k,v ", (i) => i));
  byId("groups-note").textContent = `Of 2,048 tokens a layer keeps ${inBytes(2 * 2 * groups * 64 * 2048)} in bfloat16, heads of size 64.`;
}

function showWindow() {
  const window = Number(byId("window").value), causal = byId("window-causal").checked, T = 16;
  byId("window-shown").textContent = window;
  const seen = new Uint8Array(T * T);
  for (let t = 0; t < T; t++) for (let s = 0; s < T; s++) seen[t * T + s] = Math.abs(t - s) < window && (!causal || s <= t) ? 1 : 0;
  paint(byId("window-map"), { rows: T, columns: T, largest: Float32Array.from(seen, (one) => 0.6 * one), seen }, 1);
  const number = seen.reduce((a, b) => a + b, 0);
  byId("window-note").textContent = `${number} of ${T * T} pairs are seen.`;
}

function showRotary() {
  const theta = Number(byId("theta").value), pairs = 32;
  const frequencies = Array.from({ length: pairs }, (_, i) => theta ** (-i / pairs));
  const distances = Array.from({ length: 257 }, (_, i) => i);
  const values = distances.map((distance) => frequencies.reduce((sum, f) => sum + Math.cos(distance * f), 0) / pairs);
  byId("rotary-plot").replaceChildren(plot({
    x: distances, lines: [["dot product", values]], low: -0.5, high: 1, xLabel: String, ticks: [0, 64, 128, 192, 256],
  }));
}

window.walkthrough = new Walkthrough();
