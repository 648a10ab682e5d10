"use strict";
// From the stored arrays to weights: the same arithmetic as transformer/models/attention/dense.py.

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const halves = Float32Array.from({ length: 65536 }, (_, bits) => halfToFloat(bits));

/** Stored numbers, of 16 or 32 bits, as floats. */
function floatsOf(base64, bits) {
  const bytes = bytesOf(base64);
  if (bits === 32) return new Float32Array(bytes.buffer);
  return Float32Array.from(new Uint16Array(bytes.buffer), (half) => halves[half]);
}

/** One attention layer of one stack, decoded when it is first asked for. */
class AttentionLayer {
  constructor(stack, number) {
    this.stack = stack;
    this.number = number;
    this.stored = stack.layers[number];
    this.size = this.stored.size;
    this.scale = this.stored.scale;
    this.softcap = this.stored.softcap;
  }

  array(name) {
    const key = `_${name}`;
    if (!this[key]) this[key] = floatsOf(this.stored[name], this.stored.bits);
    return this[key];
  }

  group(head) {
    return Math.floor(head / (this.stack.heads / this.stack.groups));
  }

  query(head, t) {
    const start = (head * this.stack.T + t) * this.size;
    return this.array("query").subarray(start, start + this.size);
  }

  /** The key or the value of one place. */
  vector(name, head, s) {
    const start = (this.group(head) * this.stack.S + s) * this.size;
    return this.array(name).subarray(start, start + this.size);
  }

  visible(t, s) {
    return this.mask()[t * this.stack.S + s] === 1;
  }

  /** [T, S], 1 where a query sees a key. */
  mask() {
    return maskOf(this.stored.mask, this.stack.T * this.stack.S);
  }

  bias(head, t, s) {
    if (this.stored.bias === null) return 0;
    const { values, byDistance } = biasOf(this.stored.bias);
    const { T, S } = this.stack;
    return byDistance ? values[head * (T + S - 1) + s - t + T - 1] : values[(head * T + t) * S + s];
  }

  /** The dot products of one query with all keys, or with those that are `wanted`. */
  products(head, t, wanted = null) {
    const query = this.query(head, t), keys = this.array("key"), size = this.size;
    const out = new Float64Array(this.stack.S);
    const first = this.group(head) * this.stack.S * size;
    for (let s = 0; s < out.length; s++) {
      if (wanted && !wanted[s]) continue;
      let sum = 0;
      for (let k = 0, place = first + s * size; k < size; k++, place++) sum += query[k] * keys[place];
      out[s] = sum;
    }
    return out;
  }

  /** One row of weights. */
  row(head, t) {
    const S = this.stack.S;
    const visible = this.mask().subarray(t * S, (t + 1) * S);
    const products = this.products(head, t, visible);
    const settings = { scale: this.scale, softcap: this.softcap };
    const biases = this.stored.bias === null ? null : Float64Array.from({ length: S }, (_, s) => this.bias(head, t, s));
    return weightsOf(products, biases, visible, settings);
  }

  /** All rows, [T, S]. */
  weights(head) {
    const { T, S } = this.stack;
    const all = new Float32Array(T * S);
    for (let t = 0; t < T; t++) all.set(this.row(head, t), t * S);
    return all;
  }
}

const decoded = { masks: new Map(), biases: new Map() };

function maskOf(number, size) {
  if (!decoded.masks.has(number)) {
    const bits = bytesOf(pageData.masks[number]);
    decoded.masks.set(number, Uint8Array.from({ length: size }, (_, i) => (bits[i >> 3] >> (7 - (i & 7))) & 1));
  }
  return decoded.masks.get(number);
}

function biasOf(number) {
  if (!decoded.biases.has(number)) {
    const { values, byDistance } = pageData.biases[number];
    decoded.biases.set(number, { values: floatsOf(values, 32), byDistance });
  }
  return decoded.biases.get(number);
}

/** Dot products to logits: scaled, capped, with the bias. */
function logitOf(product, bias, settings) {
  let logit = product * settings.scale;
  if (settings.softcap) logit = settings.softcap * Math.tanh(logit / settings.softcap);
  return (logit + bias) / (settings.temperature ?? 1);
}

/** The softmax over the visible keys; zeros where there are none. */
function weightsOf(products, biases, visible, settings) {
  const weights = new Float64Array(products.length);
  let highest = -Infinity;
  for (let s = 0; s < weights.length; s++) {
    weights[s] = visible[s] ? logitOf(products[s], biases ? biases[s] : 0, settings) : -Infinity;
    if (weights[s] > highest) highest = weights[s];
  }
  let sum = 0;
  for (let s = 0; s < weights.length; s++) {
    weights[s] = visible[s] ? Math.exp(weights[s] - highest) : 0;
    sum += weights[s];
  }
  if (sum > 0) for (let s = 0; s < weights.length; s++) weights[s] /= sum;
  return weights;
}

function entropyOf(weights) {
  let sum = 0;
  for (const weight of weights) if (weight > 0) sum -= weight * Math.log(weight);
  return sum;
}

/** Round to 16 bits and back: what float16 makes of a number. */
function toHalf(value) {
  if (Number.isNaN(value) || value === 0) return value;
  const size = Math.abs(value);
  if (size >= 65520) return Math.sign(value) * Infinity;
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  const step = 2 ** (exponent - 10);
  const scaled = size / step;
  const below = Math.floor(scaled);
  const rest = scaled - below;
  const rounded = rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
  return Math.sign(value) * rounded * step;
}
