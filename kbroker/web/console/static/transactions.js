// Open transactions with their ages, hanging transactions, and aborts.

import { encodePart, get, post } from "./api.js";
import { emptyText } from "./common.js";
import { field, h, link, number, time, visible } from "./dom.js";
import { facts } from "./forms.js";
import { actions, previewTable, rowAction } from "./row_actions.js";
import { Table } from "./table.js";

const MINUTE_MS = 60_000;
// Default of the brokers' transaction.max.timeout.ms.
const OLDER_THAN_MINUTES = 15;
const PARTS = [
  ["Partition", (row) => visible(`${row.topic}-${row.partition}`)],
  ["Producer ID", (row) => String(row.producer_id), "num"],
  ["Epoch", (row) => row.producer_epoch, "num"],
  ["Start offset", (row) => number(row.start_offset), "num"],
  ["Last record", (row) => time(row.last_timestamp)],
];

export async function transactionSection() {
  const it = await get("/transactions");
  const refresh = async () => table.set((await get("/transactions")).transactions);
  const age = (row) => (row.start_timestamp ? Date.now() - row.start_timestamp : null);
  const columns = [
    [
      "Transactional ID",
      (row) => link(`/explain/transaction/${encodePart(row.transactional_id)}`, row.transactional_id),
      null,
      (row) => row.transactional_id,
    ],
    ["State", (row) => row.state, null, (row) => row.state],
    ["Producer ID", (row) => String(row.producer_id), "num", (row) => row.producer_id],
    ["Started", (row) => time(row.start_timestamp), null, (row) => row.start_timestamp],
    ["Open for", (row) => duration(age(row)), "num", age],
    ["Partitions", (row) => visible((row.partitions ?? []).join(", ") || "–")],
  ];
  if (it.transactions.some((row) => row.may_abort))
    columns.push([
      "Actions",
      (row) =>
        row.may_abort
          ? actions(abortButton(row.transactional_id, refresh))
          : "",
    ]);
  const table = new Table(columns, {
    label: "Transactions",
    empty: emptyText("No transactional IDs. One appears when its producer calls initTransactions.", "transactional IDs"),
  });
  return h("section", {}, h("h2", {}, "Transactions"), table.set(it.transactions).element, hangingSection());
}

// A button that aborts the open transaction of a transactional ID after a preview.
export const abortButton = (name, done) => rowAction("Abort", name, abortForm(name), done);

function duration(ms) {
  if (ms === null || ms < 0) return "–";
  const seconds = Math.floor(ms / 1000),
    minutes = Math.floor(seconds / 60),
    hours = Math.floor(minutes / 60);
  if (hours) return `${number(hours)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

function abortForm(name) {
  const path = `/transactions/${encodePart(name)}/abort`;
  return {
    title: `Abort transaction ${name}`,
    text: "Fences the producer: it cannot write with this transactional ID until it starts again.",
    preview: async () => {
      const it = await post(path, {});
      return h(
        "div",
        {},
        facts([
          ["Producer ID", String(it.aborted.producer_id)],
          ["Started", time(it.aborted.start_timestamp)],
          ["Partitions", visible(it.aborted.partitions.join(", ") || "none")],
        ]),
        previewTable("Records to abort", PARTS, it.parts, "No partition with records that you may read."),
      );
    },
    confirm: "Abort",
    isDangerous: true,
    act: async () => {
      await post(path, { dry_run: false });
      return `Transaction ${name} was aborted.`;
    },
  };
}

// A search for transactions that are open in a partition, but that no coordinator knows.
function hangingSection() {
  const shown = h("div", { role: "status" }),
    topic = h("input", { name: "topic", placeholder: "all" }),
    minutes = h("input", { name: "minutes", type: "number", min: 0, value: OLDER_THAN_MINUTES });
  async function search() {
    const query = { topic: topic.value, older_than_ms: Math.round(Number(minutes.value) * MINUTE_MS) };
    try {
      const it = await get("/transactions/hanging", query);
      const columns = it.may_abort
        ? [
            ...PARTS,
            [
              "Actions",
              (row) =>
                actions(rowAction("Abort", `${row.topic}-${row.partition}`, abortHangingForm(row), search)),
            ],
          ]
        : PARTS;
      const omitted = it.omitted_partitions
        ? `; ${number(it.omitted_partitions)} not searched, name a topic`
        : "";
      shown.replaceChildren(
        h("p", { class: "soft" }, `${number(it.searched)} partitions searched${omitted}`),
        new Table(columns, { label: "Hanging transactions" }).set(it.transactions).element,
      );
    } catch (error) {
      shown.replaceChildren(h("p", { class: "bad" }, visible(error.message)));
    }
  }
  return h(
    "section",
    {},
    h("h2", {}, "Hanging transactions"),
    h(
      "p",
      { class: "soft" },
      "They are open in a partition, but unknown to any coordinator, and block read_committed consumers.",
    ),
    h(
      "form",
      {
        class: "bar",
        onsubmit: (event) => {
          event.preventDefault();
          search();
        },
      },
      field("Topic", topic),
      field("No record for minutes", minutes),
      h("button", {}, "Find"),
    ),
    shown,
  );
}

function abortHangingForm(row) {
  const body = { topic: row.topic, partition: row.partition, start_offset: row.start_offset };
  return {
    title: `Abort the hanging transaction in ${row.topic}-${row.partition}`,
    text: "Writes an abort marker to this partition only.",
    preview: async () =>
      previewTable("Records to abort", PARTS, [(await post("/transactions/abort", body)).aborted]),
    confirm: "Abort",
    isDangerous: true,
    act: async () => {
      await post("/transactions/abort", { ...body, dry_run: false });
      return "The transaction was aborted.";
    },
  };
}
