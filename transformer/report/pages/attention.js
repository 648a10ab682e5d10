"use strict";
// The attention page: which head and which query are looked at, and all that follows from it.

const MEASURES = {
  entropy: ["entropy", "The entropy of a query's weights, in nats: low ones look at few keys."],
  distance: ["mean distance", pageData.image ? "How far away, in patches, the keys are that patches look at." : "How far away, in tokens, the keys are that a query looks at."],
  diagonality: ["diagonality", "Near 1 where queries look along a rising line: at themselves, at a neighbour, at the word they translate."],
  special: ["on special tokens", "The weight on tokens that are there for the model only, which heads often use to do nothing."],
};

class AttentionPage {
  constructor() {
    this.heads = new Heads();
    const stack = pageData.stacks.at(-1).name; // of a translation that from language to language
    const { T, name } = pageData.stacks.at(-1);
    this.state = { stack, layer: 0, head: 0, query: name === "decoder" ? T - 1 : Math.floor(T / 2) };
    this.filtered = { hide: false, renormalise: false };
    byId("root").checked = Math.max(this.stack.T, this.stack.S) > THUMBNAIL;
    this.inside = new InsideQuery(byId("inside-body"));
    const views = { onSelect: (t) => this.chooseQuery(this.rows[t]), onPoint: () => {} };
    this.lines = new Lines(byId("lines"), { ...views, onPoint: (token) => this.pointLine(token) });
    this.map = new HeatMap(byId("map"), { ...views, onPoint: (cell) => this.pointCell(cell) });
    this.average = Boolean(pageData.image && !pageData.image.firstPatch); // until a patch is chosen
    if (pageData.image) this.openImage();
    this.header();
    tokenSection((side, place) => this.chooseToken(side, place));
    this.buildControls();
    this.describeOverview();
    this.buildGrid();
    this.choose(this.mostDiagonal());
    this.alignment = new Alignment(this.heads);
    expertSection();
    this.contents();
    redraws.add(() => this.buildGrid());
  }

  get stack() {
    return this.heads.stack(this.state.stack);
  }

  header() {
    byId("title").textContent = pageData.image ? `Attention over ${pageData.input.split("/").at(-1)}` : `“${shortened(pageData.input, 160)}”`;
    const facts = { ...pageData.facts };
    if (pageData.output && pageData.output !== pageData.input) facts.output = shortened(pageData.output, 200);
    byId("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => element("li", {}, `${name} `, element("b", { dir: "auto" }, value))));
    byId("about-difference").textContent =
      "The model's own code ran this input once more, in float32 with the attention that builds the whole matrix, whatever " +
      "implementation it was trained with. Stored here are queries, keys and values of each head, in float16 (in float32 for " +
      "layers where that was not exact enough), with masks and biases. The page computes all weights from them; they are at most " +
      `${pageData.difference.toExponential(1)} away from those of the model.`;
  }

  contents() {
    const sections = [...document.querySelectorAll("section[data-title]")].filter((section) => !section.hidden);
    byId("contents").replaceChildren(...sections.map((section) => element("a", { href: `#${section.id}` }, section.dataset.title)));
  }

  buildControls() {
    byId("stack-select").replaceChildren(...pageData.stacks.map(({ name, title }) => element("option", { value: name }, title)));
    byId("stack-select").addEventListener("change", (event) => this.choose({ stack: event.target.value, layer: 0, head: 0 }));
    const names = Object.keys(pageData.stacks[0].layers[0].measures);
    byId("measure").replaceChildren(...names.map((name) => element("option", { value: name }, MEASURES[name][0])));
    byId("measure").addEventListener("change", () => this.buildGrid());
    byId("order").addEventListener("change", () => this.buildGrid());
    byId("layer-select").addEventListener("change", (event) => this.choose({ layer: Number(event.target.value) }));
    byId("head-select").addEventListener("change", (event) => {
      const { value } = event.target;
      this.choose({ head: value === "mean" || value === "rollout" ? value : Number(value) });
    });
    for (const name of ["hide", "renormalise"]) {
      byId(name).addEventListener("change", () => { this.filtered[name] = byId(name).checked; this.showHead(); });
    }
    byId("root").addEventListener("change", () => this.showHead());
    byId("zoom").addEventListener("click", () => {
      this.map.large = !this.map.large;
      byId("zoom").setAttribute("aria-pressed", this.map.large);
      this.map.layout();
    });
    byId("query-select").addEventListener("change", (event) => this.chooseQuery(Number(event.target.value)));
    byId("query-before").addEventListener("click", () => this.chooseQuery(Math.max(0, this.state.query - 1)));
    byId("query-after").addEventListener("click", () => this.chooseQuery(Math.min(this.stack.T - 1, this.state.query + 1)));
    byId("grid").addEventListener("keydown", (event) => this.gridKey(event));
  }

  openImage() {
    byId("lines-figure").hidden = true;
    byId("picture-figure").hidden = false;
    this.picture = new Picture({
      onSelect: (t) => { this.average = false; this.chooseQuery(t); },
      onPoint: (t) => { byId("pointed").textContent = t === null ? "" : this.sentence(this.state.query, t); },
    });
    byId("all-patches").addEventListener("click", () => { this.average = !this.average; this.showPicture(); });
  }

  mostDiagonal() {
    let best = { layer: 0, head: 0, value: -Infinity };
    this.stack.layers.forEach(({ measures }, layer) => (measures.diagonality ?? measures.entropy.map((x) => -x)).forEach((value, head) => {
      if (value > best.value) best = { layer, head, value };
    }));
    return best;
  }

  // The overview

  describeOverview() {
    const image = pageData.image;
    const sentences = [image
      ? `A row for each layer, a column for each head: over the patches of the image, what ${image.firstPatch ? "the class token looks" : "patches look"} at.`
      : "A row for each layer, a column for each head. In each map a row is a query, in cross-attention the token that is written, and a column a key; grey is hidden by the mask."];
    const { heads, groups } = pageData.stacks[0];
    if (groups < heads) sentences.push(`Every ${heads / groups} heads share their keys and values.`);
    const largest = Math.max(...pageData.stacks.flatMap(({ T, S }) => [T, S]));
    if (largest > THUMBNAIL && !image) {
      sentences.push(`The maps are up to ${largest} by ${largest}: of those larger than ${THUMBNAIL} each cell here is the largest weight of a part.`);
    }
    byId("overview-note").textContent = sentences.join(" ");
  }

  buildGrid() {
    const measure = byId("measure").value, order = byId("order").value;
    byId("measure-note").textContent = MEASURES[measure][1];
    this.thumbs = [];
    byId("grid").replaceChildren(...pageData.stacks.map((stack) => this.buildStack(stack, measure, order)));
    this.paintWhenSeen();
    this.markThumb();
  }

  buildStack({ name, title, layers, heads }, measure, order) {
    const all = layers.flatMap((layer, number) => layer.measures[measure].map((value, head) => ({ stack: name, layer: number, head, value })));
    if (order !== "layers") all.sort((a, b) => (order === "down" ? b.value - a.value : a.value - b.value));
    const grid = element("div", { className: "overview" });
    grid.style.gridTemplateColumns = order === "layers" ? `max-content repeat(${heads}, minmax(2.7rem, 5rem))` : "repeat(auto-fill, minmax(4.4rem, 1fr))";
    for (const one of all) {
      if (order === "layers" && one.head === 0) grid.append(element("span", { className: "layer" }, String(one.layer + 1)));
      const canvas = element("canvas", { width: 1, height: 1 });
      const text = order === "layers" ? shown(one.value) : `${one.layer + 1}·${one.head + 1}  ${shown(one.value)}`;
      const called = `${title}, layer ${one.layer + 1}, head ${one.head + 1}`;
      const button = element("button", {
        type: "button", className: "thumb", tabIndex: -1, title: called, "aria-label": `${called}: ${MEASURES[measure][0]} ${shown(one.value)}`,
      }, canvas, element("span", {}, text));
      button.addEventListener("click", () => {
        this.choose(one);
        const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
        byId("head").scrollIntoView({ behavior: still ? "auto" : "smooth", block: "nearest" });
      });
      grid.append(button);
      this.thumbs.push({ ...one, button, canvas });
    }
    return element("div", { className: "stack" }, element("h3", {}, title), grid);
  }

  /** Maps are computed when they come into sight. */
  paintWhenSeen() {
    this.observer?.disconnect();
    const waiting = [], thumbs = this.thumbs;
    let busy = false;
    const next = () => {
      const thumb = waiting.shift();
      busy = thumb !== undefined && thumbs === this.thumbs;
      if (!busy) return;
      const { stack, layer, head, canvas } = thumb;
      const steps = pageData.image ? this.heads.patches(stack, layer, head) : this.heads.thumbnail(stack, layer, head);
      inSlices(steps, (map) => { paint(canvas, map); next(); });
    };
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        this.observer.unobserve(entry.target);
        waiting.push(thumbs.find(({ button }) => button === entry.target));
      }
      if (!busy) next();
    }, { rootMargin: "200px" });
    for (const { button } of thumbs) this.observer.observe(button);
  }

  markThumb() {
    for (const { button, stack, layer, head } of this.thumbs) {
      const here = stack === this.state.stack && layer === this.state.layer && head === this.state.head;
      button.setAttribute("aria-current", here);
      button.tabIndex = here ? 0 : -1;
    }
    if (!this.thumbs.some(({ button }) => button.tabIndex === 0)) this.thumbs[0].button.tabIndex = 0;
  }

  /** Arrow keys go to the nearest map that way. */
  gridKey(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way) return;
    event.preventDefault();
    const middle = ({ left, top, width, height }) => [left + width / 2, top + height / 2];
    const [x, y] = middle(document.activeElement.getBoundingClientRect());
    let nearest = null;
    for (const { button } of this.thumbs) {
      const [toX, toY] = middle(button.getBoundingClientRect());
      const along = (toX - x) * way[0] + (toY - y) * way[1], aside = Math.abs((toX - x) * way[1]) + Math.abs((toY - y) * way[0]);
      if (along > 4 && (!nearest || along + 3 * aside < nearest.distance)) nearest = { button, distance: along + 3 * aside };
    }
    nearest?.button.focus();
  }

  // One head

  /** Args: change: any of `stack`, `layer` and `head`, a number or "mean" or "rollout". */
  choose(change) {
    const { stack = this.state.stack, layer = this.state.layer, head = this.state.head } = change;
    const entered = stack !== this.entered;
    Object.assign(this.state, { stack, layer, head });
    if (entered) this.enterStack();
    byId("layer-select").value = layer;
    byId("head-select").value = head;
    this.markThumb();
    const names = { mean: "the mean of its heads", rollout: "rollout" };
    byId("head-title").textContent = `${this.stack.title}, layer ${layer + 1}, ${names[head] ?? `head ${head + 1}`}`;
    byId("head-note").textContent = this.describeHead();
    if (head === "rollout") {
      byId("head-note").textContent = "computing ...";
      this.heads.rollout(this.state.stack, layer, (weights) => {
        if (this.state.stack !== stack || this.state.layer !== layer || this.state.head !== head) return;
        byId("head-note").textContent = this.describeHead();
        this.setWeights(weights);
      });
    } else this.setWeights(this.heads.weights(this.state.stack, layer, head));
  }

  /** What is there to choose in another stack. */
  enterStack() {
    this.entered = this.state.stack;
    const { name, layers, heads, T } = this.stack;
    byId("stack-select").value = name;
    byId("layer-select").replaceChildren(...layers.map((_, layer) => element("option", { value: layer }, String(layer + 1))));
    const options = [...Array(heads).keys()].map((head) => element("option", { value: head }, String(head + 1)));
    options.push(element("option", { value: "mean" }, "mean of all heads"));
    if (name !== "cross") options.push(element("option", { value: "rollout" }, "rollout up to this layer"));
    byId("head-select").replaceChildren(...options);
    this.state.query = Math.min(this.state.query, T - 1);
    byId("query-select").replaceChildren(...this.queryLabels().map((label, t) => element("option", { value: t }, `${t + 1} ${label}`)));
  }

  describeHead() {
    const { layer, head } = this.state;
    const { heads, groups, S, layers } = this.stack;
    const stored = layers[layer];
    if (head === "rollout") return "How much of each token of the input is in each place after this layer, if all heads count alike and half goes around them.";
    const parts = [];
    if (head !== "mean") {
      for (const [name, values] of Object.entries(stored.measures)) parts.push(`${MEASURES[name][0]} ${shown(values[head])}`);
      if (groups < heads) {
        const size = heads / groups, first = Math.floor(head / size) * size;
        parts.push(groups === 1 ? "one set of keys and values for all heads" : `keys and values shared by heads ${first + 1} to ${first + size}`);
      }
    }
    if (stored.window !== null) parts.push(`a window: no key further away than ${stored.window - 1}${stored.window > S ? ", which no key is here" : ""}`);
    if (stored.softcap !== null) parts.push(`logits capped at ${shown(stored.softcap, 0)}`);
    if (stored.bias !== null) parts.push("a bias for each distance");
    return parts.join("; ");
  }

  setWeights(weights) {
    this.weights = weights;
    this.showHead();
    this.showQuery();
  }

  queryLabels() {
    const side = pageData.sides[this.stack.querySide];
    return this.state.stack === "cross" ? side.written.pieces : side.pieces;
  }

  special(which) {
    const { querySide, keySide } = this.stack;
    const side = pageData.sides[which === "query" ? querySide : keySide];
    return which === "query" && this.state.stack === "cross" ? side.written.special : side.special;
  }

  /** Show the head with or without special tokens. `rows` and `columns` are the places that are left. */
  showHead() {
    if (!this.weights) return;
    const { T, S, parts, keySide } = this.stack;
    const { layer } = this.state;
    const { hide, renormalise } = this.filtered;
    const left = (number, special) => [...Array(number).keys()].filter((place) => !hide || !special[place]);
    this.rows = left(T, this.special("query"));
    this.columns = left(S, this.special("key"));
    const weights = new Float32Array(this.rows.length * this.columns.length);
    this.rows.forEach((t, i) => {
      let sum = 0;
      for (const s of this.columns) sum += this.weights[t * S + s];
      const factor = hide && renormalise && sum > 0 ? 1 / sum : 1;
      this.columns.forEach((s, j) => { weights[i * this.columns.length + j] = factor * this.weights[t * S + s]; });
    });
    const labels = this.queryLabels(), keys = pageData.sides[keySide].pieces;
    this.data = {
      queries: this.rows.map((t) => labels[t]),
      keys: this.columns.map((s) => keys[s]),
      weights,
      root: byId("root").checked,
      visible: this.state.head === "rollout" ? (i, j) => weights[i * this.columns.length + j] > 0 : (i, j) => parts[layer].visible(this.rows[i], this.columns[j]),
    };
    byId("renormalise").disabled = !hide;
    byId("hide-label").hidden = byId("renormalise-label").hidden = ![...this.special("query"), ...this.special("key")].some(Boolean);
    const number = S - this.columns.length;
    const said = hide ? ` ${number} special ${number === 1 ? "token is" : "tokens are"} hidden; rows ${renormalise ? "were made to add up to 1 again" : "add up to less than 1"}.` : "";
    const cross = this.state.stack === "cross" ? " On the left the token that is being written." : "";
    byId("lines-caption").textContent = `Queries on the left, keys on the right; weights below ${FAINTEST} are left out.${cross}`;
    byId("map-caption").textContent = `Rows are queries, columns keys; the darkest is ${shown(weights.reduce((a, b) => Math.max(a, b), 0))}.${said}`.replace("darkest", palette.dark ? "brightest" : "darkest")
      + (this.data.root ? " Colours follow the square root of the weights." : "");
    if (!pageData.image) this.lines.show(this.data);
    this.map.show(this.data);
    this.showPicture();
  }

  showPicture() {
    if (!this.picture) return;
    const { S, T } = this.stack, { query } = this.state;
    let row = this.weights.subarray(query * S, (query + 1) * S);
    if (this.average) {
      const first = pageData.image.firstPatch;
      row = new Float32Array(S);
      this.weights.forEach((weight, i) => { if (i >= first * S) row[i % S] += weight / (T - first); });
    }
    byId("all-patches").setAttribute("aria-pressed", Boolean(this.average));
    const who = this.average ? "all patches on average look" : `${this.queryLabels()[query]} looks`;
    byId("picture-caption").textContent = `Left the image as the model was given it, right what ${who} at: bright is much. Choose a patch as the query.`;
    this.picture.show(row, this.average ? null : query, `what ${who} at`);
  }

  pointLine(token) {
    const { queries, keys, weights } = this.data;
    if (!token) { byId("pointed").textContent = ""; return; }
    const of = token.side === "query" ? (s) => weights[token.index * keys.length + s] : (t) => weights[t * keys.length + token.index];
    const others = token.side === "query" ? keys : queries;
    const best = [...others.keys()].sort((a, b) => of(b) - of(a)).slice(0, 4).map((i) => `${others[i]} ${shown(of(i))}`);
    byId("pointed").textContent = token.side === "query"
      ? `“${queries[token.index]}” looks at ${best.join(", ")}` : `“${keys[token.index]}” is looked at by ${best.join(", ")}`;
  }

  sentence(t, s) {
    return `“${this.queryLabels()[t]}” looks at “${pageData.sides[this.stack.keySide].pieces[s]}” with ${shown(this.weights[t * this.stack.S + s], 4)}`;
  }

  pointCell(cell) {
    byId("pointed").textContent = cell
      ? `“${this.data.queries[cell[0]]}” looks at “${this.data.keys[cell[1]]}” with ${shown(this.data.weights[cell[0] * this.data.keys.length + cell[1]], 4)}` : "";
  }

  // Inside one query

  chooseQuery(t) {
    this.state.query = t;
    this.showQuery();
    this.showPicture();
  }

  chooseToken(side, place) {
    const stack = this.stack.querySide === side ? this.state.stack : pageData.stacks.find(({ querySide }) => querySide === side).name;
    const layer = Math.min(this.state.layer, this.heads.stack(stack).layers.length - 1);
    this.choose({ stack, layer, head: stack === "cross" && this.state.head === "rollout" ? "mean" : this.state.head });
    this.chooseQuery(Math.min(place, this.stack.T - 1));
    this.lines.pin({ side: "query", index: Math.max(0, this.rows.indexOf(this.state.query)) });
  }

  showQuery() {
    const { layer, head, query } = this.state;
    byId("query-select").value = query;
    const of = typeof head === "number";
    byId("inside-body").hidden = !of;
    byId("inside-note").textContent = of
      ? `${byId("head-title").textContent}. ` + (this.state.stack === "cross" ? "The query is of the place at which the token is written." : "")
      : "A mean of heads has no softmax of its own: choose one head.";
    if (!of) return;
    const { S, parts, keySide } = this.stack, part = parts[layer];
    const places = [...Array(S).keys()];
    const hasBias = part.stored.bias !== null;
    this.inside.show({
      labels: pageData.sides[keySide].pieces,
      products: part.products(head, query),
      visible: places.map((s) => part.visible(query, s)),
      biases: hasBias ? places.map((s) => part.bias(head, query, s)) : null,
      values: places.map((s) => part.vector("value", head, s)),
      scale: part.scale,
      softcap: part.softcap,
      scaleText: part.scale === 1 ? "scale (this model has none)" : `multiply by ${shown(part.scale, 4)} = 1/√${shown(1 / part.scale ** 2, 0)}`,
    });
  }
}

function shortened(text, most) {
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most).join("")}…` : text;
}

const attention = new AttentionPage();
window.attention = attention;
