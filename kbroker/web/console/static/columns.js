// Columns of the table of messages: which are shown, and by which one the loaded records are sorted.

import { bytes, counted, field, h, number, visible } from "./dom.js";
import {
  TRANSACTION_STATES,
  documentOf,
  fieldPaths,
  fieldValue,
  keyText,
  oversizedText,
  schemaText,
  shown,
  sizeOf,
  valueText,
} from "./records.js";
import { Table } from "./table.js";
import { timeText, zoneName } from "./times.js";

const FIELDS_MAX = 20,
  COLUMNS_MAX = 31,
  SUGGESTED_MAX = 200;
const headersText = (row) =>
  row.headers.map((each) => `${shown(each, "key")}=${shown(each, "value")}`).join(", ");

// A tag for a record of an open or aborted transaction.
const stateTag = ({ transaction: state }) =>
  state in TRANSACTION_STATES && [h("span", { class: `tag ${state}`, title: TRANSACTION_STATES[state] }, state), " "];

// What the tags mean, and how many of the loaded records have them.
const legendOf = (rows) =>
  Object.entries(TRANSACTION_STATES).flatMap(([state, meaning]) => {
    const count = rows.filter((row) => row.transaction === state).length;
    return count ? [h("li", {}, h("span", { class: `tag ${state}` }, state), ` ${counted(count, "record")}: ${meaning}`)] : [];
  });

// Standard columns: heading, cell, class, value to sort by.
const STANDARD = {
  time: [() => `Time (${zoneName()})`, (row) => timeText(row.timestamp), "time", (row) => row.timestamp],
  partition: [() => "Partition", (row) => row.partition, "num", (row) => row.partition],
  offset: [() => "Offset", (row) => [stateTag(row), number(row.offset)], "num", (row) => row.offset],
  key: [
    () => "Key",
    (row) => (oversizedText(row) ? "–" : visible(keyText(row).slice(0, 80))),
    "mono",
    (row) => (row.key_format ? keyText(row) : null),
  ],
  value: [
    () => "Value",
    (row) => oversizedText(row) || visible(valueText(row).slice(0, 300)),
    "mono",
    (row) => valueText(row),
  ],
  size: [() => "Size", (row) => bytes(sizeOf(row)), "num", sizeOf],
  headers: [() => "Headers", (row) => visible(headersText(row).slice(0, 200)), "mono", headersText],
  schema: [
    () => "Schema",
    (row) => visible(schemaText(row, "value")),
    null,
    (row) => schemaText(row, "value") || null,
  ],
  format: [() => "Format", (row) => row.value_format ?? "null", null, (row) => row.value_format ?? "null"],
  keySchema: [
    () => "Key schema",
    (row) => visible(schemaText(row, "key")),
    null,
    (row) => schemaText(row, "key") || null,
  ],
  timestampType: [() => "Timestamp type", (row) => row.timestamp_type, null, (row) => row.timestamp_type],
};
const DEFAULT = ["time", "partition", "offset", "key", "value", "size"];
const isStandard = (name) => Object.hasOwn(STANDARD, name);
const isPath = (name) => /^(key|value|headers)(\.[\p{L}\p{N}_$-]+)+$/u.test(name);

function fieldColumn(path) {
  const text = (row) => {
    const found = fieldValue(row, path);
    if (found === undefined) return "…";
    return found === null ? "" : visible(String(found).slice(0, 200));
  };
  return [() => visible(path), text, "mono", (row) => fieldValue(row, path)];
}

// A table that reports by which column it is sorted.
class RecordTable extends Table {
  constructor(columns, options, onSort) {
    super(columns, options);
    this.onSort = onSort;
  }
  sortBy(value) {
    super.sortBy(value);
    this.onSort();
  }
}

// The table with its chosen columns. The choice is in the URL, and is stored for the topic.
//
// onChange(isReload): called after columns changed; `isReload` if the server must read fields of loaded records.
export class RecordColumns {
  constructor(topic, query, { pick, onChange }) {
    this.storageKey = `columns:${topic}`;
    this.pick = pick;
    this.onChange = onChange;
    this.rows = [];
    const given = new Set((query.get("columns") ?? this.stored() ?? "").split(","));
    const known = [...given].filter((each) => isStandard(each) || isPath(each));
    this.names = known.length ? known.slice(0, COLUMNS_MAX) : [...DEFAULT];
    this.sorted = query.get("sort") ?? "";
    this.element = h("div");
    this.legend = h("ul", { class: "states soft", "aria-label": "Transactions" });
    this.build();
  }
  stored() {
    try {
      return localStorage.getItem(this.storageKey);
    } catch {
      return null;
    }
  }
  // Fields that the server has to read from each record.
  get fields() {
    return this.names.filter((each) => !isStandard(each)).slice(0, FIELDS_MAX);
  }
  // Parameters of the URL: those that differ from the defaults.
  get parameters() {
    const columns = this.names.join(",");
    return { columns: columns === DEFAULT.join(",") ? "" : columns, sort: this.sorted };
  }
  build() {
    const columns = this.names.map((name) => {
      const [heading, ...rest] = isStandard(name) ? STANDARD[name] : fieldColumn(name);
      return [heading(), ...rest];
    });
    const options = { label: "Records", pick: this.pick };
    this.table = new RecordTable(columns, options, () => this.sortChanged());
    const isDescending = this.sorted.startsWith("-"),
      at = this.names.indexOf(this.sorted.replace(/^-/, ""));
    if (at >= 0) {
      Table.prototype.sortBy.call(this.table, columns[at][3]);
      if (isDescending) Table.prototype.sortBy.call(this.table, columns[at][3]);
    } else this.sorted = "";
    this.set(this.rows);
    this.element.replaceChildren(this.legend, this.table.element);
  }
  set(rows) {
    this.rows = rows;
    this.table.set(rows);
    this.legend.replaceChildren(...legendOf(rows));
  }
  // The records in the order of the table.
  get ordered() {
    return this.table.rows;
  }
  sortChanged() {
    const at = this.table.columns.findIndex((each) => each[3] === this.table.sortedBy);
    this.sorted = at < 0 ? "" : `${this.table.isDescending ? "-" : ""}${this.names[at]}`;
    this.onChange(false);
  }
  choose(names) {
    this.names = names.length ? names : [...DEFAULT];
    try {
      localStorage.setItem(this.storageKey, this.names.join(","));
    } catch {
      /* no storage: the URL has the choice */
    }
    this.build();
    const isCut = this.rows.some((row) => this.fields.some((path) => fieldValue(row, path) === undefined));
    this.onChange(isCut);
  }
  // Fields of the loaded records that are not columns yet.
  suggestions() {
    const found = new Set();
    for (const row of this.rows.slice(0, 200)) {
      for (const name of ["value", "key"])
        for (const each of fieldPaths(name, documentOf(row, name))) found.add(each);
      for (const each of row.headers) if (/^[\w$.-]+$/.test(each.key ?? "")) found.add(`headers.${each.key}`);
      if (found.size >= SUGGESTED_MAX) break;
    }
    return [...found].filter((each) => !this.names.includes(each)).slice(0, SUGGESTED_MAX);
  }
  chooser() {
    const dialog = h("dialog", { "aria-label": "Columns" });
    const list = h("ul", { class: "lines columns" });
    const path = h("input", { name: "path", placeholder: "value.user.country", list: "column-paths" }),
      paths = h("datalist", { id: "column-paths" }),
      problem = h("p", { class: "bad", role: "alert", hidden: true });
    const chosen = [...this.names];
    const move = (name, step) => {
      const at = chosen.indexOf(name);
      chosen.splice(at, 1);
      chosen.splice(Math.max(at + step, 0), 0, name);
      draw();
      list.querySelector(`[data-move="${CSS.escape(`${name} ${step}`)}"]`)?.focus();
    };
    const label = (name) => (isStandard(name) ? STANDARD[name][0]() : visible(name));
    const button = (name, step, text, what) =>
      h(
        "button",
        {
          type: "button",
          "data-move": `${name} ${step}`,
          "aria-label": `Move ${label(name)} ${what}`,
          onclick: () => move(name, step),
        },
        text,
      );
    const others = [...Object.keys(STANDARD), ...this.suggestions()];
    const draw = () => {
      const all = [...chosen, ...others.filter((each) => !chosen.includes(each))];
      list.replaceChildren(
        ...all.map((name) =>
          h(
            "li",
            { class: "row" },
            h(
              "label",
              { class: "check" },
              h("input", {
                type: "checkbox",
                value: name,
                checked: chosen.includes(name),
                onchange: (event) => {
                  if (event.target.checked) chosen.push(name);
                  else chosen.splice(chosen.indexOf(name), 1);
                  draw();
                  list.querySelector(`input[value="${CSS.escape(name)}"]`)?.focus();
                },
              }),
              label(name),
            ),
            chosen.includes(name) && [button(name, -1, "↑", "left"), button(name, 1, "↓", "right")],
          ),
        ),
      );
      paths.replaceChildren(...this.suggestions().map((each) => h("option", { value: each })));
    };
    const add = () => {
      const name = path.value.trim();
      const isFull = chosen.filter((each) => !isStandard(each)).length >= FIELDS_MAX && !chosen.includes(name);
      problem.hidden = isPath(name) && !isFull;
      problem.textContent = isFull
        ? `At most ${FIELDS_MAX} fields can be columns; remove one first.`
        : "Enter a path such as value.user.country, value.lines.0.price, key.id or headers.trace.";
      if (!isPath(name) || isFull) return;
      if (!chosen.includes(name)) chosen.push(name);
      path.value = "";
      draw();
    };
    path.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      add();
    });
    draw();
    dialog.append(
      h("h1", {}, "Columns"),
      h("p", { class: "soft" }, "Standard columns, and fields of JSON keys, JSON values and headers."),
      h(
        "div",
        { class: "row" },
        field("Field", path),
        paths,
        h("button", { type: "button", onclick: add }, "Add field"),
      ),
      problem,
      list,
      h(
        "div",
        { class: "row" },
        h(
          "button",
          {
            type: "button",
            class: "main",
            onclick: () => {
              dialog.close();
              this.choose(chosen);
            },
          },
          "Show columns",
        ),
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              dialog.close();
              this.choose([...DEFAULT]);
            },
          },
          "Default columns",
        ),
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      ),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }
}
