// Open transactions, and the logs of the partitions that this process leads.

import { get, encodePart } from "./api.js";
import { otherNodesNote, searchForm } from "./common.js";
import { bytes, h, link, number } from "./dom.js";
import { Table } from "./table.js";
import { transactionSection } from "./transactions.js";

export default async function storage(view, _, query) {
  const [transactions, stored] = await Promise.all([
    transactionSection(),
    get("/storage", { search: query.get("search") }),
  ]);
  view.append(
    h("h1", {}, "Transactions & storage"),
    transactions,
    h("h2", {}, "Partitions led by this process"),
    ...otherNodesNote(stored, "Partitions").filter(Boolean),
    searchForm(query, "/storage", "orders"),
    h(
      "p",
      { class: stored.unstable_partitions ? "bad" : "soft" },
      `${number(stored.unstable_partitions)} partitions with a last stable offset below the high watermark${stored.omitted_partitions ? `; ${number(stored.omitted_partitions)} partitions not shown` : ""}`,
    ),
    new Table(
      [
        [
          "Partition",
          (row) =>
            link(
              `/explain/partition/${encodePart(row.topic)}/${row.partition}`,
              `${row.topic}-${row.partition}`,
            ),
        ],
        ["Start offset", (row) => number(row.log_start_offset), "num"],
        ["Last stable offset", (row) => number(row.last_stable_offset), "num"],
        ["High watermark", (row) => number(row.high_watermark), "num"],
        ["End offset", (row) => number(row.log_end_offset), "num"],
        [
          "Unstable offsets",
          (row) =>
            h(
              "span",
              { class: row.high_watermark > row.last_stable_offset ? "bad" : null },
              number(row.high_watermark - row.last_stable_offset),
            ),
          "num",
        ],
        ["Size", (row) => bytes(row.bytes), "num"],
        ["Segments", (row) => number(row.segments), "num"],
        ["Producer IDs", (row) => number(row.producers), "num"],
        ["Node", (row) => row.node, "num"],
      ],
      { label: "Storage" },
    ).set(stored.partitions).element,
  );
}
