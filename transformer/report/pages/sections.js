"use strict";
// The sections beside those of heads: tokens with what was predicted, word alignment, experts, the image.

const SHOWN_TOKENS = 600;

/** Tokens as buttons, with the probability of each that was predicted. */
function tokenSection(onChoose) {
  const rows = [];
  for (const [name, side] of Object.entries(pageData.sides)) {
    if (pageData.image) continue;
    const pieces = side.written ? side.written.pieces : side.pieces;
    const special = side.written ? side.written.special : side.special;
    const title = side.written
      ? "What the decoder writes, piece by piece, and how likely each was to it"
      : name === "decoder" ? "The decoder read" : "The encoder read";
    const chips = pieces.slice(0, SHOWN_TOKENS).map((text, place) => chip(name, side, text, special[place], place, onChoose));
    const left = pieces.length - chips.length;
    rows.push(
      element("div", { className: "row-title" }, title + (left > 0 ? `; the first ${chips.length}, ${left} more are left out here` : "")),
      element("div", { className: "chips", "data-side": name }, ...chips),
    );
  }
  const { decoder } = pageData.sides;
  const next = decoder && !decoder.written ? decoder.predictions[decoder.pieces.length - 1] : null;
  for (const [title, found] of [["Likely to come next", next?.alternatives ?? []], ["The whole input is likely to be", pageData.outcomes]]) {
    if (found.length) rows.push(element("div", { className: "row-title" }, title), element("div", { className: "chips" }, ...likely(found)));
  }
  byId("tokens-body").replaceChildren(...rows);
  byId("tokens-note").textContent = Object.values(pageData.sides).some((side) => Object.keys(side.predictions).length)
    ? "Choose a token to see what else the model held for likely there. ▁ is a space." : "▁ is a space.";
  if (pageData.image) byId("tokens-note").textContent = "";
}

/** Texts with their probabilities. */
function likely(found) {
  return found.map(([text, probability]) => element("span", { className: "chip" }, ...chipParts(text, probability)));
}

function chipParts(text, probability, label = "") {
  return [
    element("bdi", {}, text),
    element("span", { className: "bar", "aria-hidden": "true" }, element("i", { style: `width:${100 * probability}%` })),
    element("small", {}, element("bdi", {}, label), ` ${percent(probability)}`),
  ];
}

function chip(name, side, text, special, place, onChoose) {
  // What is predicted at a place of a decoder that only reads is the token after it.
  const at = side.written || name === "encoder" ? place : place - 1;
  const prediction = side.predictions[at];
  const probability = prediction && (side.written || name === "encoder" || at >= 0) ? prediction.probability : null;
  const parts = probability === null ? [element("bdi", {}, text)] : chipParts(text, probability, name === "encoder" ? prediction.text : "");
  const button = element("button", { type: "button", className: special ? "chip special" : "chip" }, ...parts);
  button.addEventListener("click", () => {
    onChoose(name, place);
    const target = byId("alternatives");
    if (!prediction) {
      target.textContent = "";
      return;
    }
    const what = name === "encoder" ? `At “${text}” the model expected:` : "Here the model expected:";
    target.replaceChildren(what, element("span", { className: "chips" }, ...likely(prediction.alternatives)));
  });
  return button;
}

/** Texts of the words of pieces. */
function wordsOf({ pieces, words }) {
  const texts = [];
  pieces.forEach((piece, place) => { texts[words[place]] = (texts[words[place]] ?? "") + piece; });
  return texts.map((text) => text.replace(/^▁/, "") || "▁");
}

class Alignment {
  constructor(heads) {
    this.heads = heads;
    this.stack = heads.stack("cross");
    if (!this.stack || !pageData.sides.decoder.written) return;
    byId("alignment").hidden = false;
    this.written = pageData.sides.decoder.written;
    this.read = pageData.sides.encoder;
    this.map = new HeatMap(byId("alignment-map"), { onSelect: () => {}, onPoint: (cell) => this.point(cell) });
    this.boxes = [];
    const picks = byId("picks");
    picks.style.gridTemplateColumns = `auto repeat(${this.stack.heads}, 1.6rem)`;
    const cells = [element("span"), ...Array.from({ length: this.stack.heads }, (_, head) => element("span", { style: "text-align:center" }, String(head + 1)))];
    const preferred = Math.max(0, this.stack.layers.length - 2); // Garg et al. 2019: the last but one
    this.stack.layers.forEach((_, layer) => {
      cells.push(element("span", {}, `layer ${layer + 1}`));
      for (let head = 0; head < this.stack.heads; head++) {
        const box = element("input", { type: "checkbox", checked: layer === preferred, "aria-label": `layer ${layer + 1}, head ${head + 1}` });
        box.addEventListener("change", () => this.update());
        this.boxes.push({ layer, head, box });
        cells.push(element("label", {}, box));
      }
    });
    picks.replaceChildren(...cells);
    const set = (name, wanted) => {
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", () => { for (const one of this.boxes) one.box.checked = wanted(one); this.update(); });
      return button;
    };
    const diagonal = this.stack.layers.flatMap((layer) => layer.measures.diagonality ?? []);
    const best = [...diagonal].sort((a, b) => b - a)[Math.min(3, diagonal.length - 1)];
    byId("pick-buttons").replaceChildren(
      set("all", () => true), set("none", () => false), set("last layer but one", ({ layer }) => layer === preferred),
      set("four most diagonal", ({ layer, head }) => diagonal[layer * this.stack.heads + head] >= best),
    );
    this.update();
  }

  /** [words written, words read]. */
  matrix() {
    const chosen = this.boxes.filter(({ box }) => box.checked);
    const { T, S } = this.stack;
    const rows = Math.max(...this.written.words) + 1, columns = Math.max(...this.read.words) + 1;
    const sums = new Float32Array(rows * columns), counts = new Float32Array(rows);
    for (const word of this.written.words) counts[word]++;
    for (const { layer, head } of chosen) {
      const weights = this.heads.weights("cross", layer, head);
      for (let t = 0; t < T; t++) {
        const word = this.written.words[t];
        for (let s = 0; s < S; s++) sums[word * columns + this.read.words[s]] += weights[t * S + s] / counts[word] / chosen.length;
      }
    }
    return { rows, columns, weights: sums };
  }

  update() {
    const { rows, columns, weights } = this.matrix();
    this.data = { queries: wordsOf(this.written), keys: wordsOf(this.read), weights, visible: () => true };
    this.map.show(this.data);
    const links = Array.from({ length: Math.min(rows, 60) }, (_, t) => {
      const row = weights.subarray(t * columns, (t + 1) * columns);
      const best = row.indexOf(Math.max(...row));
      return element("tr", {}, element("td", { dir: "auto" }, this.data.queries[t]), element("td", {}, "←"),
        element("td", { dir: "auto" }, this.data.keys[best]), element("td", { className: "number" }, shown(row[best])));
    });
    byId("links").replaceChildren(element("table", { className: "plain" }, element("tbody", {}, ...links)));
  }

  point(cell) {
    const { queries, keys, weights } = this.data;
    byId("alignment-pointed").textContent = cell
      ? `“${queries[cell[0]]}” looks at “${keys[cell[1]]}” with ${shown(weights[cell[0] * keys.length + cell[1]], 3)}` : "";
  }
}

const SHOWN_EXPERT_TOKENS = 128;

function expertSection() {
  const tables = [];
  const all = Object.values(pageData.sides).flatMap(({ experts }) => experts.filter(Boolean));
  const last = Math.max(1, ...all.flatMap(({ numbers }) => numbers.flat()));
  for (const [name, side] of Object.entries(pageData.sides)) {
    if (!side.experts.some(Boolean)) continue;
    byId("experts").hidden = false;
    const tokens = side.pieces.slice(0, SHOWN_EXPERT_TOKENS);
    const head = element("tr", {}, element("th", {}, name), ...tokens.map((text) => element("th", { scope: "col" }, element("bdi", {}, text))));
    const rows = side.experts.flatMap((layer, number) => layer ? [element("tr", {},
      element("th", { scope: "row" }, `layer ${number + 1}`),
      ...tokens.map((_, t) => {
        const cell = element("td", { title: layer.numbers[t].map((expert, j) => `expert ${expert + 1}: ${shown(layer.weights[t][j])}`).join(", ") },
          layer.numbers[t].map((expert) => expert + 1).join(" "), element("br"), element("small", {}, shown(layer.weights[t][0])));
        cell.dataset.share = layer.numbers[t][0] / last;
        return cell;
      }))] : []);
    tables.push(element("table", { className: "experts" }, element("thead", {}, head), element("tbody", {}, ...rows)));
    const left = side.pieces.length - tokens.length;
    if (left > 0) byId("experts-note").textContent += `Of the ${name} the first ${tokens.length} tokens; ${left} more are left out here. `;
  }
  const color = () => document.querySelectorAll(".experts td").forEach((cell) => {
    const share = 0.08 + 0.84 * Number(cell.dataset.share);
    cell.style.background = palette.of(share);
    cell.style.color = palette.inkOn(share);
  });
  byId("experts-body").replaceChildren(...tables);
  redraws.add(color);
  color();
}

/** The image, and over it what one query looks at. Choosing a patch chooses it as the query. */
class Picture {
  constructor({ onSelect, onPoint }) {
    const { width, height } = pageData.image;
    this.image = new Image();
    this.image.addEventListener("load", () => this.redraw());
    this.image.src = pageData.image.url;
    this.factor = Math.max(1, Math.round(480 / Math.max(width, height)));
    const canvas = () => element("canvas", { width: width * this.factor, height: height * this.factor, tabIndex: 0, role: "img" });
    this.plain = canvas();
    this.over = canvas();
    byId("picture").replaceChildren(this.plain, this.over);
    for (const each of [this.plain, this.over]) {
      each.addEventListener("click", (event) => onSelect(pageData.image.firstPatch + this.patchAt(event, each)));
      each.addEventListener("pointermove", (event) => onPoint(pageData.image.firstPatch + this.patchAt(event, each)));
      each.addEventListener("pointerleave", () => onPoint(null));
      each.addEventListener("keydown", (event) => {
        const { columns, rows, firstPatch } = pageData.image;
        const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
        if (move === undefined) return;
        const patch = Math.max(0, Math.min(rows * columns - 1, Math.max(this.query - firstPatch, 0) + move));
        onSelect(firstPatch + patch);
        event.preventDefault();
      });
    }
    redraws.add(() => this.redraw());
  }

  patchAt(event, canvas) {
    const { rows, columns } = pageData.image;
    const box = canvas.getBoundingClientRect();
    const at = (share, number) => Math.max(0, Math.min(number - 1, Math.floor(share * number)));
    return at((event.clientY - box.top) / box.height, rows) * columns + at((event.clientX - box.left) / box.width, columns);
  }

  /** Args: weights of one query over all keys; query: its place, or null for the mean of all. */
  show(weights, query, text) {
    this.weights = weights.subarray(pageData.image.firstPatch);
    this.query = query;
    this.over.setAttribute("aria-label", text);
    this.plain.setAttribute("aria-label", "the image as the model was given it; arrow keys choose a patch");
    this.redraw();
  }

  redraw() {
    if (!this.weights || !this.image.complete) return;
    const { rows, columns, firstPatch } = pageData.image;
    const largest = Math.max(1e-9, ...this.weights);
    for (const canvas of [this.plain, this.over]) {
      const context = canvas.getContext("2d");
      const w = canvas.width / columns, h = canvas.height / rows;
      context.imageSmoothingEnabled = false;
      context.globalAlpha = 1;
      context.filter = "none";
      context.drawImage(this.image, 0, 0, canvas.width, canvas.height);
      if (canvas === this.over) {
        this.weights.forEach((weight, patch) => {
          const share = weight / largest;
          context.globalAlpha = 0.35 + 0.45 * share;
          context.fillStyle = heat(share);
          context.fillRect((patch % columns) * w, Math.floor(patch / columns) * h, w, h);
        });
      }
      context.globalAlpha = 1;
      if (this.query !== null && this.query >= firstPatch) {
        const patch = this.query - firstPatch;
        context.strokeStyle = "#39c0ff";
        context.lineWidth = 3;
        context.strokeRect((patch % columns) * w + 1.5, Math.floor(patch / columns) * h + 1.5, w - 3, h - 3);
      }
    }
  }
}

const heatStops = ["#000004", "#3b0f70", "#8c2981", "#de4968", "#fe9f6d", "#fcfdbf"].map(parseColor);

/** Over an image: from black to light yellow, also for those who see no red or green. Colours of "magma", van der Walt and Smith. */
function heat(share) {
  const place = share * (heatStops.length - 1), before = Math.min(Math.floor(place), heatStops.length - 2);
  const part = (c) => Math.round(heatStops[before][c] + (place - before) * (heatStops[before + 1][c] - heatStops[before][c]));
  return `rgb(${part(0)},${part(1)},${part(2)})`;
}
