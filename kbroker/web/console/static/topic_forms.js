// Dialogs that create, grow and delete topics, and delete records.

import { encodePart, get, post, session } from "./api.js";
import { bytes, counted, h, number, visible } from "./dom.js";
import { blockingProblem, facts, fieldError } from "./forms.js";
import { Table } from "./table.js";

const POLICIES = [["", "Default of the broker"], "delete", "compact", ["compact,delete", "compact and delete"]];

const defaultOf = (name) => `${session[name]} (default of the broker)`;

// Options of the dialog that creates a topic. `created` is called with the name of the new topic.
export const createTopicForm = (created) => ({
  title: "Create topic",
  confirm: "Create topic",
  fields: [
    { name: "name", label: "Name", required: true, placeholder: "orders" },
    { name: "partitions", label: "Partitions", type: "number", min: 1, placeholder: defaultOf("num_partitions") },
    {
      name: "factor",
      label: "Replication factor",
      type: "number",
      min: 1,
      placeholder: defaultOf("default_replication_factor"),
    },
    { name: "policy", label: "Cleanup policy", type: "select", options: POLICIES },
    { name: "retention", label: "Retention time (ms)", placeholder: "default of the broker; -1 is unlimited" },
    {
      name: "configs",
      label: "More settings",
      type: "textarea",
      placeholder: "max.message.bytes=2000000",
      help: "One NAME=VALUE per line.",
    },
    {
      name: "replicas",
      label: "Replica assignment",
      placeholder: "chosen by the broker",
      help: "Broker IDs of each partition, such as 1,2; 2,3 for two partitions. It replaces both numbers above.",
    },
  ],
  act: async (values) => {
    const asked = { name: values.name.trim(), configs: parseSettings(values.configs), dry_run: false };
    if (values.policy) asked.configs["cleanup.policy"] = values.policy;
    if (values.retention.trim()) asked.configs["retention.ms"] = values.retention.trim();
    const replicas = parseReplicas(values.replicas);
    if (replicas.length) asked.assignments = Object.fromEntries(replicas.map((nodes, at) => [at, nodes]));
    if (values.partitions !== null) asked.partitions = values.partitions;
    if (values.factor !== null) asked.replication_factor = values.factor;
    await post("/topics", asked);
    created(asked.name);
    return `Topic ${asked.name} is created.`;
  },
});

// Options of the dialog that deletes topics.
export function deleteTopicsForm(names) {
  const isOne = names.length === 1;
  return {
    title: isOne ? `Delete topic ${names[0]}` : `Delete ${number(names.length)} topics`,
    text: `All records of the topic${isOne ? "" : "s"} are deleted. This cannot be undone.`,
    confirm: isOne ? "Delete topic" : "Delete topics",
    isDangerous: true,
    typed: isOne ? names[0] : `${names.length} topics`,
    preview: async () => deletionPreview((await post("/topics/delete", { topics: names })).topics),
    act: async () => {
      const { topics } = await post("/topics/delete", { topics: names, dry_run: false });
      checkRows(topics, (row) => row.name);
      return isOne ? `Topic ${names[0]} is deleted.` : `${number(names.length)} topics are deleted.`;
    },
  };
}

function deletionPreview(topics) {
  const table = new Table(
    [
      ["Topic", (row) => visible(row.name)],
      ["Partitions", (row) => number(row.partitions), "num"],
      ["Records", (row) => number(row.records), "num"],
      ["Size", (row) => bytes(row.bytes), "num"],
      ["Groups that read it", (row) => visible(row.groups.map((each) => each.group).join(", ") || "none")],
    ],
    { label: "Topics to delete", tall: false },
  ).set(topics);
  const internal = topics.filter((each) => each.internal).map((each) => each.name);
  return h(
    "div",
    {},
    table.element,
    internal.length > 0 &&
      h("p", { class: "bad" }, visible(`Internal: Kafka's own data is in ${internal.join(", ")}.`)),
  );
}

// Options of the dialog that adds partitions to a topic.
export const addPartitionsForm = (name, count) => ({
  title: `Add partitions to ${name}`,
  text: "Records with the same key may then go to another partition. Partitions cannot be removed again.",
  confirm: "Add partitions",
  fields: [
    {
      name: "count",
      label: "New number of partitions",
      type: "number",
      value: count + 1,
      min: count + 1,
      required: true,
    },
    {
      name: "replicas",
      label: "Replicas of the new partitions",
      placeholder: "chosen by the broker",
      help: "Broker IDs of each new partition, such as 1,2; 2,3.",
    },
  ],
  preview: async (values) => {
    const it = await post(`/topics/${encodePart(name)}/partitions`, growth(values, true));
    return facts([
      ["Partitions now", number(it.partitions)],
      ["Partitions afterwards", number(it.new_partitions)],
    ]);
  },
  act: async (values) => {
    const it = await post(`/topics/${encodePart(name)}/partitions`, growth(values, false));
    return `${name} has ${number(it.new_partitions)} partitions.`;
  },
});

function growth({ count, replicas }, isDry) {
  const assignments = parseReplicas(replicas);
  return { count, assignments: assignments.length ? assignments : null, dry_run: isDry };
}

const DELETE_UNTIL = [
  ["", "Choose …"],
  ["end", "All records"],
  ["offset", "Records before an offset"],
  ["time", "Records before a time"],
  ["kept", "All but the newest records"],
];

// Options of the dialog that deletes records of a topic.
export const deleteRecordsForm = (name) => ({
  title: `Delete records of ${name}`,
  text: "Deleted records cannot be restored.",
  confirm: "Delete records",
  isDangerous: true,
  fields: [
    { name: "until", label: "Delete", type: "select", options: DELETE_UNTIL, required: true },
    { name: "offset", label: "Offset", type: "number", min: 0, required: true, when: ({ until }) => until === "offset" },
    { name: "time", label: "Time", type: "time", required: true, when: ({ until }) => until === "time" },
    {
      name: "kept",
      label: "Number of records to keep",
      type: "number",
      min: 1,
      required: true,
      help: "In each partition.",
      when: ({ until }) => until === "kept",
    },
    { name: "partitions", label: "Partitions", placeholder: "all", help: "Numbers, such as 0, 3." },
  ],
  preview: async (values) => {
    const it = await post(`/topics/${encodePart(name)}/delete-records`, deletion(values, true));
    const table = new Table(
      [
        ["Partition", (row) => number(row.partition), "num"],
        ["Records", (row) => number(row.records), "num"],
        ["Start offset", (row) => `${number(row.start_offset)} → ${number(row.new_start_offset)}`, "num"],
        ["End offset", (row) => number(row.end_offset), "num"],
      ],
      { label: "Records to delete", tall: false },
    ).set(it.partitions);
    return h(
      "div",
      {},
      h("p", {}, `${counted(it.records, "record")} will be deleted.`),
      blockingProblem(it.problem),
      table.element,
    );
  },
  act: async (values) => {
    const it = await post(`/topics/${encodePart(name)}/delete-records`, deletion(values, false));
    checkRows(it.partitions, (row) => `partition ${row.partition}`);
    return `${counted(it.records, "record")} of ${name} ${it.records === 1 ? "is" : "are"} deleted.`;
  },
});

function deletion({ until, offset, time, kept, partitions }, isDry) {
  const asked = { to: until === "kept" ? "end" : until, dry_run: isDry };
  if (until === "kept") asked.value = -kept;
  if (until === "offset") asked.value = offset;
  if (until === "time") asked.value = time;
  if (partitions.trim()) asked.partitions = partitionsOf(partitions);
  return asked;
}

// Throws an error that names the rows that failed.
export function checkRows(rows, nameOf) {
  const failed = rows.filter((each) => each.error);
  if (!failed.length) return;
  const some = failed.slice(0, 5).map((each) => `${nameOf(each)}: ${each.error}`);
  const more = failed.length > some.length ? `, and ${number(failed.length - some.length)} more` : "";
  throw new Error(`${number(failed.length)} of ${number(rows.length)} failed: ${some.join("; ")}${more}`);
}

// Parses lines of NAME=VALUE.
function parseSettings(text) {
  const found = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw fieldError("configs", `More settings: ${line.trim()} is not NAME=VALUE`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

const parseReplicas = (text) =>
  text
    .split(/[;\n]/)
    .filter((each) => each.trim())
    .map((each) => partitionsOf(each, "broker ID", "replicas"));

// Parses a list of numbers such as "0, 3".
export const partitionsOf = (text, what = "partition", field = "partitions") =>
  text
    .split(",")
    .filter((each) => each.trim())
    .map((each) => integerOf(each, what, field));

export function integerOf(text, what, field) {
  const value = Number(text);
  if (!String(text).trim() || !Number.isSafeInteger(value))
    throw fieldError(field, `Enter the ${what} as an integer, not ${String(text).trim() || "an empty text"}.`);
  return value;
}

// The operations that the viewer may perform on a topic.
export const permittedOn = async (name) => (await get(`/topics/${encodePart(name)}/permissions`)).may;
