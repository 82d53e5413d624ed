// List of topics.

import { get, encodePart, session } from "./api.js";
import { emptyText, keepFocus, refreshEvery, searchForm } from "./common.js";
import { bytes, groupLink, h, number, topicLink } from "./dom.js";
import { actionButton, openForm } from "./forms.js";
import { DeleteSelected } from "./row_actions.js";
import { Table } from "./table.js";
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
      onSelect: () => deletion.update(),
      empty: search
        ? "No topic has a name with this text."
        : emptyText("No topics. Create one, or let a client write to a new one.", "topics"),
    },
  );
  const open = (name) => {
    location.hash = `#/topics/${encodePart(name)}/partitions`;
  };
  const actions = h("div", { class: "row" }),
    createButton = actionButton("Create topic", createTopicForm(open), { isMain: true });
  const deletion = new DeleteSelected(
    table,
    (names) => openForm(deleteTopicsForm(names)),
    () => refresh(""),
  );
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
    deletion.update();
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
  actions.append(createButton, deletion.element);
  await refresh("");
  return refreshEvery(5, async () => {
    if (rows.length <= 100) await refresh("");
  });
}
