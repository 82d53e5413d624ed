// Records of a topic: search, live view and details.

import { get, encodePart, post, session } from "./api.js";
import { bytes, field, h, link, notify, number, time, visible } from "./dom.js";
import { Table } from "./table.js";

const FILTERS = ["contains", "key", "header", "where"];
const RECORDS_MAX = 5000;

const shown = (row, name) =>
  row[`${name}_text`] ?? row[name] ?? (row[`${name}_base64`] === undefined ? "null" : row[`${name}_base64`]);

// A record that is too large to read has only a size, and no key, value or headers.
const oversizedText = (row) => row.oversized_bytes && `${number(row.oversized_bytes)} bytes, not shown`;

const sizeOf = (row) =>
  row.oversized_bytes ??
  row.value_size ??
  (row.value_base64 === undefined
    ? new TextEncoder().encode(row.value ?? "").length
    : atob(row.value_base64).length);

// Context headers of a record in a dead-letter queue (KIP-1191), or null.
function deadLetterOf(row) {
  const prefix = "__dlq.errors.",
    found = {};
  for (const each of row.headers) {
    const name = shown(each, "key");
    if (name.startsWith(prefix)) found[name.slice(prefix.length)] = shown(each, "value");
  }
  const isWhole = ["topic", "partition", "offset", "group", "delivery.count", "message"].every(
    (each) => each in found,
  );
  return isWhole ? found : null;
}

function valueText(row) {
  const letter = row.value === null && deadLetterOf(row);
  if (!letter) return shown(row, "value");
  return `${letter.topic}-${letter.partition} offset ${letter.offset}, delivered ${letter["delivery.count"]} times: ${letter.message}`;
}

export default async function messages(view, name, query, isShown) {
  const value = (key, otherwise = "") => query.get(key) ?? otherwise,
    from = value("from", "newest");
  const origin = h(
    "select",
    { name: "from" },
    ["newest", "oldest", "offset", "timestamp", "live"].map((each) =>
      h("option", { selected: each === from }, each),
    ),
  );
  const inputs = {
    offset: h("input", { name: "offset", inputmode: "numeric", value: value("offset"), placeholder: "47" }),
    timestamp: h("input", { name: "timestamp", value: value("timestamp"), placeholder: "ms since the epoch" }),
    partition: h("input", { name: "partition", value: value("partition"), placeholder: "all" }),
    contains: h("input", { name: "contains", type: "search", value: value("contains") }),
    key: h("input", { name: "key", value: value("key") }),
    header: h("input", { name: "header", value: value("header"), placeholder: "name=text" }),
    where: h("input", { name: "where", value: value("where"), placeholder: "value.n > 3 and size < 100" }),
  };
  const labels = {
    offset: "Offset",
    timestamp: "Timestamp",
    partition: "Partitions",
    contains: "Contains",
    key: "Key contains",
    header: "Header",
    where: "Where",
  };
  const committed = h("input", { type: "checkbox", checked: value("committed") === "1" });
  const fields = Object.entries(inputs).map(([each, input]) => [each, field(labels[each], input)]);
  const choose = () =>
    fields.forEach(([each, label]) => {
      if (each === "offset" || each === "timestamp") label.hidden = origin.value !== each;
    });
  origin.addEventListener("change", choose);
  choose();
  const form = h(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        const given = new URLSearchParams({ from: origin.value });
        for (const [each, input] of Object.entries(inputs))
          if (input.value && !input.closest("label").hidden) given.set(each, input.value);
        if (committed.checked) given.set("committed", "1");
        const target = `#/topics/${encodePart(name)}/messages?${given}`;
        if (location.hash === target) dispatchEvent(new HashChangeEvent("hashchange"));
        else location.hash = target;
      },
    },
    field("From", origin),
    fields.map(([, label]) => label),
    h("label", { class: "check" }, committed, "Committed only"),
    h("button", { class: "main" }, "Search"),
  );
  const table = new Table(
    [
      ["Time", (row) => time(row.timestamp)],
      ["Partition", (row) => row.partition, "num"],
      ["Offset", (row) => number(row.offset), "num"],
      ["Key", (row) => (oversizedText(row) ? "–" : visible(shown(row, "key").slice(0, 80))), "mono"],
      ["Value", (row) => oversizedText(row) || visible(valueText(row).slice(0, 300)), "mono"],
      ["Size", (row) => bytes(sizeOf(row)), "num"],
    ],
    { label: "Records", pick: (row) => detail(name, row) },
  );
  const status = h("p", { class: "soft", role: "status" }),
    moreButton = h("button", { type: "button", hidden: true }, "Load more"),
    continueButton = h("button", { type: "button", hidden: true }, "Continue search");
  const save = h("button", { type: "button", onclick: () => download(name, rows) }, "Save as NDJSON");
  let rows = [];
  view.append(form, table.element, status, h("div", { class: "row" }, moreButton, continueButton, save));
  const asked = Object.fromEntries([...query.entries()].filter(([each]) => each !== "from"));
  if (from === "live")
    return live(name, asked, status, (found) => {
      rows = found.concat(rows).sort(newestFirst).slice(0, RECORDS_MAX);
      table.set(rows);
    });
  let cursor = "",
    scanned = 0,
    seconds = 0,
    isDone = false,
    isSearching = false;
  const busy = (is) => {
    moreButton.disabled = is;
    continueButton.disabled = is && !isSearching;
  };
  async function load() {
    busy(true);
    status.textContent = status.textContent ? `${status.textContent} …` : "Searching …";
    const it = await get(`/topics/${encodePart(name)}/messages`, { ...asked, from, cursor, limit: 200 }).catch(
      (error) => {
        status.textContent = visible(error.message);
        isSearching = false;
      },
    );
    busy(isSearching);
    status.className = it ? "soft" : "bad";
    if (!it || !isShown()) return;
    ({ cursor, done: isDone } = it);
    scanned += it.scanned;
    seconds += it.seconds;
    rows = rows.concat(it.records);
    table.set(rows);
    const percent = Math.floor((100 * scanned) / Math.max(scanned + it.remaining, 1));
    status.textContent = `${number(rows.length)} records found, ${number(scanned)} scanned in ${seconds.toFixed(1)} s${isDone ? "; complete" : `; ${number(it.remaining)} left (${percent} % done)`}${it.too_large ? `; ${it.too_large} values too large for the expression` : ""}`;
    moreButton.hidden = isDone;
    continueButton.hidden = isDone || !FILTERS.some((each) => asked[each]);
  }
  // Sends requests until one finds a record. Each request has the usual small budget.
  async function search() {
    isSearching = !isSearching;
    if (!isSearching) {
      continueButton.disabled = true;
      return;
    }
    continueButton.textContent = "Stop";
    const before = rows.length;
    while (isSearching && !isDone && rows.length === before && isShown()) await load();
    isSearching = false;
    continueButton.textContent = "Continue search";
    busy(false);
  }
  moreButton.addEventListener("click", load);
  continueButton.addEventListener("click", search);
  load();
  return null;
}

// Partitions are read one by one, so a record may arrive after newer ones of other partitions.
function newestFirst(a, b) {
  return b.timestamp - a.timestamp || a.partition - b.partition || b.offset - a.offset;
}

function live(name, asked, status, take) {
  const kept = Object.entries(asked).filter(([each]) => FILTERS.includes(each) || each === "partition");
  const source = new EventSource(`/api/v1/topics/${encodePart(name)}/live?${new URLSearchParams(kept)}`);
  let received = 0,
    dropped = 0;
  status.textContent = "Waiting for records …";
  source.onmessage = (event) => {
    const it = JSON.parse(event.data);
    received += it.received;
    dropped += it.dropped;
    if (it.records.length) take(it.records);
    status.textContent = it.problem
      ? visible(it.problem)
      : `Live: ${number(received)} records received${dropped ? `, ${number(dropped)} skipped (rate limit)` : ""}`;
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) status.textContent = "The live view ended.";
  };
  return () => source.close();
}

function download(name, rows) {
  const fields = [
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "key_base64",
    "value",
    "value_base64",
  ];
  const whole = rows.filter((row) => !oversizedText(row));
  const lines = whole.map((row) =>
    JSON.stringify({
      ...Object.fromEntries(fields.filter((each) => each in row).map((each) => [each, row[each]])),
      headers: row.headers.map((each) =>
        Object.fromEntries(
          ["key", "key_base64", "value", "value_base64"]
            .filter((one) => one in each)
            .map((one) => [one, each[one]]),
        ),
      ),
    }),
  );
  if (rows.some((row) => row.value_truncated || row.key_truncated))
    notify("The file contains truncated values; load those records one by one.", true);
  if (whole.length < rows.length)
    notify(`${number(rows.length - whole.length)} records are too large to read and are not in the file.`, true);
  const url = URL.createObjectURL(new Blob([lines.join("\n")], { type: "application/x-ndjson" }));
  h("a", { href: url, download: `${name}.ndjson` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function pretty(row, name) {
  const text = shown(row, name);
  const isJson = ["json", "coordinator", "avro", "protobuf"].includes(row[`${name}_format`]);
  return isJson ? indented(text) : text;
}

// Formats JSON on several lines, even if it is truncated. 64-bit numbers keep their digits.
function indented(text) {
  let depth = 0,
    shown = "",
    before = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\[^])*"?|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const closes = token === "}" || token === "]";
    depth += closes ? -1 : 0;
    const isEmpty = closes && (before === "{" || before === "[");
    if (before && before !== ":" && token !== "," && token !== ":" && !isEmpty)
      shown += `\n${"  ".repeat(Math.min(Math.max(depth, 0), 100))}`;
    shown += token === ":" ? ": " : token;
    depth += token === "{" || token === "[" ? 1 : 0;
    before = token;
  }
  return shown;
}

const schemaOf = (row, name) => {
  const it = row[`${name}_schema`];
  return it
    ? ` ${it.message ? `${visible(it.message)} ` : ""}of ${visible(it.subject)}, version ${it.version}, schema ${it.id} (${it.type})`
    : "";
};

function detail(topicName, row) {
  const dialog = document.getElementById("detail"),
    where = `/topics/${encodePart(topicName)}/records/${row.partition}/${row.offset}`;
  const block = (name) => {
    const box = h("pre", { tabindex: 0 }, visible(pretty(row, name)));
    const problem = row[`${name}_problem`],
      isDecoded = row[`${name}_schema`] && !problem,
      isTruncated = row[isDecoded ? `${name}_text_truncated` : `${name}_truncated`];
    const load =
      isTruncated &&
      h(
        "button",
        {
          type: "button",
          onclick: async (event) => {
            const found = await fetch(`/api/v1${where}/${name}${isDecoded ? "?decoded=1" : ""}`),
              text = await found.text();
            box.textContent = visible(isDecoded ? indented(text) : text);
            event.target.remove();
          },
        },
        isDecoded ? "Load all" : `Load all ${bytes(row[`${name}_size`])}`,
      );
    return [
      h(
        "h2",
        {},
        name === "key" ? "Key" : "Value",
        h("span", { class: "soft" }, ` ${row[`${name}_format`] ?? ""}${schemaOf(row, name)}`),
      ),
      problem && h("p", { class: "bad" }, visible(problem)),
      load,
      box,
    ];
  };
  const close = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close");
  const copy = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        await navigator.clipboard.writeText(JSON.stringify(row));
        notify("Copied");
      },
    },
    "Copy",
  );
  const resend =
    session.may_write &&
    confirmButton("Resend", `Append a copy of this record to partition ${row.partition}?`, "Append", () =>
      post(`${where}/resend`)
        .then((it) => notify(`Written at offset ${it.written[0].offset}`))
        .catch((error) => notify(error.message, true)),
    );
  dialog.replaceChildren(
    h(
      "div",
      {},
      h("h1", {}, `Partition ${row.partition}, offset ${row.offset}`),
      h(
        "p",
        { class: "soft" },
        `${time(row.timestamp)} ${row.timestamp_type}${row.producer_id === undefined ? "" : `, producer ${row.producer_id}`}`,
      ),
      h("div", { class: "row" }, close, copy, oversizedText(row) ? [] : resend),
      oversizedText(row)
        ? h("p", { class: "bad" }, `${oversizedText(row)}; use kbroker topic consume to read the record.`)
        : [deadLetterBlock(row), block("key"), block("value"), headersOf(row)],
    ),
  );
  dialog.showModal();
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

const headersOf = (row) => [
  h("h2", {}, "Headers"),
  h(
    "ul",
    { class: "lines card" },
    row.headers.length
      ? row.headers.map((each) =>
          h("li", { class: "mono" }, `${visible(shown(each, "key"))}: ${visible(shown(each, "value"))}`),
        )
      : h("li", {}, "none"),
  ),
];

// A button that asks for confirmation before it acts.
function confirmButton(name, question, yes, act) {
  const button = h("button", { type: "button", onclick: () => toggle(true) }, name),
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
