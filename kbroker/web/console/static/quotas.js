// Client quotas.

import { get, post } from "./api.js";
import { h, number, visible } from "./dom.js";
import { actionButton } from "./forms.js";
import { actions, omittedNote, previewTable, rowAction } from "./row_actions.js";
import { Table } from "./table.js";

const ENTITY = ["user", "client_id", "ip"];
const UNITS = {
  producer_byte_rate: "bytes per second",
  consumer_byte_rate: "bytes per second",
  request_percentage: "percent of one thread",
  controller_mutation_rate: "created and deleted partitions per second",
  connection_creation_rate: "connections per second, only for an IP address",
};
const nameOf = (row) =>
  ENTITY.filter((each) => row[each] !== undefined)
    .map((each) => `${each} ${row[each]}`)
    .join(", ");

export default async function quotas(view) {
  const it = await get("/quotas");
  const refresh = async () => table.set((await get("/quotas")).quotas);
  const columns = [
    ["User", (row) => visible(row.user ?? ""), null, (row) => row.user],
    ["Client ID", (row) => visible(row.client_id ?? ""), null, (row) => row.client_id],
    ["IP address", (row) => visible(row.ip ?? ""), null, (row) => row.ip],
    ...it.keys.map((key) => [
      key,
      (row) => (key in row.quotas ? number(row.quotas[key]) : ""),
      "num",
      (row) => row.quotas[key],
    ]),
  ];
  if (it.may_alter)
    columns.push([
      "Actions",
      (row) =>
        actions(
          rowAction("Change", nameOf(row), changeForm(it, row), refresh),
          rowAction("Remove", nameOf(row), removeForm(row), refresh),
        ),
    ]);
  const table = new Table(columns, { label: "Quotas" });
  view.append(
    h(
      "div",
      { class: "row" },
      it.may_alter && actionButton("Set quota", newForm(it), { done: refresh, isMain: true }),
    ),
    table.set(it.quotas).element,
    omittedNote(it.omitted, "entities") || "",
  );
}

const valueFields = (it, row) =>
  it.keys.map((key) => ({
    name: key,
    label: key,
    help: UNITS[key],
    type: "number",
    min: 0,
    value: row?.quotas[key],
  }));

function newForm(it) {
  const names = [
    { name: "user", label: "User" },
    { name: "client_id", label: "Client ID" },
    { name: "ip", label: "IP address" },
  ];
  const change = (values) => {
    const given = Object.fromEntries(
      it.keys.filter((key) => values[key] !== null).map((key) => [key, values[key]]),
    );
    return { ...Object.fromEntries(ENTITY.map((each) => [each, values[each]])), values: given };
  };
  return form(
    "Set quota",
    "A user, a client ID, both, or an IP address; <default> means all without a quota of their own.",
    [...names, ...valueFields(it)],
    change,
  );
}

function changeForm(it, row) {
  const change = (values) => ({
    ...entityOf(row),
    values: Object.fromEntries(
      it.keys.filter((key) => values[key] !== null || key in row.quotas).map((key) => [key, values[key]]),
    ),
  });
  return form(
    `Change quotas of ${nameOf(row)}`,
    "An empty value removes a quota.",
    valueFields(it, row),
    change,
  );
}

const entityOf = (row) =>
  Object.fromEntries(ENTITY.filter((each) => each in row).map((each) => [each, row[each]]));

function form(title, text, fields, change) {
  return {
    title,
    text,
    fields,
    preview: async (values) => shown(await post("/quotas/set", change(values))),
    confirm: "Set",
    act: async (values) => {
      const it = await post("/quotas/set", { ...change(values), dry_run: false });
      return `${it.entity}: quotas changed.`;
    },
  };
}

function removeForm(row) {
  const change = {
    ...entityOf(row),
    values: Object.fromEntries(Object.keys(row.quotas).map((key) => [key, null])),
  };
  return {
    title: `Remove quotas of ${nameOf(row)}`,
    preview: async () => shown(await post("/quotas/set", change)),
    confirm: "Remove",
    isDangerous: true,
    act: async () => {
      const it = await post("/quotas/set", { ...change, dry_run: false });
      return `${it.entity}: quotas removed.`;
    },
  };
}

const shown = (it) =>
  previewTable(
    "Changes",
    [
      ["Quota", (row) => row.key],
      ["Before", (row) => number(row.before), "num"],
      ["After", (row) => (row.after === null ? "removed" : number(row.after)), "num"],
    ],
    it.changes,
  );
