"use strict";
// Arithmetic of charts: from values to pixels, ticks, and thousands of points in a few hundred pixels.

/** From values between two bounds to pixels between two others, linearly or by logarithm. */
class Scale {
  constructor(low, high, start, end, log) {
    this.log = log;
    [this.low, this.high] = log ? [Math.log(low), Math.log(high)] : [low, high];
    if (this.low === this.high) {
      this.low -= Math.abs(this.low) * 0.05 || 0.5;
      this.high += Math.abs(this.high) * 0.05 || 0.5;
    }
    this.start = start;
    this.factor = (end - start) / (this.high - this.low);
  }

  at(value) {
    return this.start + ((this.log ? Math.log(value) : value) - this.low) * this.factor;
  }

  back(pixel) {
    const value = (pixel - this.start) / this.factor + this.low;
    return this.log ? Math.exp(value) : value;
  }

  /** Round values between the bounds, about so many. */
  ticks(number) {
    const [low, high] = this.log ? [Math.exp(this.low), Math.exp(this.high)] : [this.low, this.high];
    if (this.log && high / low > 4) return logTicks(low, high, number);
    const rough = (high - low) / number, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999) * power;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return found;
  }
}

/** 1, 2 and 5 of each power of ten, or of wide ranges some powers. */
function logTicks(low, high, number) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / number));
  const parts = every > 1 || last - first > 3 ? [1] : [1, 2, 5];
  const found = [];
  for (let power = first; power <= last; power += every) found.push(...parts.map((part) => Number(`${part}e${power}`)));
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

/** The text of a tick: 12K, 2.5M, 0.02, 5e−4. */
function tickText(value) {
  const size = Math.abs(value);
  if (size >= 10000) return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 }).replace("-", "−");
  if (size > 0 && size < 0.001) return Number(value.toPrecision(6)).toExponential().replaceAll("-", "−");
  return String(Number(value.toPrecision(6))).replace("-", "−");
}

/** The text of a value, with four digits that count. */
function valueText(value) {
  const size = Math.abs(value);
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 }).replace("-", "−");
  if (size > 0 && size < 0.001) return value.toExponential(2).replaceAll("-", "−");
  return value === 0 ? "0" : value.toPrecision(4).replace("-", "−");
}

/** The first place in rising numbers that is not below a value. */
function firstAtLeast(numbers, value) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The number nearest to a value in rising ones: its place, or −1. */
function nearest(numbers, value) {
  if (!numbers.length) return -1;
  const after = Math.min(firstAtLeast(numbers, value), numbers.length - 1);
  return after > 0 && value - numbers[after - 1] <= numbers[after] - value ? after - 1 : after;
}

/** Pieces of a line, which ends where a value is missing, as they are drawn.
 *
 * Args: rising `xs`, `ys` with null where there is none, the places `from` (included) and `to` (not) of what is drawn, the
 * two scales, the columns of pixels that there are. Gives `pieces`, each of points { x, y, low, high } in pixels; of more
 * points than columns those on a column are one, with their mean, lowest and highest; `joined` says so. */
function pieces(xs, ys, from, to, scaleX, scaleY, columns) {
  const joined = to - from > columns;
  const found = [];
  let piece = [], column = null;
  const end = () => {
    if (column) piece.push(finished(column, scaleY));
    if (piece.length) found.push(piece);
    [piece, column] = [[], null];
  };
  for (let i = from; i < to; i++) {
    const y = ys[i];
    if (y === null) {
      if (!joined) end();
      continue;
    }
    const x = joined ? Math.round(scaleX.at(xs[i])) : scaleX.at(xs[i]);
    if (column && column.x === x) {
      column.sum += y;
      column.number += 1;
      column.low = Math.min(column.low, y);
      column.high = Math.max(column.high, y);
    } else {
      if (column) piece.push(finished(column, scaleY));
      column = { x, sum: y, number: 1, low: y, high: y };
    }
  }
  end();
  return { pieces: found, joined };
}

function finished({ x, sum, number, low, high }, scaleY) {
  return { x, y: scaleY.at(sum / number), low: scaleY.at(low), high: scaleY.at(high) };
}

/** Gives each of `ends`, { x, y }, a `place` near its y: so far from those of others near its x that both can be read.
 *
 * Each goes below those that stand there, or where there is no room above them; where there is none either, it stays. */
function spread(ends, distance, top, bottom) {
  const placed = [];
  for (const end of ends.sort((a, b) => a.y - b.y)) {
    const close = placed.filter((other) => Math.abs(other.x - end.x) < distance);
    const free = (way) => {
      let place = end.y;
      const near = () => close.find((other) => Math.abs(other.place - place) < distance);
      for (let other = near(); other; other = near()) place = other.place + way * (distance + 0.01);
      return place;
    };
    end.place = [free(1), free(-1)].find((place) => place >= top && place <= bottom) ?? end.y;
    placed.push(end);
  }
}
