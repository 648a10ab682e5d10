"use strict";
// Weights of heads, of their mean and of rollout, computed when they are asked for.

const KEPT = 24; // matrices that are kept in memory
const ROWS_AT_A_TIME = 32; // of matrices that are made beside what the reader does
const THUMBNAIL = 64; // cells on a side; of larger maps a cell is the largest weight in its part

class Heads {
  constructor() {
    this.stacks = new Map();
    for (const stack of pageData.stacks) {
      this.stacks.set(stack.name, { ...stack, parts: stack.layers.map((_, i) => new AttentionLayer(stack, i)) });
    }
    this.kept = new Map();
    this.rolled = new Map();
  }

  stack(name) {
    return this.stacks.get(name);
  }

  /** [T, S] of a head, or of the mean of all with head "mean". */
  weights(name, layer, head) {
    const key = `${name} ${layer} ${head}`;
    if (!this.kept.has(key)) {
      if (this.kept.size >= KEPT) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, head === "mean" ? finished(this.mean(name, layer)) : this.stack(name).parts[layer].weights(head));
    }
    return this.kept.get(key);
  }

  /** The mean of all heads, [T, S], some rows at a time. */
  *mean(name, layer) {
    const { heads, T, S, parts } = this.stack(name);
    const sum = new Float32Array(T * S);
    for (let head = 0; head < heads; head++) {
      for (let t = 0; t < T; t++) {
        const weights = parts[layer].row(head, t);
        for (let s = 0; s < S; s++) sum[t * S + s] += weights[s] / heads;
        if (t % ROWS_AT_A_TIME === 0) yield;
      }
    }
    return sum;
  }

  /** Rollout after each layer up to one; `done` is given that of the last. */
  rollout(name, layer, done) {
    if (!this.rolled.has(name)) this.rolled.set(name, []);
    inSlices(this.roll(name, layer, this.rolled.get(name)), done);
  }

  *roll(name, layer, known) {
    const { T } = this.stack(name);
    while (known.length <= layer) {
      const number = known.length, before = known[number - 1];
      const mixed = yield* this.mean(name, number);
      for (let t = 0; t < T; t++) mixed[t * T + t] += 1;
      const rolled = new Float32Array(T * T);
      for (let t = 0; t < T; t++) {
        const row = mixed.subarray(t * T, (t + 1) * T);
        const sum = row.reduce((a, b) => a + b, 0);
        for (let k = 0; k < T; k++) {
          const share = row[k] / sum;
          if (!before) rolled[t * T + k] = share;
          else if (share) for (let s = 0; s < T; s++) rolled[t * T + s] += share * before[k * T + s];
        }
        if (t % ROWS_AT_A_TIME === 0) yield;
      }
      if (known.length === number) known.push(rolled); // or another reader was quicker
    }
    return known[layer];
  }

  /** A small map of a head: the largest weight of each part, and whether anything is seen there; some rows at a time. */
  *thumbnail(name, layer, head) {
    const { T, S, parts } = this.stack(name);
    const rows = Math.min(T, THUMBNAIL), columns = Math.min(S, THUMBNAIL);
    const largest = new Float32Array(rows * columns), seen = new Uint8Array(rows * columns);
    const mask = parts[layer].mask();
    for (let t = 0; t < T; t++) {
      const weights = parts[layer].row(head, t);
      const start = Math.floor((t * rows) / T) * columns;
      for (let s = 0; s < S; s++) {
        const place = start + Math.floor((s * columns) / S);
        if (weights[s] > largest[place]) largest[place] = weights[s];
        if (mask[t * S + s]) seen[place] = 1;
      }
      if (t % ROWS_AT_A_TIME === 0) yield;
    }
    return { rows, columns, largest, seen };
  }

  /** Over the patches of an image the weights of the class token, or of all patches on average. */
  *patches(name, layer, head) {
    const { firstPatch, rows, columns } = pageData.image;
    const part = this.stack(name).parts[layer];
    const of = (t) => part.row(head, t).subarray(firstPatch);
    const largest = new Float32Array(rows * columns);
    const queries = firstPatch ? [0] : [...largest.keys()];
    for (const t of queries) {
      of(t).forEach((weight, s) => { largest[s] += weight / queries.length; });
      if (t % ROWS_AT_A_TIME === 0) yield;
    }
    return { rows, columns, largest, seen: largest.map(() => 1) };
  }
}

/** What a generator returns, all at once. */
function finished(steps) {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

/** Paint a small map, a pixel a cell; `most` has the last colour. */
function paint(canvas, { rows, columns, largest, seen }, most = largest.reduce((a, b) => Math.max(a, b), 1e-9)) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const hidden = parseColor(palette.hidden);
  for (let i = 0; i < largest.length; i++) {
    const place = palette.index(largest[i] / most);
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = seen[i] ? palette.table[place + c] : hidden[c];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
