// Records of a topic: search and table. The live view and the inspector are modules of their own.

import { encodePart, get } from "./api.js";
import { RecordColumns } from "./columns.js";
import { counted, h, notify, number, visible } from "./dom.js";
import { Inspector } from "./inspector.js";
import { LiveTail } from "./live_tail.js";
import { FILTERS, SearchForm } from "./search_form.js";
import { idOf, oversizedText, plain } from "./records.js";

const PAGE = 200;

export default async function messages(view, name, query, isShown) {
  const page = new MessagesPage(view, name, query, isShown);
  page.start();
  return () => page.close();
}

class MessagesPage {
  constructor(view, name, query, isShown) {
    this.name = name;
    this.isShown = isShown;
    this.rows = [];
    this.live = null;
    this.record = query.get("record") ?? "";
    this.form = new SearchForm(query, {
      onSearch: () => this.restart(true),
      onCancel: () => this.cancel(),
      onZone: () => this.columns.build(),
    });
    this.columns = new RecordColumns(name, query, {
      pick: (row) => this.inspector.open(row),
      onChange: (isReload) => this.columnsChanged(isReload),
    });
    this.inspector = new Inspector(name, {
      neighbour: (row, step) => this.neighbour(row, step),
      onOpen: (row) => this.remember({ record: row ? idOf(row).replace("/", "-") : "" }),
    });
    this.status = h("p", { class: "soft", role: "status" });
    this.progress = h("progress", { max: 1, value: 0, "aria-label": "Scanned records", hidden: true });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.load() }, "Load more");
    this.liveButtons = h("span", { class: "row", hidden: true });
    // In a narrow window a search of the URL is closed, so that its records are visible.
    const isOpen = !matchMedia("(max-width: 600px)").matches || !Object.keys(this.form.applied).length;
    this.filters = h("details", { class: "filters", open: isOpen }, h("summary", {}, "Filter"), this.form.element);
    view.append(
      this.filters,
      h("div", { class: "searching" }, this.progress, this.status, this.liveButtons),
      this.columns.element,
      h(
        "div",
        { class: "row" },
        this.more,
        h("button", { type: "button", onclick: () => this.columns.chooser() }, "Columns"),
        h("button", { type: "button", onclick: () => download(this.name, this.rows) }, "Save as NDJSON"),
      ),
    );
  }
  start() {
    this.restart(false);
    if (this.record) this.inspector.openAt(...this.record.split("-"));
  }
  get path() {
    return `/topics/${encodePart(this.name)}`;
  }
  // Writes the state of the page to the URL. A new search is a step of the browser's history.
  remember(changes, isStep = false) {
    this.record = changes.record ?? this.record;
    const given = { ...this.form.applied, ...this.columns.parameters, record: this.record };
    const text = new URLSearchParams(Object.entries(given).filter(([, value]) => value)).toString();
    const target = `#${this.path}/messages${text ? `?${text}` : ""}`;
    if (!this.isShown() || location.hash === target) return;
    history[isStep ? "pushState" : "replaceState"](null, "", target);
  }
  restart(isStep) {
    this.cancel();
    this.live?.close();
    this.live = null;
    this.rows = [];
    this.columns.set(this.rows);
    this.form.apply();
    if (isStep) this.remember({ record: "" }, true);
    this.more.hidden = true;
    this.progress.hidden = true;
    this.liveButtons.hidden = this.form.applied.from !== "live";
    if (this.form.applied.from === "live") {
      this.live = new LiveTail(this.name, () => this.liveQuery(), this.status, this.liveButtons, {
        isFiltered: () => FILTERS.some((each) => this.form.applied[each]),
        take: (rows) => {
          this.rows = rows;
          this.columns.set(rows);
        },
        fail: (error) => this.showError(error),
      });
      return;
    }
    this.cursor = "";
    this.scanned = 0;
    this.remaining = 0;
    this.seconds = 0;
    this.tooLarge = 0;
    this.isDone = false;
    this.load();
  }
  liveQuery() {
    const { applied } = this.form;
    const kept = Object.entries(applied).filter(([each]) => FILTERS.includes(each) || each === "partition");
    return { ...Object.fromEntries(kept), field: this.columns.fields };
  }
  columnsChanged(isReload) {
    this.remember({});
    if (this.live) this.live.reconnect();
    else if (isReload) this.restart(false);
  }
  cancel() {
    this.aborting?.abort();
    this.loading = null;
  }
  close() {
    this.cancel();
    this.live?.close();
  }
  // Searches until a page of records is found, the end is reached, or the user cancels. Each request has the
  // usual small budget, and the server stops when a request is aborted.
  async load() {
    if (this.loading) {
      await this.loading;
      return;
    }
    const aborting = new AbortController();
    this.aborting = aborting;
    this.form.setSearching(true);
    this.more.disabled = true;
    this.loading = this.search(this.rows.length + PAGE, aborting.signal);
    await this.loading;
    if (this.aborting !== aborting) return;
    this.loading = null;
    this.form.setSearching(false);
    this.progress.hidden = true;
    this.more.disabled = false;
    this.more.hidden = this.isDone;
    this.more.textContent = FILTERS.some((each) => this.form.applied[each]) ? "Continue search" : "Load more";
  }
  async search(wanted, signal) {
    this.showStatus("Searching …");
    while (!this.isDone && this.rows.length < wanted && this.isShown() && !signal.aborted) {
      const query = { ...this.form.applied, cursor: this.cursor, field: this.columns.fields };
      try {
        const limit = wanted - this.rows.length;
        const found = await get(`${this.path}/messages`, { ...query, limit }, { signal });
        if (signal.aborted) break;
        this.take(found);
      } catch (error) {
        if (signal.aborted) break;
        this.showError(error);
        this.showStatus("", error.message);
        this.isDone = true;
        return;
      }
    }
    if (this.aborting?.signal === signal) this.showStatus(signal.aborted ? "cancelled" : "");
  }
  // Shows an error at its field.
  showError(error) {
    this.filters.open = true;
    this.form.showError(error);
  }
  take(it) {
    ({ cursor: this.cursor, done: this.isDone, remaining: this.remaining } = it);
    this.scanned += it.scanned;
    this.seconds += it.seconds;
    this.tooLarge += it.too_large;
    if (it.records.length) {
      this.rows = this.rows.concat(it.records);
      this.columns.set(this.rows);
    }
    this.progress.value = this.scanned / Math.max(this.scanned + this.remaining, 1);
    this.progress.hidden = this.isDone;
    this.showStatus("searching …");
  }
  showStatus(state, problem = "") {
    this.status.className = problem ? "bad" : "soft";
    if (problem) {
      this.status.textContent = visible(problem);
      return;
    }
    const all = this.scanned + this.remaining,
      percent = Math.floor((100 * this.scanned) / Math.max(all, 1));
    const rate = this.seconds > 0.5 ? ` (${number(Math.round(this.scanned / this.seconds))} records/s)` : "";
    const parts = [
      `${counted(this.rows.length, "record")} found, ${number(this.scanned)} scanned in ${this.seconds.toFixed(1)} s${rate}`,
      this.isDone ? "complete" : `${number(this.remaining)} left (${percent} % done)`,
      this.tooLarge ? `${number(this.tooLarge)} values too large for the expression` : "",
      this.isDone ? "" : state,
    ];
    this.status.textContent = this.seconds || this.isDone ? parts.filter(Boolean).join("; ") : state;
  }
  // The record before or after another one in the table. More records are loaded at the end of the table.
  // Returns undefined if the record is not in the table, and null if there is no other record.
  async neighbour(row, step) {
    const place = () => this.columns.ordered.findIndex((each) => idOf(each) === idOf(row));
    if (place() < 0) return undefined;
    let found = this.columns.ordered[place() + step];
    if (!found && step > 0 && !this.live && !this.isDone) {
      await this.load();
      found = this.columns.ordered[place() + step];
    }
    return found ?? null;
  }
}

function download(name, rows) {
  const whole = rows.filter((row) => !oversizedText(row));
  if (rows.some((row) => row.value_truncated || row.key_truncated))
    notify("The file contains truncated values; load those records one by one.", true);
  if (whole.length < rows.length)
    notify(`${number(rows.length - whole.length)} records are too large to read and are not in the file.`, true);
  const lines = whole.map((row) => JSON.stringify(plain(row)));
  const url = URL.createObjectURL(new Blob([lines.join("\n")], { type: "application/x-ndjson" }));
  h("a", { href: url, download: `${name}.ndjson` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
