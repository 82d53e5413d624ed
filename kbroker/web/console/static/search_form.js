// Form of a search through the records of a topic. Changes take effect with Search or Enter.

import { field, h, visible } from "./dom.js";
import { inputText, localZone, msOf, ranges, useZone, zone } from "./times.js";

export const FILTERS = ["contains", "key", "header", "where"];
const ORIGINS = [
  ["newest", "Newest first"],
  ["oldest", "Oldest first"],
  ["offset", "From offset"],
  ["live", "Live"],
];
// Records by the outcome of their transaction, with the parameter of the search.
const OUTCOMES = [
  ["", "all records"],
  ["committed", "committed only"],
  ["aborted", "aborted only"],
];
const TEXTS = [
  ["offset", "Offset", { inputmode: "numeric", placeholder: "47" }],
  ["partition", "Partitions", { placeholder: "all" }],
  ["contains", "Contains", { type: "search" }],
  ["key", "Key contains", {}],
  ["header", "Header", { placeholder: "name=text" }],
  ["where", "Where", { placeholder: "value.n > 3 and size < 100", class: "where" }],
];

export class SearchForm {
  // onSearch: called when the user searches. onCancel: when the user cancels. onZone: after a change of the zone.
  constructor(query, { onSearch, onCancel, onZone }) {
    this.onSearch = onSearch;
    this.onZone = onZone;
    const from = query.get("from") ?? "newest";
    this.kept = Object.fromEntries(["ms", "bytes"].map((each) => [each, query.get(each) ?? ""]));
    this.origin = h(
      "select",
      { name: "from" },
      ORIGINS.map(([value, text]) => h("option", { value, selected: value === from }, text)),
    );
    this.texts = Object.fromEntries(
      TEXTS.map(([name, , more]) => [name, h("input", { name, value: query.get(name) ?? "", ...more })]),
    );
    const clock = (name) => h("input", { name, type: "datetime-local", step: 1, max: "9998-12-31T23:59" });
    this.clocks = { since: clock("since"), until: clock("until") };
    for (const [name, input] of Object.entries(this.clocks))
      if (/^-?\d+$/.test(query.get(name) ?? "")) input.value = inputText(Number(query.get(name))) ?? "";
    this.outcome = h(
      "select",
      { name: "outcome" },
      OUTCOMES.map(([value, text]) => h("option", { value, selected: query.get(value) === "1" }, text)),
    );
    this.range = h(
      "select",
      { name: "range", onchange: () => this.chooseRange() },
      h("option", { value: "" }, "choose …"),
      ranges().map(([name]) => h("option", {}, name)),
    );
    this.zone = h(
      "select",
      { name: "zone", onchange: () => this.changeZone() },
      h("option", { value: "UTC", selected: !zone.isLocal }, "UTC"),
      localZone() === "UTC"
        ? ""
        : h("option", { value: "local", selected: zone.isLocal }, `${localZone()} (this browser)`),
    );
    this.problem = h("span", { class: "bad", id: "where-problem", role: "alert", hidden: true });
    this.pending = h("span", { class: "soft", "aria-live": "polite", hidden: true });
    this.searchButton = h("button", { class: "main" }, "Search");
    this.cancelButton = h("button", { type: "button", hidden: true, onclick: onCancel }, "Cancel");
    this.element = this.build();
    this.apply();
  }
  build() {
    const labels = Object.fromEntries(TEXTS.map(([name, label]) => [name, field(label, this.texts[name])]));
    this.times = [
      field("From time", this.clocks.since),
      field("To time", this.clocks.until),
      field("Times", this.range),
    ];
    this.outcomes = field("Transactions", this.outcome);
    this.offset = labels.offset;
    const { offset, partition, ...filters } = labels;
    this.origin.addEventListener("change", () => this.arrange());
    this.arrange();
    return h(
      "form",
      {
        class: "bar",
        novalidate: true,
        oninput: () => this.changed(),
        onchange: () => this.changed(),
        onsubmit: (event) => {
          event.preventDefault();
          this.onSearch();
        },
      },
      field("From", this.origin),
      offset,
      this.times,
      field("Time zone", this.zone),
      partition,
      Object.values(filters),
      this.outcomes,
      h("div", { class: "row" }, this.searchButton, this.cancelButton, this.pending),
      this.problem,
    );
  }
  arrange() {
    this.offset.hidden = this.origin.value !== "offset";
    // A live view shows records before their transactions end.
    for (const each of [...this.times, this.outcomes]) each.hidden = this.origin.value === "live";
  }
  // Parameters of the search that the form describes.
  values() {
    const found = { from: this.origin.value === "newest" ? "" : this.origin.value, ...this.kept };
    for (const [name, input] of Object.entries(this.texts))
      if (!input.closest("label").hidden) found[name] = input.value.trim();
    if (this.origin.value !== "live")
      for (const [name, input] of Object.entries(this.clocks)) found[name] = String(msOf(input.value) ?? "");
    if (this.origin.value !== "live" && this.outcome.value) found[this.outcome.value] = "1";
    return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
  }
  apply() {
    this.applied = this.values();
    this.changed();
    this.showError(null);
  }
  changed() {
    const isPending = new URLSearchParams(this.values()).toString() !== new URLSearchParams(this.applied).toString();
    this.pending.hidden = !isPending;
    this.pending.textContent = isPending ? "Press Enter or Search to apply the changes." : "";
  }
  chooseRange() {
    const found = ranges().find(([name]) => name === this.range.value);
    if (!found) return;
    const [, since, until] = found;
    this.clocks.since.value = since === null ? "" : inputText(since - (since % 1000));
    this.clocks.until.value = until === null ? "" : inputText(until);
    this.range.value = "";
    this.onSearch();
  }
  // The times stay the same; only their text changes.
  changeZone() {
    const chosen = Object.values(this.clocks).map((input) => msOf(input.value));
    useZone(this.zone.value === "local");
    Object.values(this.clocks).forEach((input, at) => {
      input.value = chosen[at] === null ? "" : inputText(chosen[at]);
    });
    this.onZone();
  }
  setSearching(is) {
    this.cancelButton.hidden = !is;
  }
  // Shows an error of the expression at its field, with the part that is wrong marked.
  showError(error) {
    const { parameter, position } = error?.details ?? {},
      input = this.texts.where;
    const isHere = parameter === "where";
    this.problem.hidden = !isHere;
    if (!isHere) {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
      this.problem.replaceChildren();
      return;
    }
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", "where-problem");
    const text = this.applied.where ?? "";
    this.problem.replaceChildren(
      visible(error.message),
      ` (character ${position + 1}): `,
      h("code", {}, visible(text.slice(0, position)), h("mark", {}, visible(text.slice(position)) || "…")),
    );
    input.setSelectionRange(position, text.length);
  }
}
