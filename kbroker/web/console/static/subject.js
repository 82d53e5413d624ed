// Subject page: versions, one schema with its references, and a comparison of two versions.

import { encodePart, get, post } from "./api.js";
import { card, field, h, link, number, visible } from "./dom.js";
import { actionButton } from "./forms.js";
import { actions, omittedNote, reload, rowAction } from "./row_actions.js";
import { deleteForm, registerForm } from "./schema_forms.js";
import { Table } from "./table.js";

export default async function subject(view, parts, query) {
  const name = parts[1],
    path = `/schemas/${encodePart(name)}`,
    it = await get(`${path}/versions`),
    shown = it.versions.find((each) => String(each.version) === query.get("version")) ?? it.versions[0];
  const schema = await get(`${path}/versions/${shown.version}`);
  const numbers = it.versions.map((each) => String(each.version)),
    [from, to] = ["from", "to"].map((each) => query.get(each));
  // The URL may name a version that was deleted permanently.
  const compared =
    numbers.includes(from) && numbers.includes(to) ? await get(`${path}/compare`, { from, to }) : null;
  view.append(
    h("h1", {}, visible(name)),
    h(
      "div",
      { class: "cards" },
      card("Type", shown.type),
      card("Versions", number(it.versions.length + it.omitted)),
      card(
        "Compatibility",
        it.level,
        h("div", { class: "name" }, it.own_level ? "own level" : "global level"),
      ),
    ),
    buttons(it, schema),
    versionTable(it, name),
    omittedNote(it.omitted, "versions") || "",
    h("h2", {}, `Version ${shown.version}`),
    details(schema),
    h("pre", {}, visible(schema.text)),
    it.versions.length > 1 ? comparison(it, name, compared) : "",
  );
}

function buttons(it, schema) {
  const isDeleted = it.versions.every((each) => each.is_deleted);
  const leave = () => {
    location.hash = "#/schemas";
  };
  return h(
    "div",
    { class: "row" },
    it.may.register &&
      actionButton("Register version", registerForm(it.subject, schema), { done: reload, isMain: true }),
    it.may.alter_level && actionButton("Change level", levelForm(it), { done: reload }),
    it.may.delete &&
      actionButton("Delete subject", deleteForm(it.subject, undefined, isDeleted), { done: leave }),
  );
}

function levelForm(it) {
  return {
    title: `Change the compatibility level of ${it.subject}`,
    fields: [
      {
        name: "level",
        label: "Level",
        type: "select",
        options: [["", "global level"], ...it.levels],
        value: it.own_level ?? "",
      },
    ],
    confirm: "Change level",
    act: async ({ level }) => {
      await post(`/schemas/${encodePart(it.subject)}/level`, { level: level || null });
      return level ? `${it.subject} has the level ${level}.` : `${it.subject} has the global level.`;
    },
  };
}

function versionTable(it, name) {
  const columns = [
    [
      "Version",
      (row) => link(`/schemas/${encodePart(name)}?version=${row.version}`, String(row.version)),
      "num",
    ],
    ["Schema ID", (row) => String(row.id), "num"],
    ["Type", (row) => row.type],
    ["References", (row) => number(row.references), "num"],
    ["State", (row) => (row.is_deleted ? h("span", { class: "bad" }, "deleted") : "")],
  ];
  if (it.may.delete)
    columns.push([
      "Actions",
      (row) =>
        actions(
          row.is_deleted
            ? rowAction(
                "Delete permanently",
                `version ${row.version}`,
                deleteForm(name, row.version, true),
                reload,
              )
            : rowAction("Delete", `version ${row.version}`, deleteForm(name, row.version, false), reload),
        ),
    ]);
  return new Table(columns, { label: "Versions" }).set(it.versions).element;
}

function details(schema) {
  return h(
    "div",
    {},
    h("p", { class: "soft" }, `Schema ID ${schema.id}`),
    schema.references.length > 0 &&
      h(
        "p",
        {},
        "References: ",
        schema.references.map((each, at) => [
          at ? ", " : "",
          link(
            `/schemas/${encodePart(each.subject)}?version=${each.version}`,
            `${each.name} (${each.subject}, version ${each.version})`,
          ),
        ]),
      ),
    schema.referenced_by.length > 0 &&
      h("p", {}, `Referenced by schema IDs: ${schema.referenced_by.join(", ")}`),
  );
}

function comparison(it, name, compared) {
  const numbers = it.versions.map((each) => each.version);
  const select = (key, chosen) =>
    h(
      "select",
      { name: key },
      numbers.map((each) => h("option", { selected: each === chosen }, String(each))),
    );
  return h(
    "section",
    {},
    h("h2", {}, "Compare versions"),
    h(
      "form",
      {
        class: "bar",
        onsubmit: (event) => {
          event.preventDefault();
          location.hash = `#/schemas/${encodePart(name)}?${new URLSearchParams(new FormData(event.target))}`;
        },
      },
      field("From", select("from", compared?.from ?? numbers[1])),
      field("To", select("to", compared?.to ?? numbers[0])),
      h("button", {}, "Compare"),
    ),
    compared && difference(compared),
  );
}

const SIGNS = { same: " ", removed: "−", added: "+" };
const CONTEXT = 4;
const CLASSES = { same: null, removed: "bad", added: "good" };

function difference(it) {
  if (it.lines.every((each) => each.change === "same")) return h("p", {}, "The versions are equal.");
  // Long runs of equal lines are shortened to CONTEXT lines before and after a change.
  const lines = it.lines.map((each, at) => {
    const around = it.lines.slice(Math.max(at - CONTEXT, 0), at + CONTEXT + 1);
    return around.some((other) => other.change !== "same") ? each : null;
  });
  return h(
    "pre",
    { "aria-label": `Changes from version ${it.from} to ${it.to}`, tabindex: 0, role: "region" },
    lines.map((each, at) => {
      if (each)
        return h(
          "span",
          { class: CLASSES[each.change] },
          visible(`${SIGNS[each.change]} ${each.text}`),
          "\n",
        );
      return lines[at - 1] || at === 0 ? "⋯\n" : null;
    }),
  );
}
