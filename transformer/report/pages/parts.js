"use strict";
// What all pages share: the data, elements, numbers as text, and colours from the style.

const pageData = JSON.parse(document.getElementById("data").textContent);

/** An element. `properties` are set on it, but `data-`, `aria-` and other names with a dash as attributes; texts among
 * the children become text nodes, so that nothing in them is read as HTML. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** A number in few characters, with a true minus. */
function shown(value, digits = 2) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "not a number";
  const text = Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toFixed(digits);
  return text.replace("-", "−");
}

function percent(value) {
  return value >= 0.0995 ? `${Math.round(100 * value)}%` : `${(100 * value).toFixed(1)}%`;
}

function styleValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function parseColor(hex) {
  const value = parseInt(hex.trim().slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Colours as the style has them now; made anew when the reader changes from light to dark. */
const palette = {
  read() {
    const stops = styleValue("--ramp").split(",").map(parseColor);
    this.table = new Uint8ClampedArray(3 * 256);
    for (let i = 0; i < 256; i++) {
      const place = (i / 255) * (stops.length - 1);
      const before = Math.min(Math.floor(place), stops.length - 2);
      for (let c = 0; c < 3; c++) {
        this.table[3 * i + c] = stops[before][c] + (place - before) * (stops[before + 1][c] - stops[before][c]);
      }
    }
    for (const name of ["paper", "ink", "pale", "line", "accent", "accent-paper", "second", "hidden", "positive", "negative"]) {
      this[name] = styleValue(`--${name}`);
    }
    this.dark = parseColor(this.paper)[0] < 128;
  },
  /** Of a share from 0 to 1. */
  index(share) {
    return 3 * Math.max(0, Math.min(255, Math.round(255 * share)));
  },
  of(share) {
    const i = this.index(share);
    return `rgb(${this.table[i]},${this.table[i + 1]},${this.table[i + 2]})`;
  },
  /** Ink that can be read on the colour of a share. */
  inkOn(share) {
    return share > 0.5 ? this.paper : this.ink;
  },
};
palette.read();

const redraws = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  palette.read();
  for (const redraw of redraws) redraw();
});

/** Run a generator without keeping the page from answering; `done` is given what it returns. */
function inSlices(steps, done, milliseconds = 12) {
  const turn = () => {
    const end = performance.now() + milliseconds;
    while (performance.now() < end) {
      const step = steps.next();
      if (step.done) {
        done(step.value);
        return;
      }
    }
    setTimeout(turn, 0);
  };
  setTimeout(turn, 0);
}
