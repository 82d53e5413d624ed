// Replicas and leaders of partitions, and actions that move them.

import { get, post } from "./api.js";
import { searchForm } from "./common.js";
import { h, number, visible } from "./dom.js";
import { actionButton, facts } from "./forms.js";
import { actions, listOf, previewTable, rowAction } from "./row_actions.js";
import { Table } from "./table.js";

const MOVES = [
  ["Partition", (row) => visible(row.partition)],
  ["From", (row) => row.from],
  ["To", (row) => row.to],
];

// Actions on a node, for the table of nodes.
export function nodeActions(it, row, refresh) {
  const isDrained = it.drained.includes(row.broker),
    name = `node ${row.broker}`;
  return actions(
    isDrained
      ? rowAction("Allow partitions", name, undrainForm(row.broker), refresh)
      : rowAction("Drain", name, drainForm(row.broker), refresh),
  );
}

// Buttons for the whole cluster, and for a topic.
export const clusterActions = (query, refresh) =>
  h(
    "div",
    { class: "row" },
    actionButton("Elect preferred leaders", electAllForm(), { done: refresh }),
    actionButton("Rebalance", rebalanceForm(), { done: refresh }),
    actionButton("Move topic", moveTopicForm(query.get("search")), { done: refresh }),
  );

// An action on a partition that is being reassigned.
export const cancelAction = (row, refresh) =>
  actions(rowAction("Cancel", `${row.topic}-${row.partition}`, cancelForm(row), refresh));

// Partitions of the topics that match the search, with actions; `done` is called after each.
export async function partitionSection(query, done) {
  const it = await get("/placement", { search: query.get("search") });
  const columns = [
    [
      "Partition",
      (row) => visible(`${row.topic}-${row.partition}`),
      null,
      (row) => `${row.topic}-${row.partition}`,
    ],
    [
      "Leader",
      (row) => (row.leader < 0 ? h("span", { class: "bad" }, "none") : row.leader),
      "num",
      (row) => row.leader,
    ],
    ["Replicas", (row) => row.replicas.join(", ")],
    [
      "ISR",
      (row) => h("span", { class: row.isr.length < row.replicas.length ? "bad" : null }, row.isr.join(", ")),
    ],
  ];
  if (it.may_alter)
    columns.push([
      "Actions",
      (row) =>
        actions(
          rowAction("Move replicas", `${row.topic}-${row.partition}`, moveForm(row), done),
          rowAction("Elect leader", `${row.topic}-${row.partition}`, electForm(row), done),
        ),
    ]);
  return h(
    "section",
    {},
    h("h2", {}, "Partitions"),
    searchForm(query, "/cluster", "orders"),
    h("p", { class: "soft" }, `${number(it.partitions.length)} of ${number(it.matching)} partitions`),
    new Table(columns, { label: "Partitions" }).set(it.partitions).element,
  );
}

const partitionOf = (row) => ({ topic: row.topic, partition: row.partition });

function moveForm(row) {
  const name = `${row.topic}-${row.partition}`;
  const body = (values) => ({ ...partitionOf(row), replicas: listOf(values.replicas).map(idOf) });
  return {
    title: `Move replicas of ${name}`,
    fields: [
      {
        name: "replicas",
        label: "Replicas",
        required: true,
        value: row.replicas.join(", "),
        help: "Node IDs. The first one is the preferred leader.",
      },
    ],
    preview: async (values) => {
      const it = await post("/placement/reassign", body(values));
      return facts([
        ["Replicas", `${it.before.join(", ")} → ${it.after.join(", ")}`],
        ["Copied to", it.adding.join(", ") || "no node"],
        ["Deleted on", it.removing.join(", ") || "no node"],
        ["Preferred leader", it.preferred_leader],
      ]);
    },
    confirm: "Move",
    act: async (values) => {
      await post("/placement/reassign", { ...body(values), dry_run: false });
      return `${name}: the reassignment has started.`;
    },
  };
}

function moveTopicForm(topic) {
  const body = (values) => ({ topic: values.topic, brokers: listOf(values.brokers).map(idOf) });
  return {
    title: "Move a topic",
    text: "Places all replicas of the topic on these nodes, evenly. Each partition keeps its number of replicas.",
    fields: [
      { name: "topic", label: "Topic", required: true, value: topic, placeholder: "orders" },
      { name: "brokers", label: "Nodes", required: true, placeholder: "2, 3", help: "Node IDs." },
    ],
    preview: async (values) => movesPreview(await post("/placement/move-topic", body(values))),
    confirm: "Move",
    act: async (values) => {
      const it = await post("/placement/move-topic", { ...body(values), dry_run: false });
      return `${it.count} reassignments have started.`;
    },
  };
}

function idOf(text) {
  if (!/^\d+$/.test(text)) throw new Error(`"${text}" is not the ID of a node.`);
  return Number(text);
}

function electForm(row) {
  const name = `${row.topic}-${row.partition}`;
  const body = (values) => ({ ...partitionOf(row), leader: Number(values.leader), unclean: values.unclean });
  return {
    title: `Elect the leader of ${name}`,
    fields: [
      {
        name: "leader",
        label: "Leader",
        type: "select",
        value: String(row.replicas[0]),
        options: row.replicas.map((each, at) => [String(each), leaderText(row, each, at)]),
      },
      {
        name: "unclean",
        label: "Unclean: elect a replica that is not in sync if no other one runs",
        type: "checkbox",
        help: "Records that only other replicas have are lost.",
      },
    ],
    preview: async (values) => changesTable(await post("/placement/elect", body(values))),
    confirm: "Elect",
    act: async (values) => {
      await post("/placement/elect", { ...body(values), dry_run: false });
      return `${name}: node ${values.leader} is elected.`;
    },
  };
}

function leaderText(row, node, at) {
  const notes = [
    at === 0 && "preferred",
    node === row.leader && "leader now",
    !row.isr.includes(node) && "not in sync",
  ];
  const text = notes.filter(Boolean).join(", ");
  return text ? `node ${node} (${text})` : `node ${node}`;
}

const changesTable = (it) =>
  previewTable("Elections", MOVES, it.changes, "All preferred leaders lead already.");

const electAllForm = () => ({
  title: "Elect the preferred leaders of all partitions",
  preview: async () => changesTable(await post("/placement/elect", {})),
  confirm: "Elect",
  act: async () => {
    const it = await post("/placement/elect", { dry_run: false });
    return `${it.changes.length} leaders were elected.`;
  },
});

function movesPreview(it) {
  return h(
    "div",
    {},
    h("p", {}, it.count === 1 ? "1 partition moves." : `${number(it.count)} partitions move.`),
    previewTable("Moves", MOVES, it.moves),
    h("p", { class: "soft" }, "When the reassignments are complete, elect the preferred leaders."),
  );
}

const rebalanceForm = () => ({
  title: "Rebalance partitions",
  text: "Distributes replicas and leaders evenly over all nodes that are not drained. As few partitions as possible move.",
  preview: async () => movesPreview(await post("/placement/rebalance", {})),
  confirm: "Rebalance",
  act: async () => {
    const it = await post("/placement/rebalance", { dry_run: false });
    return `${it.count} reassignments have started.`;
  },
});

const drainForm = (broker) => ({
  title: `Drain node ${broker}`,
  text: "Moves all partitions away from the node, and assigns no new ones to it.",
  fields: [
    {
      name: "allow_fewer_replicas",
      label: "Reduce the number of replicas if there are too few other nodes",
      type: "checkbox",
    },
  ],
  preview: async () => {
    const it = await post("/placement/drain", { broker });
    const fewer =
      it.fewer_replicas.length > 0 &&
      h("p", { class: "bad" }, visible(`Partitions that lose a replica: ${it.fewer_replicas.join(", ")}`));
    return h("div", {}, movesPreview(it), fewer);
  },
  confirm: "Drain",
  isDangerous: true,
  act: async (values) => {
    const it = await post("/placement/drain", { broker, dry_run: false, ...values }),
      started = `${it.count} reassignments have started.`;
    return it.cordoned ? started : `${started} Node ${broker} is down: once it returns, it gets new partitions.`;
  },
});

const undrainForm = (broker) => ({
  title: `Allow partitions on node ${broker}`,
  text: "New partitions may be placed on the node again. Rebalance to move existing ones there.",
  confirm: "Allow partitions",
  act: async () => {
    await post("/placement/drain", { broker, undo: true, dry_run: false });
    return `Node ${broker} accepts partitions again.`;
  },
});

const cancelForm = (row) => ({
  title: `Cancel the reassignment of ${row.topic}-${row.partition}`,
  preview: () =>
    facts([
      ["No longer added", row.adding.join(", ") || "no node"],
      ["No longer removed", row.removing.join(", ") || "no node"],
    ]),
  confirm: "Cancel reassignment",
  isDangerous: true,
  act: async () => {
    await post("/placement/cancel", { ...partitionOf(row), dry_run: false });
    return "The reassignment was cancelled.";
  },
});
