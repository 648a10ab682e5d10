"use strict";
// Inside one query: from dot products to weights to the output, each score to be moved by hand.

const SHOWN_KEYS = 40; // of longer inputs those with the largest weights

class InsideQuery {
  /** Args: root, an empty element; `temperature`: whether there is a slider for it. */
  constructor(root, { temperature = false } = {}) {
    this.scaled = true;
    this.masked = true;
    this.temperature = 1;
    this.scaleBox = element("input", { type: "checkbox", checked: true, id: "scale-toggle" });
    this.scaleText = element("span");
    this.maskBox = element("input", { type: "checkbox", checked: true, id: "mask-toggle" });
    this.maskLabel = element("label", {}, this.maskBox, "mask");
    this.reset = element("button", { type: "button" }, "Put the scores back");
    const controls = element(
      "div", { className: "controls" },
      element("label", {}, this.scaleBox, this.scaleText), this.maskLabel,
    );
    if (temperature) {
      const slider = element("input", { type: "range", min: -2, max: 2, step: 0.05, value: 0, id: "temperature" });
      const number = element("output", {}, "1.00");
      slider.addEventListener("input", () => {
        this.temperature = 2 ** Number(slider.value);
        number.textContent = shown(this.temperature);
        this.update();
      });
      controls.append(element("label", {}, "temperature", slider, number));
    }
    controls.append(this.reset);
    this.status = element("p", { className: "live", "aria-live": "polite" });
    this.body = element("tbody");
    this.head = element("tr");
    this.table = element("table", { className: "query-table" }, element("thead", {}, this.head), this.body);
    this.left = element("p", { className: "note" });
    this.outputs = element("div", { className: "outputs" });
    root.replaceChildren(controls, this.status, this.table, this.left, this.outputs);
    this.scaleBox.addEventListener("change", () => { this.scaled = this.scaleBox.checked; this.update(); });
    this.maskBox.addEventListener("change", () => { this.masked = this.maskBox.checked; this.update(); });
    this.reset.addEventListener("click", () => { this.products = Float64Array.from(this.problem.products); this.update(true); });
    redraws.add(() => this.update());
  }

  /** Args: problem: `labels`, `products`, `visible`, `values` (a vector for each key), `scale`, `scaleText`, and if
   * there are any `biases` and `softcap`. */
  show(problem) {
    this.problem = problem;
    this.products = Float64Array.from(problem.products);
    this.model = this.weights({ scaled: true, masked: true, temperature: 1 }, problem.products);
    this.scaleText.textContent = problem.scaleText;
    this.maskLabel.hidden = problem.visible.every(Boolean);
    this.build();
    this.update(true);
  }

  settings({ scaled, temperature }) {
    return { scale: scaled ? this.problem.scale : 1, softcap: this.problem.softcap, temperature };
  }

  weights(state = this, products = this.products) {
    const { biases, visible } = this.problem;
    return weightsOf(products, biases, state.masked ? visible : visible.map(() => true), this.settings(state));
  }

  build() {
    const { labels, products, biases } = this.problem;
    const finite = products.filter(Number.isFinite);
    const low = Math.min(...finite, 0), high = Math.max(...finite, 0);
    const room = Math.max(high - low, 1) * 0.75;
    const order = [...labels.keys()];
    if (order.length > SHOWN_KEYS) {
      order.sort((a, b) => this.model[b] - this.model[a]).splice(SHOWN_KEYS);
      order.sort((a, b) => a - b);
    }
    const titles = ["key", "q · k (drag it)", ...(biases ? ["bias"] : []), "logit", "weight"];
    const classes = ["key", "raw", ...(biases ? ["small"] : []), "small", "weight"];
    this.head.replaceChildren(...titles.map((title, i) => element("th", { scope: "col", className: classes[i] }, title)));
    this.rows = order.map((s) => {
      const slider = element("input", {
        type: "range", min: low - room, max: high + room, step: (high - low + 2 * room) / 400,
        value: this.products[s], "aria-label": `dot product with ${labels[s]}`,
      });
      const raw = element("span", { className: "number" });
      const logit = element("td", { className: "small number", "data-name": "logit" });
      const bar = element("i"), mark = element("u"), number = element("span", { className: "number" });
      const label = element("th", { className: "key", scope: "row", dir: "auto" }, labels[s]);
      const row = element("tr", {}, label, element("td", { className: "raw" }, element("div", { className: "weigh" }, slider, raw)));
      if (biases) row.append(element("td", { className: "small number", "data-name": "bias" }, shown(biases[s])));
      row.append(logit, element("td", { className: "weight" },
        element("div", { className: "weigh" }, element("span", { className: "bar" }, bar, mark), number)));
      slider.addEventListener("input", () => { this.products[s] = Number(slider.value); this.update(); });
      return { s, row, slider, raw, logit, bar, mark, number };
    });
    this.body.replaceChildren(...this.rows.map(({ row }) => row));
    const cells = (name) => [element("span", {}, name), element("canvas"), element("span", { className: "number" })];
    this.strips = [cells("output now"), cells(this.problem.ownName ?? "the model's")];
    this.outputs.replaceChildren(...this.strips.flat());
  }

  update(sliders = false) {
    if (!this.problem) return;
    const { labels, visible, biases } = this.problem;
    const weights = this.weights();
    this.current = weights;
    const settings = this.settings(this);
    for (const { s, row, slider, raw, logit, bar, mark, number } of this.rows) {
      if (sliders) slider.value = this.products[s];
      const hidden = this.masked && !visible[s];
      raw.textContent = shown(this.products[s]);
      logit.textContent = hidden ? "masked" : shown(logitOf(this.products[s], biases ? biases[s] : 0, settings));
      bar.style.width = `${100 * weights[s]}%`;
      mark.style.left = `calc(${100 * this.model[s]}% - 1px)`;
      number.textContent = shown(weights[s], 3);
      row.classList.toggle("masked", hidden);
      row.classList.toggle("moved", Math.abs(this.products[s] - this.problem.products[s]) > 1e-9);
    }
    const inRows = this.rows.reduce((sum, { s }) => sum + weights[s], 0);
    const left = labels.length - this.rows.length;
    this.left.textContent = left
      ? `The ${this.rows.length} keys with the largest weights of the model are shown; the other ${left} have ${shown(1 - inRows, 3)} of the weight now.`
      : "";
    const seen = this.masked ? visible.filter(Boolean).length : labels.length;
    const entropy = entropyOf(weights);
    const reaction = weights.reduce((sum, weight) => sum + weight * (1 - weight), 0);
    this.status.textContent =
      `Entropy ${shown(entropy, 3)} nats, of at most ln ${seen} = ${shown(Math.log(Math.max(seen, 1)), 3)}: as if ` +
      `${shown(Math.exp(entropy), 1)} keys shared the weight. How far the softmax is from saturated, Σ w (1 − w): ` +
      `${shown(reaction, 3)}${this.scaled ? "" : " without the scale"}.`;
    this.drawOutputs(weights);
  }

  output(weights) {
    const { values } = this.problem;
    const sum = new Float64Array(values[0].length);
    for (let s = 0; s < values.length; s++) {
      if (weights[s]) for (let k = 0; k < sum.length; k++) sum[k] += weights[s] * values[s][k];
    }
    return sum;
  }

  drawOutputs(weights) {
    const now = this.output(weights), own = this.output(this.model);
    const largest = Math.max(1e-9, ...now.map(Math.abs), ...own.map(Math.abs));
    const away = Math.hypot(...now.map((x, k) => x - own[k]));
    this.currentOutput = now;
    [[now, `length ${shown(Math.hypot(...now))}`], [own, `length ${shown(Math.hypot(...own))}`]].forEach(([vector, text], i) => {
      const [, canvas, note] = this.strips[i];
      canvas.width = vector.length;
      canvas.height = 1;
      canvas.style.imageRendering = "pixelated";
      const context = canvas.getContext("2d");
      vector.forEach((x, k) => {
        context.globalAlpha = 1;
        context.fillStyle = palette.paper;
        context.fillRect(k, 0, 1, 1);
        context.globalAlpha = Math.abs(x) / largest;
        context.fillStyle = x > 0 ? palette.positive : palette.negative;
        context.fillRect(k, 0, 1, 1);
      });
      note.textContent = i === 0 && away > 1e-6 ? `${text}, ${shown(away)} away` : text;
    });
  }
}
