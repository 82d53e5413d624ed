// Inspector: a panel with one record, its neighbours, its schemas and its context.

import { encodePart, get, post, session } from "./api.js";
import { bytes, counted, h, link, notify, number, visible } from "./dom.js";
import { facts } from "./forms.js";
import { TRANSACTION_STATES, deadLetterOf, idOf, indented, isCut, isDecoded, oversizedText, plain, pretty, shown, sizeOf } from "./records.js";
import { localZone, timeText } from "./times.js";

// Maximum size of a value that is loaded into the page; larger ones are downloaded.
const LOADED_MAX = 2_000_000;
// Maximum number of moves that wait, for example while a key is held.
const MOVES_WAITING_MAX = 5;

export class Inspector {
  // neighbour(row, step): returns the record before (-1) or after (1) another one in the table, null if there
  //   is none, undefined if the record is not in the table.
  // onOpen(row): called with the record that is shown, and with null when the panel is closed.
  constructor(topic, { neighbour, onOpen }) {
    this.topic = topic;
    this.neighbour = neighbour;
    this.onOpen = onOpen;
    this.row = null;
    // Narrow windows show the key and the value first, and fewer buttons.
    this.isNarrow = matchMedia("(max-width: 600px)").matches;
    this.isMoreOpen = !this.isNarrow;
    this.moving = Promise.resolve();
    this.movesWaiting = 0;
    this.dialog = document.getElementById("detail");
    this.dialog.onkeydown = (event) => this.key(event);
    this.dialog.onclose = () => {
      this.aborting?.abort();
      this.row = null;
      this.onOpen(null);
    };
  }
  pathOf(row) {
    return `/topics/${encodePart(this.topic)}/records/${idOf(row)}`;
  }
  // Opens the record at a place of the URL.
  async openAt(partition, offset) {
    try {
      const it = await get(this.pathOf({ partition: encodePart(partition), offset: encodePart(offset ?? "") }));
      this.open(it.record);
    } catch (error) {
      notify(error.message, true);
    }
  }
  open(row) {
    this.row = row;
    this.aborting?.abort();
    this.draw();
    if (!this.dialog.open) this.dialog.showModal();
    this.onOpen(row);
    if (!row.batch) this.complete(row);
  }
  // Loads what the table does not have: sizes, and the batch of the record.
  async complete(row) {
    this.aborting = new AbortController();
    try {
      const it = await get(this.pathOf(row), {}, { signal: this.aborting.signal });
      if (this.row === row) this.facts.replaceWith((this.facts = factsOf({ ...row, ...it.record })));
    } catch (error) {
      if (error.name !== "AbortError" && this.row === row) this.message(error.message);
    }
  }
  message(text) {
    this.problem.textContent = visible(text);
  }
  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    const isScrolling = event.key.length > 7 && event.target.matches("pre");
    if (!step || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.target.matches("input, textarea, select") || (isScrolling && /Up|Down/.test(event.key))) return;
    event.preventDefault();
    this.move(step);
  }
  // Moves one record back or forth, after the moves before it.
  move(step) {
    if (this.movesWaiting >= MOVES_WAITING_MAX) return;
    this.movesWaiting += 1;
    this.moving = this.moving.then(() => {
      this.movesWaiting -= 1;
      return this.row && this.step(step);
    });
  }
  async step(step) {
    try {
      const row = this.row;
      let found = await this.neighbour(row, step);
      if (found === undefined) found = await this.inPartition(row, step);
      if (this.row !== row) return;
      if (found) this.open(found);
      else this.message(step > 0 ? "This is the last record." : "This is the first record.");
    } catch (error) {
      this.message(error.message);
    }
  }
  // The nearest record of the partition, for a record that is not in the table.
  async inPartition(row, step) {
    const direction = step > 0 ? "next" : "previous";
    let at = row;
    while (this.row === row) {
      const it = await get(this.pathOf(at), { direction });
      if (it.record || it.continue_at === null) return it.record;
      at = { ...row, offset: it.continue_at };
    }
    return null;
  }
  draw() {
    const { row } = this,
      isOversized = Boolean(oversizedText(row));
    this.problem = h("p", { class: "bad", role: "status" });
    this.facts = factsOf(row);
    const contents = isOversized
      ? h("p", { class: "bad" }, `${oversizedText(row)}; use kbroker topic consume to read the record.`)
      : [row.summary ? h("p", {}, visible(row.summary)) : [], deadLetterBlock(row), this.block("key"), this.block("value"), headersOf(row)];
    const focused = this.dialog.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const button = (name, act, more = {}) =>
      h("button", { type: "button", "data-name": name, onclick: act, ...more }, name);
    this.dialog.replaceChildren(
      h(
        "div",
        {},
        h("h1", {}, visible(`${this.topic}, partition ${row.partition}, offset ${row.offset}`)),
        h(
          "div",
          { class: "row" },
          button("Close", () => this.dialog.close(), { autofocus: true }),
          button("← Previous", () => this.move(-1), { "aria-keyshortcuts": "ArrowLeft" }),
          button("Next →", () => this.move(1), { "aria-keyshortcuts": "ArrowRight" }),
        ),
        h(
          "details",
          { class: "more", open: this.isMoreOpen, ontoggle: (event) => (this.isMoreOpen = event.target.open) },
          h("summary", {}, "Copy and resend"),
          h(
            "div",
            { class: "row" },
            button("Copy link", () => this.copy(this.linkOf(row), "link")),
            isOversized ? [] : this.copyMenu(row),
            session.may_write && !isOversized ? this.writeButtons(row) : [],
          ),
        ),
        this.problem,
        this.isNarrow ? [contents, this.facts] : [this.facts, contents],
      ),
    );
    if (focused) [...this.dialog.querySelectorAll("[data-name]")].find((each) => each.dataset.name === focused)?.focus();
  }
  linkOf(row) {
    const base = location.href.split("#")[0];
    return `${base}#/topics/${encodePart(this.topic)}/messages?record=${row.partition}-${row.offset}`;
  }
  copyMenu(row) {
    const place = `-p ${row.partition} -o ${row.offset}`;
    const commands = {
      kcat: (where) => `kcat -C -b ${where} -t ${this.topic} ${place} -c 1`,
      kbroker: (where) => `kbroker topic consume ${this.topic} ${place} -n 1 -b ${where}`,
    };
    return [
      h("button", { type: "button", "data-name": "Copy record", onclick: () => this.copyRecord(row) }, "Copy record"),
      Object.entries(commands).map(([name, command]) =>
        h(
          "button",
          {
            type: "button",
            "data-name": name,
            onclick: async () => {
              const { listeners } = await get("/overview");
              this.copy(command(listeners[0].address), "command");
            },
          },
          `Copy ${name} command`,
        ),
      ),
    ];
  }
  async copyRecord(row) {
    if (isCut(row, "value") || isCut(row, "key"))
      this.message("The copy contains only the beginning of a long key or value; use Download.");
    this.copy(JSON.stringify(plain(row)), "record");
  }
  async copy(text, what) {
    try {
      await copyText(text, this.dialog);
      notify(`Copied: ${what}`);
    } catch {
      this.message(`The browser does not permit copying. Copy it by hand: ${text}`);
    }
  }
  writeButtons(row) {
    const resend = confirmButton("Resend", `Append a copy of this record to partition ${row.partition}?`, "Append", () =>
      post(`${this.pathOf(row)}/resend`)
        .then((it) => notify(`Written at offset ${it.written[0].offset}`))
        .catch((error) => notify(error.message, true)),
    );
    const copy = link(`/topics/${encodePart(this.topic)}/produce?record=${row.partition}-${row.offset}`, "Copy to Produce");
    return [copy, resend];
  }
  block(name) {
    const { row } = this,
      problem = row[`${name}_problem`],
      isJson = isDecoded(row, name),
      box = h("pre", { tabindex: 0 }, visible(pretty(row, name)));
    const size = row[`${name}_size`] ?? 0,
      isNull = row[name] === null;
    const url = `/api/v1${this.pathOf(row)}/${name}`;
    const load = async () => {
      const response = await fetch(`${url}${isJson ? "?decoded=1" : ""}`);
      if (!response.ok) throw new Error((await response.json()).error);
      return response.text();
    };
    const tooLarge = size > LOADED_MAX;
    const loadButton = (event) =>
      load()
        .then((text) => {
          box.textContent = visible(isJson || row[`${name}_format`] === "json" ? indented(text) : text);
          event.target.remove();
        })
        .catch((error) => this.message(error.message));
    const copy = () =>
      (isCut(row, name) ? load() : Promise.resolve(shown(row, name)))
        .then((text) => this.copy(text, name))
        .catch((error) => this.message(error.message));
    return [
      h("h2", {}, name === "key" ? "Key" : "Value", h("span", { class: "soft" }, ` ${row[`${name}_format`] ?? ""}`, schemaOf(row, name))),
      problem && h("p", { class: "bad" }, visible(problem)),
      isNull
        ? []
        : h(
            "div",
            { class: "row" },
            isCut(row, name) &&
              !tooLarge &&
              h("button", { type: "button", onclick: loadButton }, isJson ? "Load all" : `Load all ${bytes(size)}`),
            isCut(row, name) && tooLarge && h("span", { class: "soft" }, `The first 4 kB of ${bytes(size)}; download it to see all.`),
            tooLarge || h("button", { type: "button", "data-name": `copy-${name}`, onclick: copy }, `Copy ${name}`),
            h("a", { href: url, download: fileName(this.topic, row, name) }, `Download ${name}`),
          ),
      box,
    ];
  }
}

const fileName = (topic, row, name) => `${topic}-${row.partition}-${row.offset}-${name}.${row[`${name}_format`] === "json" ? "json" : "bin"}`;

function factsOf(row) {
  const size = (value) =>
    value === null || value === undefined
      ? "–"
      : value < 1000
        ? counted(value, "byte")
        : `${bytes(value)} (${number(value)} bytes)`;
  const { batch } = row;
  const isWritten = row.timestamp >= 0;
  const found = [
    ["Time (UTC)", isWritten ? timeText(row.timestamp, false) : "none"],
    ...(localZone() === "UTC"
      ? []
      : [[`Time (${localZone()})`, isWritten ? timeText(row.timestamp, true) : "none"]]),
    ["Timestamp", `${row.timestamp} ms, ${row.timestamp_type}`],
    ["Key", row.key === null && !row.oversized_bytes ? "null" : size(row.key_size)],
    ["Value", row.value === null && !row.oversized_bytes ? "null (tombstone)" : size(row.oversized_bytes ?? row.value_size)],
  ];
  if (batch) {
    const total = (row.key_size ?? 0) + sizeOf(row) + (row.headers_size ?? 0);
    const producer = batch.producer_id < 0 ? "none" : `${batch.producer_id}, epoch ${batch.producer_epoch}`;
    found.push(
      ["Headers", `${number(row.header_count)}, ${size(row.headers_size)}`],
      ["Key, value and headers", size(row.headers_size === null ? null : total)],
      ["Batch", `offset ${batch.base_offset}, ${counted(batch.records, "record")}, ${bytes(batch.bytes)}, compression ${batch.codec}`],
      ["Producer", producer],
      ["Leader epoch", String(batch.leader_epoch)],
    );
  } else if (row.producer_id !== undefined) found.push(["Producer", String(row.producer_id)]);
  if (row.producer_id !== undefined) found.push(["Transaction", transactionText(row.transaction)]);
  return facts(found);
}

function transactionText(state) {
  if (!state) return "in a transaction whose state was not read";
  return state === "committed" ? "committed" : `${state}: ${TRANSACTION_STATES[state]}`;
}

function schemaOf(row, name) {
  const it = row[`${name}_schema`];
  if (!it) return "";
  return [
    ` ${it.message ? `${visible(it.message)} ` : ""}of `,
    link(`/schemas/${encodePart(it.subject)}`, it.subject),
    `, version ${it.version}, schema ${it.id} (${it.type})`,
  ];
}

function deadLetterBlock(row) {
  const it = deadLetterOf(row);
  if (!it) return [];
  const query = new URLSearchParams({ from: "offset", offset: it.offset, partition: it.partition });
  return [
    h("h2", {}, "Dead letter"),
    h(
      "ul",
      { class: "lines card" },
      h("li", {}, "Cause: ", visible(it.message)),
      h(
        "li",
        {},
        "Source: ",
        link(
          `/topics/${encodePart(it.topic)}/messages?${query}`,
          `${it.topic}, partition ${it.partition}, offset ${it.offset}`,
        ),
      ),
      h("li", {}, "Group: ", link(`/groups/${encodePart(it.group)}`, it.group)),
      h("li", {}, "Deliveries: ", visible(it["delivery.count"])),
    ),
  ];
}

function headersOf(row) {
  const more = (row.header_count ?? 0) - row.headers.length;
  return [
    h("h2", {}, "Headers"),
    row.headers.length
      ? h(
          "div",
          { class: "scroll", tabindex: 0, role: "region", "aria-label": "Headers" },
          h(
            "table",
            {},
            h("thead", {}, h("tr", {}, ["Name", "Value", "Format"].map((each) => h("th", { scope: "col" }, each)))),
            h(
              "tbody",
              {},
              row.headers.map((each) =>
                h(
                  "tr",
                  {},
                  h("td", { class: "mono wide" }, visible(shown(each, "key"))),
                  h("td", { class: "mono wide" }, visible(shown(each, "value")), each.value_truncated ? " …" : ""),
                  h("td", {}, each.value_format ?? "null"),
                ),
              ),
            ),
          ),
        )
      : h("p", { class: "soft" }, "none"),
    more > 0 && h("p", { class: "soft" }, `${number(more)} more headers are not shown.`),
  ];
}

// Copies text; without a secure context browsers only permit the older way.
async function copyText(text, parent) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = h("textarea", { class: "copied", "aria-hidden": "true" });
  area.value = text;
  parent.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (!isCopied) throw new Error("not permitted");
}

// A button that asks for confirmation before it acts.
function confirmButton(name, question, yes, act) {
  const button = h("button", { type: "button", "data-name": name, onclick: () => toggle(true) }, name),
    no = h("button", { type: "button", onclick: () => toggle(false) }, "Cancel");
  const confirm = h(
    "button",
    {
      class: "main",
      type: "button",
      onclick: () => {
        toggle(false);
        act();
      },
    },
    yes,
  );
  const asked = h("span", { class: "asked row", role: "group", hidden: true }, question, confirm, no);
  function toggle(isAsked) {
    button.hidden = isAsked;
    asked.hidden = !isAsked;
    (isAsked ? no : button).focus();
  }
  return [button, asked];
}
