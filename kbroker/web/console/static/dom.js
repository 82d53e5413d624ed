// Elements shared by all pages. Data from the broker is inserted as text only, never as markup.

// Creates an element. Attributes whose name begins with "on" are event listeners.
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false),
  );
  return element;
}

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

export function bytes(value) {
  if (value === null || value === undefined || value < 0) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").replace("Z", "");
}

// Escapes invisible characters, so that they cannot hide text or change its direction.
export function visible(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

// Creates an SVG element.
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.flat(Infinity));
  return element;
}

export function sparkline(values, label, width = 120, height = 24) {
  const known = (values ?? []).filter((each) => each !== null);
  if (!known.length) return h("span", { class: "soft" }, "–");
  const most = Math.max(...known, 1),
    step = width / Math.max(values.length - 1, 1);
  let line = "",
    isDown = false;
  values.forEach((value, at) => {
    if (value === null) {
      isDown = false;
      return;
    }
    line += `${isDown ? "L" : "M"}${(at * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`;
    isDown = true;
  });
  const last = values.length - 1;
  if (values[last] !== null && values[last - 1] === null) line += "h0.1";
  const text = `${label}: now ${known[known.length - 1]}, maximum ${most}`;
  return svg(
    "svg",
    { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text },
    svg("path", {
      d: line,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.8",
      "stroke-linecap": "round",
    }),
  );
}

const ROW = 33,
  ROWS_AROUND = 12,
  UNVIRTUALIZED_MAX = 500;

// A table with columns [heading, cell(row), class]. Up to UNVIRTUALIZED_MAX rows are all rendered, with natural height.
// A longer table renders only the visible rows, each ROW pixels high, and ROWS_AROUND more on both sides.
export class Table {
  constructor(columns, { pick = null, tall = true, label = "Table" } = {}) {
    this.columns = columns;
    this.pick = pick;
    this.rows = [];
    this.first = -1;
    this.end = -1;
    this.body = h("tbody");
    const heads = columns.map(([name, , kind]) => h("th", { class: kind, scope: "col" }, name));
    this.element = h(
      "div",
      { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-label": label },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), this.body),
    );
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }
  set(rows) {
    this.rows = rows;
    this.first = -1;
    this.draw();
    return this;
  }
  draw() {
    const [first, end] = this.visibleRange();
    if (first === this.first && end === this.end) return;
    this.first = first;
    this.end = end;
    const space = (count) => {
      const cell = h("td", { colspan: this.columns.length });
      cell.style.height = `${count * ROW}px`;
      return h("tr", { class: "space", "aria-hidden": "true" }, cell);
    };
    this.body.replaceChildren(
      ...(first ? [space(first)] : []),
      ...this.rows.slice(first, end).map((row) => this.line(row)),
      ...(end < this.rows.length ? [space(this.rows.length - end)] : []),
    );
    if (!this.rows.length)
      this.body.append(h("tr", {}, h("td", { colspan: this.columns.length, class: "soft" }, "No entries")));
  }
  visibleRange() {
    const count = this.rows.length;
    if (count <= UNVIRTUALIZED_MAX) return [0, count];
    const height = this.element.clientHeight || 600,
      at = Math.floor(this.element.scrollTop / ROW);
    return [Math.max(at - ROWS_AROUND, 0), Math.min(at + Math.ceil(height / ROW) + ROWS_AROUND, count)];
  }
  line(row) {
    const cells = this.columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row)));
    if (!this.pick) return h("tr", {}, cells);
    return h(
      "tr",
      {
        class: "pick",
        tabindex: 0,
        onclick: () => this.pick(row),
        onkeydown: (event) => {
          if (event.key === "Enter") {
            event.preventDefault();
            this.pick(row);
          }
        },
      },
      cells,
    );
  }
}

export const link = (path, text) => h("a", { href: `#${path}` }, visible(text));
export const card = (name, ...big) =>
  h("div", { class: "card" }, h("div", { class: "name" }, name), h("div", { class: "big" }, ...big));
export const field = (name, input) => h("label", {}, name, input);

export function notify(text, isBad = false) {
  const line = h("div", { class: isBad ? "note bad" : "note" }, visible(text));
  document.getElementById("notes").append(line);
  setTimeout(() => line.remove(), isBad ? 9000 : 4000);
}
