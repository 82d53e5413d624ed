// Requests, errors and disconnects of each client, and the event log of the node.

import { get, encodePart } from "./api.js";
import { CONSOLE_CLIENT_ID, drawnOnChange, otherNodesNote, refreshEvery } from "./common.js";
import { clientLink, h, link, nodeLink, number, time, userLink, visible } from "./dom.js";
import { Table } from "./table.js";

const EVENTS_MAX = 300;
const clientName = (name) => name || "(no client ID)";

export default async function activity(view) {
  let after = 0,
    lines = [],
    at = 0;
  const before = new Map(),
    detail = h("div"),
    others = drawnOnChange(h("div"), (it) => otherNodesNote(it, "Clients")),
    list = h("ul", { class: "lines" });
  const table = new Table(
    [
      ["Client ID", (row) => (row.client_id ? clientLink(row.client_id) : clientName("")), "", (row) => row.client_id],
      ["Software", (row) => visible(row.software || "–"), "", (row) => row.software],
      ["User", (row) => userLink(row.principal), "", (row) => row.principal],
      ["Host", (row) => visible(row.host), "", (row) => row.host],
      ["Node", (row) => nodeLink(row.node), "num", (row) => row.node],
      ["Requests", (row) => number(row.requests), "num", (row) => row.requests],
      ["Requests / s", (row) => number(row.rate), "num", (row) => row.rate],
      [
        "Errors",
        (row) => h("span", { class: row.problems ? "bad" : null }, number(row.errors)),
        "num",
        (row) => row.errors,
      ],
      ["Disconnects", (row) => counts(row.disconnects)],
      ["Last request", (row) => time(row.last_at_ms), "", (row) => row.last_at_ms],
    ],
    {
      label: "Clients",
      pick: (row) => {
        detail.replaceChildren(...details(row));
        detail.scrollIntoView({ block: "nearest" });
      },
      empty: "No client has sent a request yet. Clients appear here after their first request.",
    },
  );
  view.append(
    h("h1", {}, "Activity"),
    others.element,
    table.element,
    detail,
    h("h2", {}, "Event log of this node"),
    h("div", { class: "scroll tall full", tabindex: 0, role: "region", "aria-label": "Event log" }, list),
  );
  async function refresh() {
    const it = await get("/activity", { after }),
      now = performance.now();
    after = it.number;
    others.set({ other_nodes: it.other_nodes, silent_nodes: it.silent_nodes });
    for (const row of it.clients) {
      const key = `${row.node} ${row.client_id}`;
      row.rate =
        at && before.has(key) ? Math.round((row.requests - before.get(key)) / ((now - at) / 1000)) : null;
      before.set(key, row.requests);
    }
    at = now;
    table.set(it.clients);
    const fresh = it.events.filter((each) => each.client_id !== CONSOLE_CLIENT_ID);
    if (lines.length && !fresh.length) return;
    lines = fresh.reverse().concat(lines).slice(0, EVENTS_MAX);
    const none = h("li", { class: "soft" }, "No events yet: connects, disconnects and errors of clients appear here.");
    list.replaceChildren(...(lines.length ? lines.map(eventLine) : [none]));
  }
  await refresh();
  return refreshEvery(2, refresh);
}

const counts = (found) =>
  Object.entries(found)
    .map(([name, count]) => `${name} ${number(count)}`)
    .join(", ") || "–";

// The requests of a client by API. Errors that are part of the protocol are not marked.
function details(row) {
  const errors = (each) =>
    Object.entries(each.errors).map(([code, count], at) => [
      at ? ", " : "",
      h("span", { class: each.problems.includes(code) ? "bad" : null }, `${code} ${number(count)}`),
    ]);
  const table = new Table(
    [
      ["API", (each) => each.api, "", (each) => each.api],
      ["Requests", (each) => number(each.requests), "num", (each) => each.requests],
      ["Errors", (each) => (Object.keys(each.errors).length ? errors(each) : "–")],
    ],
    { label: "APIs" },
  );
  return [
    h("h2", {}, visible(clientName(row.client_id))),
    h("p", {}, link(`/explain/client/${encodePart(row.client_id)}`, "Explain")),
    table.set(row.apis).element,
  ];
}

function eventLine(each) {
  const times = each.count > 1 ? ` (${number(each.count)} times)` : "";
  return h(
    "li",
    { class: each.problem ? "bad" : null },
    h("span", { class: "soft" }, `${time(each.at_ms)}  `),
    each.client_id ? clientLink(each.client_id) : clientName(""),
    ` at ${visible(each.host)}: ${visible(each.text)}${times}`,
  );
}
