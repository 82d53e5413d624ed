// Nodes, under-replicated partitions and reassignments.

import { get } from "./api.js";
import { card, h, link, nodeLink, number, partitionLink, visible } from "./dom.js";
import { cancelAction, clusterActions, nodeActions, partitionSection } from "./placement.js";
import { reload } from "./row_actions.js";
import { Table } from "./table.js";

export default async function cluster(view, _, query) {
  const [it, placed] = await Promise.all([get("/cluster"), get("/placement", { limit: 1 })]);
  const forChanges = (column) => (placed.may_alter ? [column] : []);
  const place = [
    ["Partition", (row) => partitionLink(row.topic, row.partition), "", (row) => row.topic],
    ["Leader", (row) => nodeLink(row.leader), "num", (row) => row.leader],
    ["Replicas", (row) => row.replicas.join(", ")],
    ["ISR", (row) => row.isr.join(", ")],
  ];
  view.append(
    h("h1", {}, "Cluster"),
    h(
      "div",
      { class: "cards" },
      card("Nodes", nodeCount(it)),
      card("Topics", number(it.topics)),
      card("Partitions", number(it.partitions)),
      card("Offline partitions", h("span", { class: it.offline ? "bad" : "good" }, number(it.offline))),
      card(
        "Under-replicated partitions",
        h("span", { class: it.under_replicated_count ? "bad" : "good" }, number(it.under_replicated_count)),
      ),
    ),
    h("p", { class: "soft" }, `cluster ${it.cluster_id}`),
    h("h2", {}, "Nodes"),
    h("p", {}, link("/brokers/default", "Settings of all nodes")),
    new Table(
      [
        ["Node", (row) => nodeLink(row.broker), "num", (row) => row.broker],
        ["Address", (row) => (row.isDown ? "–" : h("code", {}, visible(`${row.host}:${row.port}`)))],
        ["State", (row) => stateOf(row, placed)],
        ["Rack", (row) => visible(row.rack ?? "–")],
        ["Controller", (row) => (row.controller ? "yes" : "")],
        ["Leaders", (row) => number(row.leads), "num", (row) => row.leads],
        ["Replicas", (row) => number(row.replicas), "num", (row) => row.replicas],
        ...forChanges(["Actions", (row) => nodeActions(placed, row, reload)]),
      ],
      { label: "Nodes" },
    ).set(nodesOf(it)).element,
    placed.may_alter ? clusterActions(query, reload) : "",
    h("h2", {}, "Offline and under-replicated partitions"),
    new Table(place, {
      label: "Offline and under-replicated partitions",
      empty: "None: every partition has a leader, and all its replicas are in sync.",
    }).set(it.under_replicated).element,
    h("h2", {}, "Reassignments"),
    new Table(
      [
        ...place,
        ["Adding", (row) => row.adding.join(", ")],
        ["Removing", (row) => row.removing.join(", ")],
        ...forChanges(["Actions", (row) => cancelAction(row, reload)]),
      ],
      { label: "Reassignments", empty: "No replicas move between nodes." },
    ).set(it.reassignments).element,
    await partitionSection(query, reload),
  );
}

function nodeCount(it) {
  const down = it.brokers_down.length;
  if (!down) return number(it.brokers.length);
  return [`${number(it.brokers.length)} up, `, h("span", { class: "bad" }, `${number(down)} down`)];
}

// All nodes in the order of their IDs, also those that are down.
const nodesOf = (it) =>
  [...it.brokers, ...it.brokers_down.map((each) => ({ ...each, leads: 0, isDown: true }))].sort(
    (a, b) => a.broker - b.broker,
  );

function stateOf(row, placed) {
  if (row.isDown) return h("span", { class: "bad" }, "down: not registered");
  return placed.drained.includes(row.broker) ? "drained" : "up";
}
