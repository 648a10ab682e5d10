"use strict";
// The run report: what all charts share, and the controls over it.

const AXES = ["steps", "minutes", "tokens"];
const COLOURS = 8; // in the style; the letters tell further runs apart

/** What is seen of the runs: over which axis, how scaled, which part, which runs, and where the cursor is. */
class Report {
  constructor() {
    this.runs = pageData.runs.map((run, i) => ({ ...run, colour: `var(--run-${(i % COLOURS) + 1})` }));
    this.axis = "steps";
    this.logX = this.logY = false;
    this.bounds = null; // [from, to] of the axis; null: all
    this.hidden = new Set(); // letters of runs
    this.cursor = null;
    this.charts = pageData.charts.map((chart, number) => new LineChart(this, { ...chart, number }));
    byId("charts").append(...this.charts.filter((each) => each.chart.main).map((each) => each.root));
    byId("other-charts").append(...this.charts.filter((each) => !each.chart.main).map((each) => each.root));
    byId("others").hidden = this.charts.every((each) => each.chart.main);
    this.controls();
    this.changed();
  }

  controls() {
    const known = AXES.filter((axis) => this.runs.some((run) => this.has(run, axis)));
    byId("axis").append(...known.map((axis) => element("option", { value: axis }, axis)));
    byId("axis").addEventListener("input", (event) => {
      this.axis = event.target.value;
      this.bounds = this.cursor = null;
      this.changed();
    });
    byId("log-x").addEventListener("input", (event) => {
      this.logX = event.target.checked;
      this.changed();
    });
    byId("scale").addEventListener("input", (event) => {
      this.logY = event.target.value === "log";
      this.changed();
    });
    byId("zoom-in").addEventListener("click", () => this.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => this.zoom(2));
    byId("whole").addEventListener("click", () => this.zoomTo(null, null));
    byId("legend").hidden = this.runs.length < 2;
    byId("legend").append(...this.runs.map((run) => this.legendButton(run)));
  }

  legendButton(run) {
    const button = element("button", { "aria-pressed": "true" },
      element("span", { className: "run", style: `--run: ${run.colour}` }, run.letter), " ", run.name);
    button.addEventListener("click", () => {
      if (!this.hidden.delete(run.letter)) this.hidden.add(run.letter);
      button.setAttribute("aria-pressed", String(!this.hidden.has(run.letter)));
      this.changed();
    });
    return button;
  }

  has(run, axis) {
    return axis in run.parts.training.axes && run.parts.training.axes[axis].length + run.parts.validation.axes[axis].length > 0;
  }

  /** Where a run ends on the axis. */
  end(run) {
    return Math.max(...Object.values(run.parts).map(({ axes }) => axes[this.axis]?.at(-1) ?? 0));
  }

  /** The axis from end to end, of the runs that are shown. */
  whole() {
    let first = Infinity, last = 0;
    for (const run of this.runs) {
      if (this.hidden.has(run.letter)) continue;
      for (const { axes } of Object.values(run.parts)) {
        const xs = axes[this.axis];
        if (!xs || !xs.length) continue;
        const positive = xs[firstAtLeast(xs, Number.MIN_VALUE)];
        if (positive !== undefined) first = Math.min(first, positive);
        last = Math.max(last, xs[xs.length - 1]);
      }
    }
    if (!(first < last)) first = last / 2 || 0.5;
    return [this.logX ? first : 0, last || 1];
  }

  range() {
    return this.bounds ?? this.whole();
  }

  /** See a part of the axis; null: all of it. */
  zoomTo(from, to) {
    const [low, high] = this.whole();
    const bounds = [Math.max(low, from ?? low), Math.min(high, to ?? high)];
    const all = from === null || (bounds[0] <= low && bounds[1] >= high);
    if (!all && !(bounds[1] > bounds[0])) return;
    this.bounds = all ? null : bounds;
    this.changed();
  }

  /** See a part that is so many times as long, around the cursor or the middle. */
  zoom(factor) {
    const [low, high] = this.range();
    const scale = new Scale(low, high, 0, 1, this.logX);
    const middle = this.cursor !== null && this.cursor >= low && this.cursor <= high ? scale.at(this.cursor) : 0.5;
    this.zoomTo(scale.back(middle * (1 - factor)), scale.back(middle + (1 - middle) * factor));
  }

  moveTo(place) {
    if (place === this.cursor) return;
    this.cursor = place;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const chart of this.charts) if (chart.scaleX) chart.showCursor();
    });
  }

  placeText(place) {
    if (this.axis === "steps") return `step ${place.toLocaleString("en")}`;
    return this.axis === "minutes" ? `${place.toFixed(1)} minutes` : `${place.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 })} tokens`;
  }

  changed() {
    byId("whole").disabled = this.bounds === null;
    byId("zoom-out").disabled = this.bounds === null;
    const without = this.runs.filter((run) => !this.has(run, this.axis));
    byId("curves-note").textContent = without.length
      ? `Not drawn over ${this.axis}, which are not known: ${without.map((run) => `${run.letter} ${run.name}`).join(", ")}.` : "";
    for (const chart of this.charts) chart.draw();
  }
}

window.report = new Report();
