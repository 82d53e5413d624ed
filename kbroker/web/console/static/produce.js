// Form that writes records: one record, or a file of NDJSON lines.

import { encodePart, get, parameters, post, session } from "./api.js";
import { bytes, field, h, link, notify, number, visible } from "./dom.js";
import { indented, isCut, shown } from "./records.js";
import { SchemaChoice } from "./schema_choice.js";
import { localZone, msOf, zone, zoneName } from "./times.js";

// Maximum number of lines of a request, and maximum size of a file of lines, which needs several requests.
const LINES_MAX = 1000,
  FILE_MAX = 100_000_000,
  // A larger value of a file is not shown in the form.
  SHOWN_MAX = 200_000,
  RESULTS_MAX = 50;
const KINDS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["base64", "Base64"],
  ["empty", "Empty"],
  ["null", "Null (tombstone)"],
];

export default async function produce(view, name, query) {
  const page = new ProducePage(name);
  view.append(page.element);
  const record = query.get("record");
  if (record) page.fill(...record.split("-")).catch((error) => notify(error.message, true));
}

class ProducePage {
  constructor(name) {
    this.name = name;
    this.file = null;
    this.path = `/topics/${encodePart(name)}`;
    this.key = h("input", { name: "key", placeholder: "null" });
    this.keyKind = select("keyKind", KINDS.slice(0, 4));
    this.partition = h("input", { name: "partition", inputmode: "numeric", placeholder: "by key" });
    this.timestamp = h("input", { name: "timestamp", type: "datetime-local", step: 1 });
    this.kind = select("valueKind", KINDS);
    this.value = h("textarea", { name: "value", spellcheck: "false" });
    this.keySchema = new SchemaChoice("Key", `${name}-key`, () => this.arrange());
    this.valueSchema = new SchemaChoice("Value", `${name}-value`, () => this.arrange());
    this.lines = h("textarea", {
      name: "lines",
      spellcheck: "false",
      placeholder: '{"key": "c1", "value": {"country": "DE"}, "headers": [{"key": "trace", "value": "7"}]}',
    });
    this.problem = h("p", { class: "bad", role: "alert", hidden: true });
    this.headers = h("tbody");
    this.results = h("ul", { class: "lines card", "aria-label": "Written records", hidden: true });
    this.status = h("p", { class: "soft", role: "status" });
    this.isLines = h("input", { type: "checkbox", name: "isLines", onchange: () => this.arrange() });
    this.isByKey = h("input", { type: "checkbox", name: "isByKey" });
    this.submit = h("button", { class: "main" }, "Produce");
    this.fileNote = h("p", { class: "soft", hidden: true });
    this.element = this.build();
    this.arrange();
  }
  build() {
    const limit = `${bytes(session.request_bytes_max)} per request`;
    const zoneText = zone.isLocal ? localZone() : zoneName();
    const button = (text, onclick) => h("button", { type: "button", onclick }, text);
    this.one = h(
      "div",
      {},
      h(
        "div",
        { class: "bar row" },
        field("Key", this.key),
        field("Key is", this.keyKind),
        field("Partition", this.partition),
        field(`Timestamp (${zoneText}, empty for now)`, this.timestamp),
        this.keySchema.element,
      ),
      this.keySchema.note,
      h("h2", {}, "Headers"),
      h(
        "table",
        { class: "headers", "aria-label": "Headers of the record" },
        h("thead", {}, h("tr", {}, ["Name", "Value", "Remove"].map((each) => h("th", { scope: "col" }, each)))),
        this.headers,
      ),
      h("div", { class: "row" }, button("Add header", () => this.addHeader().querySelector("input").focus())),
      h("h2", {}, "Value"),
      h(
        "div",
        { class: "row" },
        field("Value is", this.kind),
        this.valueSchema.element,
        button("Format JSON", () => this.format()),
        button("Sample from schema", () => this.sample()),
        fileField(`Value from a file (up to ${limit})`, "valueFile", (file) => this.takeValue(file)),
      ),
      this.valueSchema.note,
      this.fileNote,
      field("Value", this.value),
    );
    this.many = h(
      "div",
      {},
      h(
        "p",
        { class: "soft" },
        `Each line is a JSON object with the optional fields key, value, headers, partition and timestamp, as in files of Save as NDJSON. At most ${number(LINES_MAX)} lines and ${limit}; a file is sent in several requests.`,
      ),
      h("label", { class: "check" }, this.isByKey, "Choose partitions by key (ignore the partitions of the lines)"),
      fileField(`NDJSON file (up to ${bytes(FILE_MAX)})`, "linesFile", (file) => this.takeLines(file)),
      field("NDJSON lines", this.lines),
    );
    this.kind.addEventListener("change", () => this.arrange());
    this.value.addEventListener("input", () => this.check());
    return h(
      "form",
      {
        class: "produce",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          this.send();
        },
      },
      h("label", { class: "check" }, this.isLines, "Write NDJSON lines"),
      this.one,
      this.many,
      this.problem,
      h("div", { class: "row" }, this.submit, button("Clear", () => this.clear())),
      this.status,
      this.results,
    );
  }
  arrange() {
    const isLines = this.isLines.checked,
      hasText = ["text", "json", "base64"].includes(this.kind.value);
    this.one.hidden = isLines;
    this.many.hidden = !isLines;
    this.value.disabled = !hasText || this.file !== null;
    this.fileNote.hidden = this.file === null;
    this.check();
  }
  clear() {
    this.file = null;
    this.element.reset();
    this.headers.replaceChildren();
    this.status.textContent = "";
    this.arrange();
  }
  addHeader(name = "", value = "", isNull = false) {
    const row = h(
      "tr",
      {},
      h("td", {}, h("input", { "aria-label": "Header name", value: name })),
      h("td", {}, h("input", { "aria-label": "Header value", value, placeholder: isNull ? "null" : null })),
      h("td", {}, h("button", { type: "button", "aria-label": "Remove header", onclick: () => row.remove() }, "×")),
    );
    row.dataset.isNull = isNull ? "1" : "";
    this.headers.append(row);
    return row;
  }
  showProblem(text) {
    this.problem.hidden = !text;
    this.problem.textContent = visible(text ?? "");
    return text;
  }
  // Checks the value as it is typed. Returns the problem, or an empty string.
  check() {
    let text = "";
    if (!this.isLines.checked && this.file === null) {
      if (this.kind.value === "json" && this.value.value.trim()) text = jsonProblem(this.value.value);
      if (this.kind.value === "base64" && decoded(this.value.value) === null) text = "The value is not valid Base64.";
    }
    this.value.setAttribute("aria-invalid", String(Boolean(text)));
    return this.showProblem(text);
  }
  format() {
    const text = jsonProblem(this.value.value);
    if (this.showProblem(text)) {
      const at = positionOf(this.value.value);
      this.value.focus();
      if (at !== null) this.value.setSelectionRange(at, at + 1);
      return;
    }
    this.kind.value = "json";
    this.value.value = indented(this.value.value);
    this.arrange();
  }
  async takeValue(file) {
    if (file.size > session.request_bytes_max * 0.7) {
      const limit = `${bytes(session.request_bytes_max)} (http.max.request.bytes)`;
      this.showProblem(`${file.name} has ${bytes(file.size)}: requests may have ${limit}, and bytes are sent as Base64.`);
      return;
    }
    this.setBytes(new Uint8Array(await file.arrayBuffer()), file.name);
  }
  // Shows bytes as text if they are UTF-8, and as Base64 otherwise.
  setBytes(data, name) {
    const text = textOf(data);
    this.file = null;
    if (data.length > SHOWN_MAX) {
      this.file = { value_base64: base64(data) };
      this.fileNote.textContent = `The value is ${visible(name)} with ${bytes(data.length)}. Clear removes it.`;
      this.value.value = "";
    } else this.value.value = text ?? base64(data);
    this.kind.value = text === null ? "base64" : text.trim() && !jsonProblem(text) && /^\s*[[{]/.test(text) ? "json" : "text";
    this.arrange();
  }
  async takeLines(file) {
    if (file.size > FILE_MAX) {
      this.showProblem(`${file.name} has ${bytes(file.size)}, more than ${bytes(FILE_MAX)}. Use kbroker topic produce for larger files.`);
      return;
    }
    await this.writeLines(await file.text(), file.name);
  }
  // Fills the form from an existing record.
  async fill(partition, offset) {
    const place = `${this.path}/records/${encodePart(partition)}/${encodePart(offset ?? "")}`;
    const { record } = await get(place);
    this.key.value = record.key === null ? "" : (record.key ?? record.key_base64);
    this.keyKind.value = record.key_base64 === undefined ? (record.key === "" ? "empty" : "text") : "base64";
    if (isCut(record, "key")) notify("The key is longer than 4 kB: only its beginning was copied.", true);
    this.partition.value = record.partition;
    this.headers.replaceChildren();
    for (const each of record.headers) this.addHeader(shown(each, "key"), each.value === null ? "" : shown(each, "value"), each.value === null);
    if (record.value === null) {
      this.kind.value = "null";
      this.arrange();
    } else {
      const response = await fetch(`/api/v1${place}/value`);
      if (!response.ok) throw new Error((await response.json()).error);
      this.setBytes(new Uint8Array(await response.arrayBuffer()), `the value of offset ${record.offset}`);
    }
    this.status.textContent = `Copied from partition ${record.partition}, offset ${record.offset}.`;
  }
  record() {
    const record = { ...this.keyFields(), ...this.valueFields() };
    record.headers = [...this.headers.children].map((row) => {
      const [name, value] = row.querySelectorAll("input");
      return { key: name.value, value: row.dataset.isNull && !value.value ? null : value.value };
    });
    if (this.partition.value.trim()) record.partition = Number(this.partition.value);
    const timestamp = msOf(this.timestamp.value);
    if (timestamp !== null) record.timestamp = timestamp;
    return record;
  }
  keyFields() {
    if (this.keyKind.value === "empty") return { key: "" };
    if (!this.key.value) return { key: null };
    return this.keyKind.value === "base64" ? { key_base64: this.key.value } : { key: this.key.value };
  }
  valueFields() {
    if (this.kind.value === "null") return { value: null };
    if (this.kind.value === "empty") return { value: "" };
    if (this.file) return this.file;
    return this.kind.value === "base64" ? { value_base64: this.value.value.trim() } : { value: this.value.value };
  }
  // Returns what the user has to correct first, or an empty string.
  formProblem() {
    const hasText = ["text", "json", "base64"].includes(this.kind.value);
    if (hasText && !this.file && !this.value.value) {
      this.value.focus();
      return "Enter a value, or choose Empty or Null (tombstone) in Value is.";
    }
    if (!/^\s*\d*\s*$/.test(this.partition.value)) return "Partition: enter a number, or leave it empty.";
    if (this.keyKind.value === "json" && this.key.value && jsonProblem(this.key.value)) return `Key: ${jsonProblem(this.key.value)}`;
    if (this.keyKind.value === "base64" && decoded(this.key.value) === null) return "The key is not valid Base64.";
    if ([...this.headers.children].some((row) => !row.querySelector("input").value)) return "Each header needs a name.";
    return this.check();
  }
  async send() {
    if (this.isLines.checked) {
      await this.writeLines(this.lines.value, "The form");
      return;
    }
    if (this.showProblem(this.formProblem())) return;
    await this.run(async () => this.showWritten(await this.post(JSON.stringify(this.record()))));
  }
  async sample() {
    try {
      this.value.value = indented(JSON.stringify(await this.valueSchema.sample()));
      this.kind.value = "json";
      this.file = null;
      this.arrange();
    } catch (error) {
      this.showProblem(error.message);
    }
  }
  post(body) {
    const size = new TextEncoder().encode(body).length;
    if (size > session.request_bytes_max)
      throw new Error(`The request has ${bytes(size)}, more than ${bytes(session.request_bytes_max)} (http.max.request.bytes).`);
    const schemas = this.isLines.checked
      ? { by_key: this.isByKey.checked ? "1" : "" }
      : { ...this.keySchema.parameters("key"), ...this.valueSchema.parameters("value") };
    const query = parameters(schemas).toString();
    return post(`${this.path}/records${query ? `?${query}` : ""}`, body);
  }
  // Writes lines in requests that fit the limits. An error names the line of the text.
  async writeLines(text, name) {
    const lines = text.split("\n");
    if (!text.trim()) {
      this.showProblem(`${name} contains no lines.`);
      return;
    }
    await this.run(async () => {
      let done = 0,
        at = 0;
      while (at < lines.length) {
        const end = pieceEnd(lines, at),
          piece = lines.slice(at, end).filter((each) => each.trim());
        if (piece.length) {
          const numbers = lines.map((each, index) => [each, index + 1]).slice(at, end).filter(([each]) => each.trim());
          const found = await this.post(piece.join("\n")).catch((error) => {
            const before = done ? `${number(done)} records were written before. ` : "";
            throw new Error(before + error.message.replace(/^line (\d+)/, (_, line) => `line ${numbers[line - 1]?.[1] ?? line}`));
          });
          done += found.written.length;
          this.showWritten(found, done);
        }
        at = end;
      }
    });
  }
  async run(work) {
    this.submit.disabled = true;
    this.showProblem("");
    try {
      await work();
    } catch (error) {
      this.showProblem(error.message);
    }
    this.submit.disabled = false;
  }
  showWritten(found, count = found.written.length) {
    this.status.textContent = `${number(count)} record${count === 1 ? "" : "s"} written.`;
    this.results.hidden = false;
    this.results.prepend(
      ...found.written
        .slice(0, RESULTS_MAX)
        .map((each) =>
          h(
            "li",
            {},
            link(`${this.path}/messages?record=${each.partition}-${each.offset}`, `partition ${each.partition}, offset ${each.offset}`),
          ),
        ),
    );
    while (this.results.children.length > RESULTS_MAX) this.results.lastChild.remove();
  }
}

function select(name, kinds) {
  return h("select", { name }, kinds.map(([value, text]) => h("option", { value }, text)));
}

function fileField(label, name, take) {
  const input = h("input", { type: "file", name });
  input.addEventListener("change", async () => {
    const [file] = input.files;
    input.value = "";
    if (file) await take(file);
  });
  return field(label, input);
}

// The end of the lines from `at` on that fit in one request.
function pieceEnd(lines, at) {
  let end = at,
    size = 0;
  while (end < lines.length && end - at < LINES_MAX) {
    size += 4 * lines[end].length + 1; // at most 4 bytes for each character
    if (end > at && size > session.request_bytes_max) break;
    end += 1;
  }
  return end;
}

const textOf = (data) => {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return null;
  }
};

function base64(data) {
  let text = "";
  for (let at = 0; at < data.length; at += 0x8000) text += String.fromCharCode(...data.subarray(at, at + 0x8000));
  return btoa(text);
}

function decoded(text) {
  try {
    return atob(text.trim());
  } catch {
    return null;
  }
}

// Where a JSON text is wrong, as an index, or null. Browsers do not report the position reliably.
function positionOf(text) {
  try {
    JSON.parse(text);
    return null;
  } catch {
    return new Checker(text).errorAt();
  }
}

const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*/y,
  SCALAR = /(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.])/y;

// Finds the first character at which a text stops to be JSON.
class Checker {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }
  errorAt() {
    try {
      if (this.value()) this.skip();
    } catch {
      /* nested too deeply for this check: the error is at this place or after it */
    }
    return this.at;
  }
  skip() {
    while (" \t\n\r".includes(this.text[this.at] || "x")) this.at += 1;
  }
  take(character) {
    this.skip();
    const isHere = this.text[this.at] === character;
    if (isHere) this.at += 1;
    return isHere;
  }
  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return Boolean(found);
  }
  string() {
    this.skip();
    return this.match(STRING) && this.take('"');
  }
  value() {
    if (this.take("{")) return this.items("}", () => this.string() && this.take(":") && this.value());
    if (this.take("[")) return this.items("]", () => this.value());
    return this.text[this.at] === '"' ? this.string() : this.match(SCALAR);
  }
  items(end, item) {
    if (this.take(end)) return true;
    do if (!item()) return false;
    while (this.take(","));
    return this.take(end);
  }
}

// Why a text is not JSON, with line and column, or an empty string.
function jsonProblem(text) {
  const at = positionOf(text);
  if (at === null) return "";
  const before = text.slice(0, at).split("\n"),
    where = `line ${before.length}, column ${before[before.length - 1].length + 1}`;
  const wrong = text[at];
  return `The value is not JSON: ${wrong === undefined ? "it ends too early" : `unexpected ${JSON.stringify(wrong)}`} (${where}).`;
}
