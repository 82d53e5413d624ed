// ACLs: list with filters, new ACLs, removal of selected ACLs, and explanations of decisions.

import { get, post } from "./api.js";
import { field, h, notify, visible } from "./dom.js";
import { actionButton, openForm } from "./forms.js";
import { omittedNote, previewTable } from "./row_actions.js";
import { Table, selectedText } from "./table.js";

const FILTERS = ["principal", "resource_type", "resource"];
const COLUMNS = [
  ["Principal", (row) => visible(row.principal), null, (row) => row.principal],
  [
    "Permission",
    (row) => h("span", { class: row.permission === "deny" ? "bad" : null }, row.permission),
    null,
    (row) => row.permission,
  ],
  ["Operation", (row) => row.operation, null, (row) => row.operation],
  ["Resource type", (row) => row.resource_type, null, (row) => row.resource_type],
  ["Resource", (row) => visible(row.resource), null, (row) => row.resource],
  ["Pattern", (row) => row.pattern],
  ["Host", (row) => visible(row.host)],
];
const keyOf = (row) =>
  `${row.permission} ${row.principal} ${row.operation} ${row.resource_type} ${row.pattern} ${row.resource} ${row.host}`;

export default async function acls(view, query) {
  const filters = Object.fromEntries(FILTERS.map((each) => [each, query.get(each) ?? ""]));
  const it = await get("/acls", filters);
  if (!it.enforced) {
    view.append(
      h(
        "p",
        {},
        "This cluster has no authorizer, so every client may do everything. Set ",
        h("code", {}, "authorizer.class.name"),
        " to enforce ACLs.",
      ),
    );
    return;
  }
  const refresh = async () => table.set((await get("/acls", filters)).acls);
  const remove = h("button", {
    type: "button",
    disabled: true,
    onclick: async () => (await openForm(removeForm(table))) && refresh(),
  });
  const selectionChanged = () => {
    remove.disabled = !table.selected.size;
    remove.textContent = `Remove${selectedText(table)}`;
  };
  const table = new Table(COLUMNS, {
    label: "ACLs",
    keyOf: it.may_alter ? keyOf : null,
    onSelect: selectionChanged,
  });
  selectionChanged();
  view.append(
    filterForm(it, filters),
    it.may_alter &&
      h(
        "div",
        { class: "row" },
        actionButton("Add ACL", aclForm(it), { done: refresh, isMain: true }),
        actionButton("Allow a producer", producerForm(it), { done: refresh }),
        actionButton("Allow a consumer", consumerForm(it), { done: refresh }),
        remove,
      ),
    table.set(it.acls).element,
    omittedNote(it.omitted, "ACLs") || "",
    explanation(it, refresh),
  );
}

function filterForm(it, filters) {
  const inputs = [
    ["Principal", h("input", { name: "principal", value: filters.principal, placeholder: "User:alice" })],
    ["Resource type", typeSelect(it, "resource_type", filters.resource_type, [["", "any"]])],
    ["Resource", h("input", { name: "resource", value: filters.resource, placeholder: "orders" })],
  ];
  return h(
    "form",
    {
      class: "bar",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = `#/security/acls?${new URLSearchParams(new FormData(event.target))}`;
      },
    },
    inputs.map(([name, input]) => field(name, input)),
    h("button", { class: "main" }, "Filter"),
  );
}

function typeSelect(it, name, value, first = []) {
  const options = [...first, ...Object.keys(it.operations).map((each) => [each, each])];
  return h(
    "select",
    { name },
    options.map(([given, text]) => h("option", { value: given, selected: given === value }, text)),
  );
}

const operationsOf = (it) => [...new Set(Object.values(it.operations).flat())].sort();
const principal = {
  name: "principal",
  label: "Principal",
  placeholder: "User:alice",
  required: true,
  help: "User:* means every user.",
};
const host = {
  name: "host",
  label: "Host",
  value: "*",
  help: "An address, a network such as 10.1.0.0/16, or *.",
};
const pattern = {
  name: "pattern",
  label: "Pattern",
  type: "select",
  options: [
    ["literal", "literal: exactly this name, or * for all"],
    ["prefixed", "prefixed: all names that begin with it"],
  ],
};

function aclForm(it, row = {}) {
  return newAclsForm(
    "Add ACL",
    [
      { ...principal, value: row.principal },
      {
        name: "permission",
        label: "Permission",
        type: "select",
        options: ["allow", "deny"],
        value: row.permission,
      },
      {
        name: "resource_type",
        label: "Resource type",
        type: "select",
        options: Object.keys(it.operations),
        value: row.resource_type,
      },
      { name: "resource", label: "Resource", value: row.resource, help: "Not needed for cluster." },
      { ...pattern, value: row.pattern },
      {
        name: "operation",
        label: "Operation",
        type: "select",
        options: operationsOf(it),
        value: row.operation ?? "read",
      },
      { ...host, value: row.host ?? "*" },
    ],
    (values) => [values],
  );
}

const producerForm = (it) =>
  roleForm("Allow a producer", it.roles.producer, [
    { name: "topic", label: "Topic", required: true },
    { name: "transactional-id", label: "Transactional ID", help: "Only for transactions." },
  ]);

const consumerForm = (it) =>
  roleForm("Allow a consumer", it.roles.consumer, [
    { name: "topic", label: "Topic", required: true },
    { name: "group", label: "Group", required: true },
  ]);

function roleForm(title, role, resources) {
  return newAclsForm(title, [principal, ...resources, pattern, host], (values) =>
    resources.flatMap(({ name }) =>
      values[name]
        ? role[name].map((operation) => ({
            principal: values.principal,
            host: values.host,
            pattern: values.pattern,
            resource_type: name,
            resource: values[name],
            operation,
          }))
        : [],
    ),
  );
}

function newAclsForm(title, fields, aclsOf) {
  return {
    title,
    fields,
    preview: async (values) => {
      const { acls: rows } = await post("/acls/add", { acls: aclsOf(values) });
      return previewTable(
        "New ACLs",
        [...COLUMNS, ["State", (row) => (row.exists ? "exists already" : "new")]],
        rows,
      );
    },
    confirm: "Add",
    act: async (values) => {
      const { acls: rows } = await post("/acls/add", { acls: aclsOf(values), dry_run: false });
      return rows.length === 1 ? "The ACL was added." : `${rows.length} ACLs were added.`;
    },
  };
}

function removeForm(table) {
  const filters = table.given.filter((row) => table.selected.has(keyOf(row)));
  return {
    title: "Remove ACLs",
    text: "Clients that rely on these ACLs are affected at once.",
    preview: async () => {
      const it = await post("/acls/remove", { filters });
      return previewTable("Removed ACLs", COLUMNS, it.acls, "None of these ACLs exists any more.");
    },
    confirm: "Remove",
    isDangerous: true,
    act: async () => {
      const it = await post("/acls/remove", { filters, dry_run: false });
      return it.matching === 1 ? "The ACL was removed." : `${it.matching} ACLs were removed.`;
    },
  };
}

// A form that explains whether a principal may do something, and what would allow it.
function explanation(it, refresh) {
  const shown = h("div", { role: "status" });
  const operation = h(
    "select",
    { name: "operation" },
    operationsOf(it)
      .filter((each) => each !== "all")
      .map((each) => h("option", { selected: each === "read" }, each)),
  );
  const form = h(
    "form",
    {
      class: "bar",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          const found = await get("/acls/explain", Object.fromEntries(new FormData(form)));
          shown.replaceChildren(...decision(found, it, refresh));
        } catch (error) {
          shown.replaceChildren(h("p", { class: "bad" }, visible(error.message)));
        }
      },
    },
    field("Principal", h("input", { name: "principal", required: true, placeholder: "User:alice" })),
    field("Operation", operation),
    field("Resource type", typeSelect(it, "resource_type", "topic")),
    field("Resource", h("input", { name: "resource", placeholder: "orders" })),
    field("Host", h("input", { name: "host", placeholder: "any" })),
    h("button", {}, "Explain"),
  );
  return h("section", {}, h("h2", {}, "Explain a decision"), form, shown);
}

function decision(found, it, refresh) {
  const hidden = found.hidden_settings.join(" and ");
  return [
    h(
      "p",
      {},
      h("strong", { class: found.allowed ? "good" : "bad" }, found.allowed ? "Allowed" : "Denied"),
      visible(`: ${found.rule}`),
    ),
    hidden &&
      !found.allowed &&
      h("p", { class: "soft" }, `The broker does not expose its ${hidden}, which may allow more.`),
    found.changes.map(({ verb, acl }) =>
      h(
        "div",
        { class: "row" },
        h("span", {}, visible(`To allow it, ${verb} the ACL: ${keyOf(acl)}`)),
        it.may_alter &&
          verb === "add" &&
          actionButton("Add this ACL", aclForm(it, acl), {
            done: () => refresh().then(() => notify("Explain again to check.")),
          }),
      ),
    ),
  ]
    .flat()
    .filter(Boolean);
}
