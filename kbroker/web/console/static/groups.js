// List of groups.

import { get, encodePart } from "./api.js";
import { refreshEvery, searchForm } from "./common.js";
import { h, link, number, sparkline } from "./dom.js";
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
  view.append(h("h1", {}, "Groups"), searchForm(query, "/groups", "shop"), table.element);
  const refresh = async () => table.set((await get("/groups", { search: query.get("search") })).groups);
  await refresh();
  return refreshEvery(5, refresh);
}
