// Settings of a topic, a group or a node: list, search, and dialogs that change them after a preview.

import { get, post } from "./api.js";
import { bytes, counted, h, number, visible } from "./dom.js";
import { actionButton, facts } from "./forms.js";
import { timeText, zoneName } from "./times.js";

const HIDDEN = "(hidden)";

// Shows the settings at a path of the API. `isShown` selects settings; by default all are shown.
// Returns the response, which has more fields than the settings.
export async function settings(view, path, isShown = () => true) {
  const search = h("input", { type: "search", name: "setting", placeholder: "retention" }),
    changed = h("input", { type: "checkbox", name: "changed" }),
    unused = h("input", { type: "checkbox", name: "unused" }),
    unusedLabel = h("label", { class: "check" }, unused, "Show settings without effect"),
    summary = h("p", { class: "soft", role: "status" }),
    list = h("ul", { class: "settings", "aria-label": "Settings" });
  let it = await get(path);
  function draw() {
    const text = search.value.toLowerCase();
    const all = it.configs.filter(isShown);
    const rows = all.filter(
      (row) =>
        (!changed.checked || row.overridden) &&
        (unused.checked || row.has_effect || row.overridden) &&
        (row.name.includes(text) || (row.doc ?? "").toLowerCase().includes(text)),
    );
    unusedLabel.hidden = all.every((row) => row.has_effect);
    summary.textContent = `${number(rows.length)} of ${number(all.length)} settings`;
    list.replaceChildren(...rows.map((row) => item(row, path, it.may.includes("ALTER_CONFIGS"), refresh)));
  }
  async function refresh() {
    it = await get(path);
    draw();
  }
  search.addEventListener("input", draw);
  changed.addEventListener("change", draw);
  unused.addEventListener("change", draw);
  view.append(
    h(
      "div",
      { class: "row" },
      h("label", {}, "Name or description contains", search),
      h("label", { class: "check" }, changed, "Only changed settings"),
      unusedLabel,
    ),
    summary,
    list,
  );
  draw();
  return it;
}

function item(row, path, mayAlter, refresh) {
  const isEditable = mayAlter && !row.read_only;
  return h(
    "li",
    {},
    h(
      "div",
      { class: "setting" },
      h("strong", {}, row.name),
      h("code", {}, shownValue(row.value, row)),
      h("span", { class: "soft" }, readable(row.value, row.unit)),
      h("span", { class: row.overridden ? "tag changed" : "tag" }, row.source),
      h(
        "span",
        { class: "actions" },
        isEditable && actionButton("Edit", editForm(row, path), { done: refresh }),
        isEditable && row.overridden && actionButton("Reset", unsetForm(row, path), { done: refresh }),
      ),
    ),
    h("p", {}, described(row.doc ?? "")),
    h("p", { class: "soft" }, visible(limits(row))),
  );
}

// A description, with the text between backticks as code.
const described = (text) =>
  visible(text)
    .split("`")
    .map((part, at) => (at % 2 ? h("code", {}, part) : part));

function shownValue(value, row) {
  if (row.sensitive) return HIDDEN;
  if (value === null) return "not set";
  return value === "" ? '""' : visible(value);
}

function limits(row) {
  const parts = [];
  if (row.type) parts.push(`Type: ${row.type}${row.unit ? ` (${row.unit})` : ""}`);
  if (row.allowed) parts.push(`valid: ${row.allowed}`);
  if (!row.sensitive && row.default !== null) parts.push(`default: ${row.default === "" ? '""' : row.default}`);
  if (row.overridden) parts.push(`without this value: ${shownValue(row.fallback, row)} (${row.fallback_source})`);
  if (row.read_only) parts.push("a change needs a restart of the node");
  if (!row.has_effect) parts.push("kbroker accepts the setting, but it has no effect");
  return parts.join("; ");
}

const DURATIONS = [
  ["days", 86_400_000],
  ["hours", 3_600_000],
  ["minutes", 60_000],
  ["seconds", 1000],
];

// A duration or a size in the largest fitting unit; empty for other values.
function readable(text, unit) {
  const value = Number(text);
  if (text === null || text === "" || !Number.isFinite(value) || value < 1000) return "";
  if (unit === "bytes") return bytes(value);
  if (unit !== "ms" || value > 1e15) return "";
  const [name, size] = DURATIONS.find(([, each]) => value >= each);
  const count = Math.round((value / size) * 10) / 10;
  return `${number(count)} ${count === 1 ? name.slice(0, -1) : name}`;
}

const TIMES = ["ms", "seconds", "minutes", "hours"];
const SIZES = ["bytes", "bytes per second"];

function unitHint(unit) {
  if (TIMES.includes(unit)) return `Unit: ${unit}, unless you write one, such as 12h or 7d.`;
  if (SIZES.includes(unit)) return `Unit: ${unit}, unless you write one, such as 10MB or 1GiB.`;
  return `Unit: ${unit}.`;
}

function editForm(row, path) {
  const isChoice = row.choices.length > 0 && row.type !== "list";
  const input = isChoice
    ? { type: "select", options: row.choices, value: row.value ?? row.default }
    : { type: row.sensitive ? "password" : "text", value: row.value ?? "" };
  const change = (values) => ({ set: { [row.name]: values.value } });
  const hint = [row.allowed && `Valid: ${row.allowed}.`, row.unit && unitHint(row.unit)];
  return {
    title: `Set ${row.name}`,
    text: row.doc,
    confirm: "Save",
    fields: [{ name: "value", label: "Value", help: hint.filter(Boolean).join(" "), ...input }],
    preview: (values) => preview(path, change(values)),
    act: async (values) => {
      await post(path, { ...change(values), dry_run: false });
      return `${row.name} is changed.`;
    },
  };
}

const unsetForm = (row, path) => ({
  title: `Reset ${row.name}`,
  text: row.doc,
  confirm: "Reset to default",
  isDangerous: true,
  preview: () => preview(path, { unset: [row.name] }),
  act: async () => {
    await post(path, { unset: [row.name], dry_run: false });
    return `${row.name} is reset.`;
  },
});

async function preview(path, change) {
  const { changes, deletions = [] } = await post(path, change);
  const text = (value, source, row) => [
    h("code", {}, shownValue(value, row)),
    ` ${[readable(value, row.unit), `(${source})`].filter(Boolean).join(" ")}`,
  ];
  return h(
    "div",
    {},
    changes.map((row) =>
      facts([
        ["Value now", text(row.old_value, row.old_source, row)],
        ["New value", text(row.new_value, row.new_source, row)],
        ...deletions.filter((each) => each.setting === row.name).map(deletionFact),
      ]),
    ),
    deletions.some((each) => each.records || each.bytes) &&
      h("p", { class: "soft" }, "The broker deletes whole segments, so it may keep some of them for longer."),
  );
}

// What the new value of a retention setting deletes.
function deletionFact(it) {
  if (it.policy !== undefined) return ["Deletes", `nothing, because cleanup.policy is ${it.policy || "empty"}`];
  if (it.setting === "retention.bytes")
    return ["Deletes up to", `${bytes(it.bytes)} of ${bytes(it.total_bytes)}`];
  const before = `written before ${timeText(it.before_ms)} (${zoneName()})`;
  return ["Deletes up to", `${number(it.records)} of ${counted(it.total_records, "record")}, ${before}`];
}
