// Subjects of the schema registry in the same process.

import { encodePart, get, post, session } from "./api.js";
import { searchForm } from "./common.js";
import { h, link, number, visible } from "./dom.js";
import { actionButton } from "./forms.js";
import { registerForm } from "./schema_forms.js";
import { Table } from "./table.js";

const PAGE = 50;

export default async function schemas(view, _, query) {
  const asked = {
    search: query.get("search"),
    deleted: query.get("deleted"),
    offset: Number(query.get("offset") ?? 0),
    limit: PAGE,
  };
  const it = await get("/schemas", asked);
  view.append(h("h1", {}, "Schemas"));
  if (!it.enabled) {
    view.append(h("p", {}, visible(`No schemas: ${it.reason}.`)));
    return;
  }
  const again = async () => {
    const fresh = await get("/schemas", asked);
    table.set(fresh.subjects);
    level.textContent = fresh.level;
  };
  const level = h("strong", {}, it.level);
  const table = new Table(
    [
      [
        "Subject",
        (row) => link(`/schemas/${encodePart(row.subject)}`, row.subject),
        null,
        (row) => row.subject,
      ],
      ["Type", (row) => row.type, null, (row) => row.type],
      ["Versions", (row) => number(row.versions), "num", (row) => row.versions],
      ["Newest version", (row) => number(row.version), "num"],
      ["Schema ID", (row) => String(row.id), "num", (row) => row.id],
      ["Compatibility", (row) => (row.own_level ? row.own_level : `${row.level} (global)`)],
      ["State", (row) => (row.is_deleted ? h("span", { class: "bad" }, "deleted") : "")],
    ],
    { label: "Subjects" },
  );
  view.append(
    searchForm(query, "/schemas", "orders", deletedBox(query)),
    h("p", {}, "Global compatibility level: ", level),
    h(
      "div",
      { class: "row" },
      session.may_write && actionButton("Register schema", registerForm(), { done: again, isMain: true }),
      it.may.alter_level && actionButton("Change global level", globalLevelForm(it, level), { done: again }),
    ),
    table.set(it.subjects).element,
    pages(query, asked.offset, it.matching),
  );
}

// Whether the list contains deleted subjects.
const deletedBox = (query) =>
  h(
    "label",
    { class: "check" },
    h("input", { type: "checkbox", name: "deleted", value: "1", checked: query.get("deleted") === "1" }),
    "With deleted subjects",
  );

function pages(query, offset, matching) {
  const to = (at, text) => {
    const next = new URLSearchParams(query);
    next.set("offset", at);
    return h("a", { href: `#/schemas?${next}` }, text);
  };
  if (matching <= PAGE) return "";
  return h(
    "p",
    { class: "row" },
    h(
      "span",
      {},
      `${number(offset + 1)} to ${number(Math.min(offset + PAGE, matching))} of ${number(matching)}`,
    ),
    offset > 0 && to(Math.max(offset - PAGE, 0), "Previous"),
    offset + PAGE < matching && to(offset + PAGE, "Next"),
  );
}

const globalLevelForm = (it, shown) => ({
  title: "Change the global compatibility level",
  text: "It applies to all subjects without a level of their own.",
  fields: [{ name: "level", label: "Level", type: "select", options: it.levels, value: shown.textContent }],
  confirm: "Change level",
  act: async ({ level }) => {
    await post("/schema-level", { level });
    return `The global level is ${level}.`;
  },
});
