// Requests, errors and disconnects of each client, and the event log of the node.

import { get, encodePart } from "./api.js";
import { CONSOLE_CLIENT_ID, otherNodesNote, refreshEvery } from "./common.js";
import { h, link, number, time, visible } from "./dom.js";
import { Table } from "./table.js";

export default async function activity(view) {
  let after = 0,
    lines = [],
    before = new Map(),
    at = 0;
  const detail = h("div"),
    others = h("div"),
    list = h("ul", { class: "lines" });
  const table = new Table(
    [
      ["Client ID", (row) => visible(row.client_id || "(no client ID)")],
      ["Software", (row) => visible(row.software || "–")],
      ["User", (row) => visible(row.principal)],
      ["Host", (row) => visible(row.host)],
      ["Node", (row) => row.node, "num"],
      ["Requests", (row) => number(row.requests), "num"],
      ["Requests / s", (row) => number(row.rate), "num"],
      ["Errors", (row) => h("span", { class: row.errors ? "bad" : null }, number(row.errors)), "num"],
      [
        "Disconnects",
        (row) =>
          Object.entries(row.disconnects)
            .map(([kind, count]) => `${kind} ${count}`)
            .join(", ") || "–",
      ],
      ["Last request", (row) => time(row.last_at_ms)],
    ],
    {
      label: "Clients",
      pick: (row) => {
        detail.replaceChildren(
          h("h2", {}, visible(row.client_id || "(no client ID)")),
          h("p", {}, link(`/explain/client/${encodePart(row.client_id)}`, "Explain")),
          new Table(
            [
              ["API", (each) => each.api],
              ["Requests", (each) => number(each.requests), "num"],
              [
                "Errors",
                (each) =>
                  Object.entries(each.errors)
                    .map(([code, count]) => `${code} ${count}`)
                    .join(", ") || "–",
              ],
            ],
            { label: "APIs" },
          ).set(row.apis).element,
        );
      },
    },
  );
  view.append(
    h("h1", {}, "Activity"),
    others,
    table.element,
    detail,
    h("h2", {}, "Event log of this node"),
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Event log" }, list),
  );
  async function refresh() {
    const it = await get("/activity", { after }),
      now = performance.now();
    after = it.number;
    others.replaceChildren(...otherNodesNote(it, "Clients").filter(Boolean));
    for (const row of it.clients) {
      const key = `${row.node} ${row.client_id}`;
      row.rate =
        at && before.has(key) ? Math.round((row.requests - before.get(key)) / ((now - at) / 1000)) : null;
      before.set(key, row.requests);
    }
    at = now;
    table.set(it.clients);
    lines = it.events
      .filter((each) => each.client_id !== CONSOLE_CLIENT_ID)
      .reverse()
      .concat(lines)
      .slice(0, 300);
    list.replaceChildren(
      ...lines.map((each) =>
        h(
          "li",
          { class: each.problem ? "bad" : null },
          `${time(each.at_ms)}  ${visible(each.client_id || "(no client ID)")} at ${visible(each.host)}: ${visible(each.text)}${each.count > 1 ? ` (${number(each.count)} times)` : ""}`,
        ),
      ),
    );
  }
  await refresh();
  return refreshEvery(2, refresh);
}
