// Tables that render only the visible rows, can be sorted by their columns, and let rows be selected.

import { h, number } from "./dom.js";

// Height of a row; rows of small screens are high enough to touch.
const rowHeight = () => (matchMedia("(max-width: 600px)").matches ? 45 : 33);
const ROWS_AROUND = 12,
  UNVIRTUALIZED_MAX = 500,
  // Cells with more characters wrap their text.
  NOWRAP_MAX = 44,
  // Kinds of columns that take the whole width.
  WIDE = ["wide", "doc", "mono"];

// A table with columns [heading, cell(row), class, value(row)]. A column with `value` can be sorted by it.
// Up to UNVIRTUALIZED_MAX rows are all rendered, with natural height. A longer table renders only the visible
// rows, all of the same height, and ROWS_AROUND more on both sides. Columns are as wide as their contents. Long
// texts wrap, except in columns of kind "mono" and in tables that render only the visible rows. Their title is
// the whole text.
//
// empty: text or element that is shown without rows: what the table would show, and how to get it.
// pick: called with the row that is clicked.
// keyOf: returns the key of a row; if given, rows have checkboxes and `selected` has the keys of the checked rows.
// onSelect: called after the selection changes.
export class Table {
  constructor(columns, { pick = null, tall = true, label = "Table", keyOf = null, onSelect = () => {}, empty = "No entries" } = {}) {
    this.columns = columns;
    this.pick = pick;
    this.keyOf = keyOf;
    this.onSelect = onSelect;
    this.empty = empty;
    this.selected = new Set();
    this.given = [];
    this.rows = [];
    this.sortedBy = null;
    this.isDescending = false;
    this.first = -1;
    this.end = -1;
    this.body = h("tbody");
    this.heads = columns.map((column) => this.head(column));
    const selectAll = keyOf && h("th", { class: "check", scope: "col" }, this.selectAllBox());
    const isFull = columns.some(([, , kind]) => WIDE.some((each) => kind?.split(" ").includes(each)));
    const kinds = ["scroll", tall && "tall", isFull && "full"];
    this.element = h(
      "div",
      { class: kinds.filter(Boolean).join(" "), tabindex: 0, role: "region", "aria-label": label },
      h("table", {}, h("thead", {}, h("tr", {}, selectAll, this.heads)), this.body),
    );
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }
  head([name, , kind, value]) {
    if (!value) return h("th", { class: kind, scope: "col" }, name);
    const button = h("button", { type: "button", class: "sort", onclick: () => this.sortBy(value) }, name);
    return h("th", { class: kind, scope: "col", "aria-sort": "none" }, button);
  }
  selectAllBox() {
    this.all = h("input", {
      type: "checkbox",
      "aria-label": "Select all rows",
      onchange: () => {
        this.selected = new Set(this.all.checked ? this.given.map(this.keyOf) : []);
        this.redraw();
        this.onSelect();
      },
    });
    return this.all;
  }
  set(rows) {
    this.given = rows;
    if (this.keyOf) {
      const keys = new Set(rows.map(this.keyOf));
      this.selected = new Set([...this.selected].filter((each) => keys.has(each)));
    }
    this.sort();
    return this;
  }
  // Sorts by a column: ascending, then descending, then in the given order.
  sortBy(value) {
    if (this.sortedBy !== value) [this.sortedBy, this.isDescending] = [value, false];
    else if (!this.isDescending) this.isDescending = true;
    else [this.sortedBy, this.isDescending] = [null, false];
    this.columns.forEach(([, , , each], at) => {
      const state = each !== this.sortedBy ? "none" : this.isDescending ? "descending" : "ascending";
      if (each) this.heads[at].setAttribute("aria-sort", state);
    });
    this.sort();
  }
  sort() {
    const { sortedBy: value } = this,
      direction = this.isDescending ? -1 : 1;
    this.rows = value ? [...this.given].sort((a, b) => compare(value(a), value(b), direction)) : this.given;
    this.redraw();
  }
  redraw() {
    this.first = -1;
    this.draw();
  }
  draw() {
    const [first, end] = this.visibleRange();
    if (first === this.first && end === this.end) return;
    this.first = first;
    this.end = end;
    const row = rowHeight();
    this.element.classList.toggle("long", this.rows.length > UNVIRTUALIZED_MAX);
    const width = this.columns.length + (this.keyOf ? 1 : 0);
    const space = (count) => {
      const cell = h("td", { colspan: width });
      cell.style.height = `${count * row}px`;
      return h("tr", { class: "space", "aria-hidden": "true" }, cell);
    };
    this.body.replaceChildren(
      ...(first ? [space(first)] : []),
      ...this.rows.slice(first, end).map((row) => this.line(row)),
      ...(end < this.rows.length ? [space(this.rows.length - end)] : []),
    );
    if (!this.rows.length)
      this.body.append(h("tr", {}, h("td", { colspan: width, class: "soft empty" }, h("span", {}, this.empty))));
    if (this.all) this.all.checked = this.given.length > 0 && this.selected.size === this.given.length;
  }
  visibleRange() {
    const count = this.rows.length;
    if (count <= UNVIRTUALIZED_MAX) return [0, count];
    const height = this.element.clientHeight || 600,
      row = rowHeight(),
      at = Math.floor(this.element.scrollTop / row);
    return [Math.max(at - ROWS_AROUND, 0), Math.min(at + Math.ceil(height / row) + ROWS_AROUND, count)];
  }
  line(row) {
    const cells = this.columns.map(([, cell, kind]) => cellOf(cell(row), kind));
    if (this.keyOf) cells.unshift(h("td", { class: "check" }, this.selectBox(row)));
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
  selectBox(row) {
    const key = this.keyOf(row);
    return h("input", {
      type: "checkbox",
      checked: this.selected.has(key),
      "aria-label": `Select ${key}`,
      onclick: (event) => event.stopPropagation(),
      onchange: (event) => {
        this.selected[event.target.checked ? "add" : "delete"](key);
        this.all.checked = this.selected.size === this.given.length;
        this.onSelect();
      },
    });
  }
}

function cellOf(contents, kind) {
  const cell = h("td", { class: kind }, contents),
    text = cell.textContent;
  if (text.length > NOWRAP_MAX && !kind?.split(" ").includes("mono")) {
    cell.classList.add("text");
    if (typeof contents === "string") cell.title = text;
  }
  return cell;
}

// Compares two values for sorting. Missing values come last in both directions.
function compare(a, b, direction) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), "en", { numeric: true });
}

// The number of selected rows, for labels of buttons.
export const selectedText = (table) => (table.selected.size ? ` (${number(table.selected.size)})` : "");
