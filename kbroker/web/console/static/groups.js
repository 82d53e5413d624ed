// List of groups.

import { get, encodePart, session } from "./api.js";
import { emptyText, keepFocus, refreshEvery, searchForm } from "./common.js";
import { groupLink, h, lagOf, nodeLink, number, sparkline } from "./dom.js";
import { actionButton, openForm } from "./forms.js";
import { createGroupForm, deleteGroupsForm } from "./group_forms.js";
import { DeleteSelected } from "./row_actions.js";
import { Table } from "./table.js";

export default async function groups(view, _, query) {
  const table = new Table(
    [
      ["Group", (row) => groupLink(row.group), "", (row) => row.group],
      ["Lag", lagOf, "num", (row) => row.lag],
      ["State", (row) => row.state, "", (row) => row.state],
      ["Members", (row) => number(row.members), "num", (row) => row.members],
      ["Last 10 min", (row) => sparkline(row.trend, "lag")],
      ["Type", (row) => row.type, "", (row) => row.type],
      ["Coordinator", (row) => nodeLink(row.coordinator), "num", (row) => row.coordinator],
    ],
    {
      label: "Groups",
      keyOf: session.may_write ? (row) => row.group : null,
      onSelect: () => deletion.update(),
      empty: query.get("search")
        ? "No group has a name with this text."
        : emptyText("No groups. A group appears when its first consumer joins or commits an offset.", "groups"),
    },
  );
  const deletion = new DeleteSelected(table, (names) => openForm(deleteGroupsForm(names)), refresh);
  async function refresh() {
    const found = await get("/groups", { search: query.get("search") });
    keepFocus(table, () => table.set(found.groups));
    deletion.update();
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
      deletion.element,
    ),
    searchForm(query, "/groups", "shop"),
    table.element,
  );
  return refreshEvery(5, refresh);
}
