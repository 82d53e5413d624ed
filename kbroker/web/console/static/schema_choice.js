// Choice of a registered schema for a key or value, and samples of its documents.

import { encodePart, get } from "./api.js";
import { field, h, visible } from "./dom.js";

export class SchemaChoice {
  // name: "Key" or "Value". preferred: subject that is listed first. onChange: called after a choice.
  // `note` says if the preferred subject exists and no schema is chosen.
  constructor(name, preferred, onChange) {
    this.subject = h("select", { name: `${name}-schema`, onchange: () => this.chosen(onChange) }, noSchema());
    this.version = h("select", { name: `${name}-version`, onchange: onChange });
    this.versionField = field(`${name} schema version`, this.version);
    this.versionField.hidden = true;
    this.hasPreferred = false;
    this.note = h(
      "p",
      { class: "soft", hidden: true },
      visible(`The subject ${preferred} exists, but no schema is chosen: the ${name.toLowerCase()} is written as it is.`),
    );
    this.element = h("div", { class: "row", hidden: true }, field(`${name} schema`, this.subject), this.versionField);
    this.load(preferred);
  }
  // Lists subjects; without a registry in this process the choice stays hidden.
  async load(preferred) {
    const found = await get("/schemas", { limit: 100 }).catch(() => null);
    if (!found?.enabled) return;
    const names = found.subjects.map((each) => each.subject);
    if (!names.includes(preferred)) {
      const own = await get("/schemas", { search: preferred, limit: 100 }).catch(() => null);
      if (own?.subjects.some((each) => each.subject === preferred)) names.push(preferred);
    }
    this.hasPreferred = names.includes(preferred);
    this.note.hidden = !this.hasPreferred;
    names.sort((a, b) => (b === preferred) - (a === preferred) || a.localeCompare(b, "en"));
    this.subject.replaceChildren(noSchema(), ...names.map((each) => h("option", { value: each }, visible(each))));
    this.element.hidden = false;
  }
  async chosen(onChange) {
    const subject = this.subject.value;
    this.note.hidden = Boolean(subject) || !this.hasPreferred;
    this.versionField.hidden = !subject;
    this.version.replaceChildren();
    if (subject) {
      const found = await get(`/schemas/${encodePart(subject)}/versions`).catch(() => ({ versions: [] }));
      const live = found.versions.filter((each) => !each.is_deleted);
      this.version.replaceChildren(
        h("option", { value: "" }, "newest"),
        ...live.map((each) => h("option", { value: each.version }, `${each.version} (${each.type})`)),
      );
    }
    onChange();
  }
  get isChosen() {
    return Boolean(this.subject.value);
  }
  // Parameters of a request that encodes keys or values.
  parameters(part) {
    return this.isChosen
      ? { [`${part}_subject`]: this.subject.value, [`${part}_version`]: this.version.value }
      : {};
  }
  // A document that fits the chosen schema.
  async sample() {
    if (!this.isChosen) throw new Error("Choose a value schema first.");
    const version = this.version.value || this.version.options[1]?.value;
    const found = await get(`/schemas/${encodePart(this.subject.value)}/versions/${version}`);
    if (found.type === "PROTOBUF") throw new Error("Samples are available for Avro and JSON Schema only.");
    const schema = JSON.parse(found.schema);
    return found.type === "AVRO" ? new AvroSample().of(schema, 0) : jsonSample(schema, schema, 0);
  }
}

const noSchema = () => h("option", { value: "" }, "none");
const DEPTH_MAX = 12;

class AvroSample {
  constructor() {
    this.named = new Map();
  }
  of(schema, depth) {
    if (depth > DEPTH_MAX) return null;
    if (Array.isArray(schema)) return schema.includes("null") ? null : this.of(schema[0], depth + 1);
    if (typeof schema === "string") {
      if (this.named.has(schema)) return this.of(this.named.get(schema), depth + 1);
      return { null: null, boolean: false, string: "text", bytes: "", int: 0, long: 0, float: 0.5, double: 0.5 }[schema] ?? null;
    }
    if (schema.name) {
      const space = schema.namespace ? `${schema.namespace}.` : "";
      this.named.set(schema.name, schema);
      this.named.set(space + schema.name, schema);
    }
    if (schema.logicalType === "uuid") return "00000000-0000-0000-0000-000000000000";
    if (schema.logicalType === "decimal") return "0";
    switch (schema.type) {
      case "record":
        return Object.fromEntries(schema.fields.map((each) => [each.name, each.default ?? this.of(each.type, depth + 1)]));
      case "array":
        return [this.of(schema.items, depth + 1)];
      case "map":
        return { key: this.of(schema.values, depth + 1) };
      case "enum":
        return schema.symbols[0];
      case "fixed":
        return btoa("\0".repeat(Math.min(schema.size, 1000)));
      default:
        return this.of(schema.type, depth + 1);
    }
  }
}

function jsonSample(schema, root, depth) {
  if (depth > DEPTH_MAX || typeof schema !== "object" || schema === null) return null;
  if (typeof schema.$ref === "string" && schema.$ref.startsWith("#/")) {
    const found = schema.$ref.slice(2).split("/").reduce((at, each) => at?.[each.replaceAll("~1", "/").replaceAll("~0", "~")], root);
    return jsonSample(found, root, depth + 1);
  }
  for (const name of ["const", "default"]) if (schema[name] !== undefined) return schema[name];
  for (const name of ["examples", "enum"]) if (schema[name]?.length) return schema[name][0];
  for (const name of ["oneOf", "anyOf", "allOf"]) if (schema[name]?.length) return jsonSample(schema[name][0], root, depth + 1);
  const type = [schema.type].flat()[0] ?? (schema.properties ? "object" : undefined);
  if (type === "object")
    return Object.fromEntries(
      Object.entries(schema.properties ?? {}).map(([name, each]) => [name, jsonSample(each, root, depth + 1)]),
    );
  if (type === "array") return schema.items ? [jsonSample(schema.items, root, depth + 1)] : [];
  return { string: "text", integer: schema.minimum ?? 0, number: schema.minimum ?? 0.5, boolean: false }[type] ?? null;
}
