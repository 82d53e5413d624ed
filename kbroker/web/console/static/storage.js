// Open transactions, disks, and the logs of the partitions.

import { get } from "./api.js";
import { orForbidden, otherNodesNote, searchForm } from "./common.js";
import { bytes, counted, h, nodeLink, number, partitionLink, visible } from "./dom.js";
import { Table } from "./table.js";
import { transactionSection } from "./transactions.js";

export default async function storage(view, _, query) {
  const [transactions, stored] = await Promise.all([
    transactionSection(),
    orForbidden(get("/storage", { search: query.get("search") })),
  ]);
  view.append(h("h1", {}, "Transactions & storage"), transactions);
  if (stored instanceof Error)
    view.append(h("h2", {}, "Disks and partitions"), h("p", { class: "bad" }, visible(stored.message)));
  else view.append(...storageParts(stored, query));
}

function storageParts(stored, query) {
  return [
    h("h2", {}, "Disks"),
    ...otherNodesNote(stored, "Disks and partitions").filter(Boolean),
    diskTable(stored.disks),
    h("h2", {}, "Partitions"),
    searchForm(query, "/storage", "orders"),
    h(
      "p",
      { class: stored.unstable_partitions ? "bad" : "soft" },
      `${counted(stored.unstable_partitions, "partition")} with a last stable offset below the high watermark${stored.omitted_partitions ? `; ${counted(stored.omitted_partitions, "partition")} not shown` : ""}`,
    ),
    new Table(
      [
        ["Partition", (row) => partitionLink(row.topic, row.partition), "", (row) => `${row.topic}-${row.partition}`],
        ["Start offset", (row) => number(row.log_start_offset), "num", (row) => row.log_start_offset],
        ["Last stable offset", (row) => number(row.last_stable_offset), "num", (row) => row.last_stable_offset],
        ["High watermark", (row) => number(row.high_watermark), "num", (row) => row.high_watermark],
        ["End offset", (row) => number(row.log_end_offset), "num", (row) => row.log_end_offset],
        [
          "Unstable offsets",
          (row) =>
            h(
              "span",
              { class: row.high_watermark > row.last_stable_offset ? "bad" : null },
              number(row.high_watermark - row.last_stable_offset),
            ),
          "num",
          (row) => row.high_watermark - row.last_stable_offset,
        ],
        ["Size", (row) => bytes(row.bytes), "num", (row) => row.bytes],
        ["Segments", (row) => number(row.segments), "num", (row) => row.segments],
        ["Producer IDs", (row) => number(row.producers), "num", (row) => row.producers],
        ["Node", (row) => nodeLink(row.node), "num", (row) => row.node],
      ],
      { label: "Storage", empty: "No partition of these topics has been used since its leader started." },
    ).set(stored.partitions).element,
  ];
}

const diskTable = (disks) =>
  new Table(
    [
      ["Node", (row) => nodeLink(row.node), "num", (row) => row.node],
      ["Directory", (row) => h("code", {}, visible(row.directory)), "", (row) => row.directory],
      ["Free", (row) => bytes(row.free), "num", (row) => row.free],
      ["Size", (row) => bytes(row.total), "num", (row) => row.total],
      [
        "State",
        (row) =>
          row.read_only_reason
            ? h("span", { class: "bad" }, visible(`read-only: ${row.read_only_reason}`))
            : h("span", { class: "good" }, "writable"),
      ],
    ],
    { label: "Disks", tall: false },
  ).set(disks).element;
