// Partitions, groups and settings of a topic.

import { get, encodePart } from "./api.js";
import { bytes, h, link, number, visible } from "./dom.js";
import { Table } from "./table.js";

export async function partitions(view, name) {
  const it = await get(`/topics/${encodePart(name)}`);
  view.append(
    new Table(
      [
        ["Partition", (row) => row.partition, "num"],
        ["Leader", (row) => row.leader, "num"],
        ["Replicas", (row) => row.replicas.join(", ")],
        [
          "ISR",
          (row) =>
            h("span", { class: row.isr.length < row.replicas.length ? "bad" : null }, row.isr.join(", ")),
        ],
        ["Start offset", (row) => number(row.start_offset), "num"],
        ["End offset", (row) => number(row.end_offset), "num"],
        ["Size", (row) => bytes(row.bytes), "num"],
        ["Error", (row) => row.error ?? ""],
        ["Explain", (row) => link(`/explain/partition/${encodePart(name)}/${row.partition}`, "Explain")],
      ],
      { label: "Partitions" },
    ).set(it.partitions).element,
  );
}

export async function groups(view, name) {
  const it = await get(`/topics/${encodePart(name)}`);
  view.append(
    new Table(
      [
        ["Group", (row) => link(`/groups/${encodePart(row.group)}`, row.group)],
        ["Members", (row) => number(row.members), "num"],
        ["Lag", (row) => number(row.lag), "num"],
      ],
      { label: "Groups" },
    ).set(it.groups).element,
  );
}

export async function config(view, name) {
  const it = await get(`/topics/${encodePart(name)}/config`);
  view.append(
    new Table(
      [
        ["Setting", (row) => h("strong", {}, row.name)],
        ["Value", (row) => h("code", {}, visible(row.value ?? (row.sensitive ? "(sensitive)" : "–")))],
        ["Source", (row) => row.source],
        ["Description", (row) => row.doc ?? "", "doc"],
      ],
      { label: "Settings" },
    ).set(it.configs).element,
  );
}
