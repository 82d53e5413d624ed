// List of groups.

import { get, encodePart } from "./api.js";
import { refreshEvery, searchForm } from "./common.js";
import { h, link, number, sparkline } from "./dom.js";
import { actionButton } from "./forms.js";
import { createGroupForm } from "./group_forms.js";
import { Table } from "./table.js";

export default async function groups(view, _, query) {
  const table = new Table(
    [
      ["Group", (row) => link(`/groups/${encodePart(row.group)}`, row.group)],
      ["State", (row) => row.state],
      ["Type", (row) => row.type],
      ["Members", (row) => number(row.members), "num"],
      ["Lag", (row) => number(row.lag), "num"],
      ["Last 10 min", (row) => sparkline(row.trend, "lag")],
      ["Coordinator", (row) => number(row.coordinator), "num"],
    ],
    { label: "Groups" },
  );
  const read = () => get("/groups", { search: query.get("search") });
  const refresh = async () => table.set((await read()).groups);
  const it = await read();
  table.set(it.groups);
  const open = (name) => {
    location.hash = `#/groups/${encodePart(name)}`;
  };
  view.append(
    h("h1", {}, "Groups"),
    h(
      "div",
      { class: "row" },
      it.may.includes("CREATE") && actionButton("Create group", createGroupForm(open), { isMain: true }),
    ),
    searchForm(query, "/groups", "shop"),
    table.element,
  );
  return refreshEvery(5, refresh);
}
