// List of topics.

import { get, encodePart, session } from "./api.js";
import { keepFocus, refreshEvery, searchForm } from "./common.js";
import { bytes, groupLink, h, number, topicLink } from "./dom.js";
import { actionButton, openForm } from "./forms.js";
import { Table, selectedText } from "./table.js";
import { createTopicForm, deleteTopicsForm } from "./topic_forms.js";

export default async function topics(view, _, query) {
  const search = query.get("search") ?? "",
    internal = query.get("internal") ?? "";
  const moreButton = h("button", { type: "button" }, "Load more");
  const table = new Table(
    [
      ["Topic", (row) => topicLink(row.name), "", (row) => row.name],
      ["Size", (row) => bytes(row.bytes), "num", (row) => row.bytes],
      ["Lag", (row) => number(row.lag), "num", (row) => row.lag],
      ["Records", (row) => number(row.records), "num", (row) => row.records],
      ["Records in / s", (row) => number(row.records_per_second), "num", (row) => row.records_per_second],
      ["Partitions", (row) => number(row.partitions), "num", (row) => row.partitions],
      ["Replicas", (row) => number(row.replicas), "num", (row) => row.replicas],
      [
        "Groups",
        (row) =>
          row.groups
            .slice(0, 5)
            .map((each) => [groupLink(each.group), ` ${number(each.lag)}  `]),
      ],
    ],
    {
      label: "Topics",
      keyOf: session.may_write ? (row) => row.name : null,
      onSelect: () => updateActions(),
      empty: search
        ? "No topic has a name with this text."
        : "No topics yet. Create one, or let a client write to a new one.",
    },
  );
  const open = (name) => {
    location.hash = `#/topics/${encodePart(name)}/partitions`;
  };
  const actions = h("div", { class: "row" }),
    createButton = actionButton("Create topic", createTopicForm(open), { isMain: true }),
    deleteButton = h("button", { type: "button", onclick: deleteSelected });
  // Buttons of the list, as far as the viewer may use them for all selected topics.
  function updateActions() {
    const chosen = rows.filter((row) => table.selected.has(row.name));
    deleteButton.textContent = `Delete${selectedText(table)}`;
    deleteButton.disabled = !chosen.length || !chosen.every((row) => row.may.includes("DELETE"));
    deleteButton.hidden = !rows.some((row) => row.may.includes("DELETE"));
  }
  async function deleteSelected() {
    await openForm(deleteTopicsForm([...table.selected]));
    await refresh(""); // a closed dialog may have deleted some of the topics
  }
  const summary = h("p", { class: "soft" });
  let rows = [],
    next = "";
  async function refresh(after) {
    const found = await get("/topics", { search, internal, after, limit: 100 });
    rows = after ? rows.concat(found.topics) : found.topics;
    next = found.next;
    moreButton.hidden = !next;
    summary.textContent = `${number(rows.length)} of ${number(found.matching)} topics`;
    createButton.hidden = !found.may.includes("CREATE");
    keepFocus(table, () => table.set(rows));
    updateActions();
  }
  moreButton.addEventListener("click", () => refresh(next));
  const box = h("input", {
    type: "checkbox",
    checked: internal === "1",
    onchange: (event) => {
      location.hash = `#/topics?search=${encodePart(search)}&internal=${event.target.checked ? 1 : ""}`;
    },
  });
  view.append(
    h("h1", {}, "Topics"),
    actions,
    searchForm(query, "/topics", "orders"),
    h("label", { class: "check" }, box, "Show internal topics"),
    table.element,
    summary,
    moreButton,
  );
  actions.append(createButton, deleteButton);
  await refresh("");
  return refreshEvery(5, async () => {
    if (rows.length <= 100) await refresh("");
  });
}
