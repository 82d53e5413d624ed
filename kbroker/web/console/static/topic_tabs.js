// Partitions, groups and settings of a topic, and the dialogs that change them.

import { get, encodePart } from "./api.js";
import { emptyText } from "./common.js";
import { bytes, groupLink, h, link, nodeLink, number } from "./dom.js";
import { actionButton } from "./forms.js";
import { settings } from "./settings.js";
import { Table } from "./table.js";
import { addPartitionsForm, deleteRecordsForm } from "./topic_forms.js";

export async function partitions(view, name) {
  const actions = h("div", { class: "row" }),
    table = partitionTable(name);
  view.append(actions, table.element);
  async function refresh() {
    const it = await get(`/topics/${encodePart(name)}`);
    const may = (operation) => it.may.includes(operation);
    actions.replaceChildren();
    if (may("ALTER"))
      actions.append(actionButton("Add partitions", addPartitionsForm(name, it.partitions.length), { done: refresh }));
    if (may("DELETE")) actions.append(actionButton("Delete records", deleteRecordsForm(name), { done: refresh }));
    table.set(it.partitions);
  }
  await refresh();
}

const partitionTable = (name) =>
    new Table(
      [
        ["Partition", (row) => row.partition, "num", (row) => row.partition],
        ["Leader", (row) => nodeLink(row.leader), "num", (row) => row.leader],
        ["Replicas", (row) => row.replicas.join(", ")],
        [
          "ISR",
          (row) =>
            h("span", { class: row.isr.length < row.replicas.length ? "bad" : null }, row.isr.join(", ")),
        ],
        ["Start offset", (row) => number(row.start_offset), "num", (row) => row.start_offset],
        ["End offset", (row) => number(row.end_offset), "num", (row) => row.end_offset],
        ["Size", (row) => bytes(row.bytes), "num", (row) => row.bytes],
        ["Error", (row) => row.error ?? ""],
        ["Explain", (row) => link(`/explain/partition/${encodePart(name)}/${row.partition}`, "Explain")],
      ],
      { label: "Partitions" },
    );

export async function groups(view, name) {
  const it = await get(`/topics/${encodePart(name)}`);
  view.append(
    new Table(
      [
        ["Group", (row) => groupLink(row.group), "", (row) => row.group],
        ["Members", (row) => number(row.members), "num", (row) => row.members],
        ["Lag", (row) => number(row.lag), "num", (row) => row.lag],
      ],
      { label: "Groups", empty: emptyText("No group reads this topic: no group has committed offsets for it.", "groups") },
    ).set(it.groups).element,
  );
}

export async function config(view, name) {
  await settings(view, `/topics/${encodePart(name)}/config`);
}
