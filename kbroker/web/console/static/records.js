// Texts of records, for the table of messages and the inspector.

import { number } from "./dom.js";

export const shown = (row, name) =>
  row[`${name}_text`] ?? row[name] ?? (row[`${name}_base64`] === undefined ? "null" : row[`${name}_base64`]);

// A record that is too large to read has only a size, and no key, value or headers.
export const oversizedText = (row) => row.oversized_bytes && `${number(row.oversized_bytes)} bytes, not shown`;

export const sizeOf = (row) => row.oversized_bytes ?? row.value_size ?? 0;

export const idOf = (row) => `${row.partition}/${row.offset}`;

// Context headers of a record in a dead-letter queue (KIP-1191), or null.
export function deadLetterOf(row) {
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

// States of a record's transaction that a reader of uncommitted records has to know.
export const TRANSACTION_STATES = {
  open: "the transaction has not ended, or waits for an older open one; hidden from read_committed consumers until then",
  aborted: "the transaction was aborted; always hidden from read_committed consumers",
};

// The key in the table: of an internal topic, the object that the key names.
export const keyText = (row) => row.key_summary ?? shown(row, "key");

export function valueText(row) {
  if (row.summary) return row.summary;
  const letter = row.value === null && deadLetterOf(row);
  if (!letter) return shown(row, "value");
  return `${letter.topic}-${letter.partition} offset ${letter.offset}, delivered ${letter["delivery.count"]} times: ${letter.message}`;
}

// True if the row contains only the beginning of the key or value as it is shown.
export const isCut = (row, name) =>
  Boolean(isDecoded(row, name) ? row[`${name}_text_truncated`] : row[`${name}_truncated`]);

export const isDecoded = (row, name) => Boolean(row[`${name}_schema`]) && !row[`${name}_problem`];

export function schemaText(row, name) {
  const it = row[`${name}_schema`];
  return it ? `${it.subject} v${it.version} (${it.type})` : "";
}

// The JSON document in a key or value, or undefined.
export function documentOf(row, name) {
  if (isCut(row, name) || row[`${name}_format`] === "text") return undefined;
  try {
    return JSON.parse(shown(row, name));
  } catch {
    return undefined;
  }
}

// Paths of the fields of a JSON document, such as "value.user.country"; objects are searched to depth 3.
export function fieldPaths(prefix, found, depth = 3) {
  if (found === null || typeof found !== "object" || Array.isArray(found)) return depth === 3 ? [] : [prefix];
  if (!depth) return [prefix];
  return Object.entries(found)
    .filter(([name]) => /^[\p{L}\p{N}_$-]+$/u.test(name))
    .flatMap(([name, value]) => fieldPaths(`${prefix}.${name}`, value, depth - 1));
}

// The value of a field for a column. The server sends it for records that were read with this column.
export function fieldValue(row, path) {
  if (row.fields && path in row.fields) return row.fields[path];
  const [first, ...steps] = path.split(".");
  if (first === "headers") {
    const found = row.headers.find((each) => each.key === steps.join("."));
    return found ? shown(found, "value") : null;
  }
  if (first !== "key" && first !== "value") return row[first] ?? null;
  let found = documentOf(row, first);
  if (found === undefined && !isCut(row, first)) return null;
  for (const step of steps) found = found?.[step];
  return found !== null && typeof found === "object" ? JSON.stringify(found) : found;
}

export function pretty(row, name) {
  const text = shown(row, name);
  const isJson = ["json", "coordinator", "avro", "protobuf"].includes(row[`${name}_format`]);
  return isJson ? indented(text) : text;
}

// Formats JSON on several lines, even if it is truncated. 64-bit numbers keep their digits.
export function indented(text) {
  let depth = 0,
    lines = "",
    before = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\[^])*"?|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const closes = token === "}" || token === "]";
    depth += closes ? -1 : 0;
    const isEmpty = closes && (before === "{" || before === "[");
    if (before && before !== ":" && token !== "," && token !== ":" && !isEmpty)
      lines += `\n${"  ".repeat(Math.min(Math.max(depth, 0), 100))}`;
    lines += token === ":" ? ": " : token;
    depth += token === "{" || token === "[" ? 1 : 0;
    before = token;
  }
  return lines;
}

// A record as an object of an NDJSON file, without the fields that only the console needs.
export function plain(row) {
  const parts = ["key", "key_base64", "value", "value_base64"],
    fields = ["topic", "partition", "offset", "timestamp", "timestamp_type", ...parts];
  const picked = (from, names) =>
    Object.fromEntries(names.filter((each) => each in from).map((each) => [each, from[each]]));
  return { ...picked(row, fields), headers: row.headers.map((each) => picked(each, parts)) };
}
