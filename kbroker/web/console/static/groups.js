// List of groups.

import { get, encodePart, session } from "./api.js";
import { keepFocus, refreshEvery, searchForm } from "./common.js";
import { groupLink, h, nodeLink, number, sparkline } from "./dom.js";
import { actionButton, openForm } from "./forms.js";
import { createGroupForm, deleteGroupsForm } from "./group_forms.js";
import { Table, selectedText } from "./table.js";

export default async function groups(view, _, query) {
  const table = new Table(
    [
      ["Group", (row) => groupLink(row.group), "", (row) => row.group],
      ["Lag", (row) => number(row.lag), "num", (row) => row.lag],
      ["State", (row) => row.state, "", (row) => row.state],
      ["Members", (row) => number(row.members), "num", (row) => row.members],
      ["Last 10 min", (row) => sparkline(row.trend, "lag")],
      ["Type", (row) => row.type, "", (row) => row.type],
      ["Coordinator", (row) => nodeLink(row.coordinator), "num", (row) => row.coordinator],
    ],
    {
      label: "Groups",
      keyOf: session.may_write ? (row) => row.group : null,
      onSelect: () => updateActions(),
      empty: query.get("search")
        ? "No group has a name with this text."
        : "No groups yet. A group appears when its first consumer joins or commits an offset.",
    },
  );
  const deleteButton = h("button", { type: "button", onclick: deleteSelected });
  let rows = [];
  // Updates the button that deletes groups, as far as the viewer may delete all selected groups.
  function updateActions() {
    const chosen = rows.filter((row) => table.selected.has(row.group));
    deleteButton.textContent = `Delete${selectedText(table)}`;
    deleteButton.disabled = !chosen.length || !chosen.every((row) => row.may.includes("DELETE"));
    deleteButton.hidden = !rows.some((row) => row.may.includes("DELETE"));
  }
  async function deleteSelected() {
    await openForm(deleteGroupsForm([...table.selected]));
    await refresh(); // a closed dialog may have deleted some of the groups
  }
  async function refresh() {
    const found = await get("/groups", { search: query.get("search") });
    rows = found.groups;
    keepFocus(table, () => table.set(rows));
    updateActions();
    return found;
  }
  const it = await refresh();
  const open = (name) => {
    location.hash = `#/groups/${encodePart(name)}`;
  };
  view.append(
    h("h1", {}, "Groups"),
    h(
      "div",
      { class: "row" },
      it.may.includes("CREATE") && actionButton("Create group", createGroupForm(open), { isMain: true }),
      deleteButton,
    ),
    searchForm(query, "/groups", "shop"),
    table.element,
  );
  return refreshEvery(5, refresh);
}
