// Line charts of one period: axes, legend with the values at the pointer, and a common zoom.

import { h, svg, visible } from "./dom.js";

const HEIGHT = 150,
  EDGE = { left: 50, right: 8, top: 8, bottom: 20 },
  TICKS = 4,
  TIME_LABEL_WIDTH = 80,
  TIME_STEPS = [5, 10, 30, 60, 120, 300, 600].map((each) => each * 1000),
  MIN_SAMPLES = 4;

const clock = (ms, hasSeconds = true) => new Date(ms).toISOString().slice(11, hasSeconds ? 19 : 16);

// Charts that show the same time range and the same cursor.
//
// add(title, format): adds a chart; `format(value)` returns the text of a value.
// set(endMs, stepMs): time of the newest sample, and time between two samples.
export class Charts {
  constructor() {
    this.charts = [];
    this.zoom = null; // [from, to] in ms, or null for all samples
    this.at = null; // time in ms of the sample under the cursor, or null
    this.endMs = 0;
    this.stepMs = 1;
    this.count = 0;
    this.grid = h("div", { class: "charts" });
    this.spoken = h("p", { class: "hidden-text", role: "status" });
    this.resetButton = h("button", { type: "button", hidden: true, onclick: () => this.zoomTo(null) }, "Reset zoom");
    const help = "Drag to zoom, double-click to reset. Keys: ← → select a time, + − zoom, 0 resets. Times are UTC.";
    this.element = h(
      "div",
      {},
      this.grid,
      h("div", { class: "row" }, this.resetButton, h("span", { class: "soft" }, help)),
      this.spoken,
    );
  }
  add(title, format) {
    const chart = new Chart(this, title, format);
    this.charts.push(chart);
    this.grid.append(chart.element);
    return chart;
  }
  set(endMs, stepMs) {
    this.endMs = endMs;
    this.stepMs = stepMs;
    this.count = Math.max(...this.charts.map((each) => each.length));
    if (this.zoom && this.zoom[1] < this.startMs) this.zoom = null;
    if (this.at !== null && this.at < this.startMs) this.at = null;
    this.draw();
  }
  draw() {
    this.resetButton.hidden = !this.zoom;
    for (const each of this.charts) each.draw();
  }
  get startMs() {
    return this.endMs - (this.count - 1) * this.stepMs;
  }
  get range() {
    return this.zoom ?? [this.startMs, this.endMs];
  }
  // Returns the time of the sample that is nearest to a time.
  snap(ms) {
    const at = this.endMs - Math.round((this.endMs - ms) / this.stepMs) * this.stepMs;
    return Math.min(Math.max(at, this.startMs), this.endMs);
  }
  select(ms) {
    this.at = ms;
    this.draw();
  }
  zoomTo(range) {
    const least = MIN_SAMPLES * this.stepMs;
    if (range) {
      const from = Math.max(Math.min(range[0], range[1]), this.startMs),
        to = Math.min(Math.max(range[0], range[1], from + least), this.endMs);
      range = to - from < this.endMs - this.startMs ? [Math.min(from, to - least), to] : null;
    }
    this.zoom = range;
    this.draw();
  }
  key(event, chart) {
    const [from, to] = this.range,
      at = this.at ?? to,
      half = (to - from) / 2;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -this.count, End: this.count };
    if (event.key in steps) {
      this.select(this.snap(at + steps[event.key] * this.stepMs * (event.shiftKey ? 10 : 1)));
      this.spoken.textContent = `${chart.title}, ${clock(this.at)}: ${chart.valuesText()}`;
    } else if (event.key === "+" || event.key === "=") this.zoomTo([at - half / 2, at + half / 2]);
    else if (event.key === "-") this.zoomTo([from - half, to + half]);
    else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
    else return;
    event.preventDefault();
  }
}

class Chart {
  constructor(charts, title, format) {
    this.charts = charts;
    this.title = title;
    this.format = format;
    this.series = [];
    this.draggedFrom = null;
    this.drawing = svg("svg", { height: HEIGHT, role: "img", tabindex: 0 });
    this.legend = h("ul", { class: "legend" });
    this.reason = h("p", { class: "soft" });
    this.element = h(
      "figure",
      { class: "chart card" },
      h("figcaption", {}, h("strong", {}, title), this.legend),
      this.drawing,
      this.reason,
    );
    const listen = (name, act) => this.drawing.addEventListener(name, act);
    listen("pointerdown", (event) => this.beginDrag(event));
    listen("pointermove", (event) => charts.select(charts.snap(this.timeAt(event))));
    listen("pointerup", (event) => this.endDrag(event));
    listen("pointercancel", () => this.leave());
    listen("pointerleave", () => this.leave());
    listen("dblclick", () => charts.zoomTo(null));
    listen("keydown", (event) => charts.key(event, this));
    listen("blur", () => charts.select(null));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }
  // Sets the series: [[name, values], ...], the newest value last, null for a missing one. `reason` says why
  // there are none.
  set(series, reason = "") {
    this.series = reason ? [] : series;
    this.reason.textContent = reason;
    for (const each of [this.drawing, this.legend]) each.toggleAttribute("hidden", Boolean(reason));
  }
  get length() {
    return Math.max(0, ...this.series.map(([, values]) => values?.length ?? 0));
  }
  get width() {
    return this.drawing.getBoundingClientRect().width || 400;
  }
  valueAt(values, ms) {
    return values?.[values.length - 1 - Math.round((this.charts.endMs - ms) / this.charts.stepMs)] ?? null;
  }
  text(value) {
    return value === null ? "–" : this.format(value);
  }
  valuesText() {
    const at = this.charts.at ?? this.charts.endMs;
    return this.series.map(([name, values]) => `${name} ${this.text(this.valueAt(values, at))}`).join(", ");
  }
  timeAt(event) {
    const [from, to] = this.charts.range,
      x = event.clientX - this.drawing.getBoundingClientRect().left;
    return from + ((x - EDGE.left) / (this.width - EDGE.left - EDGE.right)) * (to - from);
  }
  beginDrag(event) {
    this.draggedFrom = this.timeAt(event);
    this.drawing.setPointerCapture(event.pointerId);
  }
  endDrag(event) {
    const from = this.draggedFrom,
      to = this.timeAt(event);
    this.draggedFrom = null;
    if (from !== null && Math.abs(to - from) > 2 * this.charts.stepMs) this.charts.zoomTo([from, to]);
    else this.charts.draw();
  }
  leave() {
    this.draggedFrom = null;
    this.charts.select(null);
  }
  draw() {
    const { charts, width } = this,
      [from, to] = charts.range,
      right = width - EDGE.right,
      bottom = HEIGHT - EDGE.bottom;
    const points = this.series.map(([, values]) => pointsIn(values ?? [], charts));
    const step = niceStep(Math.max(0, ...points.flat().map(([, value]) => value ?? 0)) / TICKS),
      most = step * TICKS;
    const x = (ms) => EDGE.left + ((ms - from) / Math.max(to - from, 1)) * (right - EDGE.left),
      y = (value) => bottom - (value / most) * (bottom - EDGE.top);
    const parts = [this.grid(x, y, step, right), points.map((each, at) => linePath(each, x, y, at))];
    if (charts.at !== null && charts.at >= from && charts.at <= to) parts.push(this.cursor(x, y, bottom));
    this.drawing.replaceChildren(...parts.flat(Infinity));
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("aria-label", `${this.title}, last ten minutes: ${this.valuesText()}`);
    this.drawLegend();
  }
  grid(x, y, step, right) {
    const { charts } = this,
      lines = [];
    for (let tick = 0; tick <= TICKS; tick += 1) {
      const at = y(tick * step);
      lines.push(svg("path", { class: "grid", d: `M${EDGE.left} ${at}H${right}` }));
      if (tick % 2 === 0)
        lines.push(svg("text", { x: EDGE.left - 6, y: at + 4, "text-anchor": "end" }, this.format(tick * step)));
    }
    const [from, to] = charts.range,
      most = Math.max(1, (right - EDGE.left) / TIME_LABEL_WIDTH),
      every = TIME_STEPS.find((each) => (to - from) / each <= most) ?? TIME_STEPS.at(-1);
    for (let ms = Math.ceil(from / every) * every; ms <= to; ms += every)
      if (x(ms) < right - 16)
        lines.push(svg("text", { x: x(ms), y: HEIGHT - 5, "text-anchor": "middle" }, clock(ms, every < 60_000)));
    return lines;
  }
  cursor(x, y, bottom) {
    const { at } = this.charts,
      parts = [svg("path", { class: "cursor", d: `M${x(at)} ${EDGE.top}V${bottom}` })];
    if (this.draggedFrom !== null) {
      const left = Math.min(x(at), x(this.draggedFrom));
      const size = { width: Math.abs(x(at) - x(this.draggedFrom)), height: bottom - EDGE.top };
      parts.push(svg("rect", { class: "chosen", x: left, y: EDGE.top, ...size }));
    }
    this.series.forEach(([, values], index) => {
      const value = this.valueAt(values, at);
      if (value !== null) parts.push(svg("circle", { class: `s${index}`, cx: x(at), cy: y(value), r: 3.5 }));
    });
    return parts;
  }
  drawLegend() {
    const { at, endMs } = this.charts;
    this.legend.replaceChildren(
      ...this.series.map(([name, values], index) =>
        h(
          "li",
          {},
          svg("svg", { class: "swatch", width: 18, height: 10 }, svg("path", { class: `line s${index}`, d: "M1 5H17" })),
          h("span", {}, visible(name)),
          h("b", {}, this.text(this.valueAt(values, at ?? endMs))),
        ),
      ),
      h("li", { class: "soft" }, at === null ? "now" : clock(at)),
    );
  }
}

// Returns the samples [time, value] in the shown range, and one more on both sides.
function pointsIn(values, { endMs, stepMs, range: [from, to] }) {
  const first = endMs - (values.length - 1) * stepMs;
  return values
    .map((value, at) => [first + at * stepMs, value])
    .filter(([ms]) => ms >= from - stepMs && ms <= to + stepMs);
}

function linePath(points, x, y, index) {
  let line = "",
    isDown = false;
  for (const [ms, value] of points) {
    if (value !== null) line += `${isDown ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}${isDown ? "" : "h0.1"}`;
    isDown = value !== null;
  }
  return svg("path", { class: `line s${index}`, d: line });
}

// Returns 1, 2 or 5 times a power of ten that is not less than a value, and at least 1.
function niceStep(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value) * power;
}
