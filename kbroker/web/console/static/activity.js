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
      ["Requests", (row) => number(row.requests), "num", (row) => row.requests],
      ["Errors", (row) => errorsOf(row.apis), "", (row) => row.errors],
      ["Requests / s", (row) => number(row.rate), "num", (row) => row.rate],
      ["Disconnects", (row) => counts(row.disconnects)],
      ["Last request", (row) => time(row.last_at_ms), "", (row) => row.last_at_ms],
      ["Software", (row) => visible(row.software || "–"), "", (row) => row.software],
      ["User", (row) => userLink(row.principal), "", (row) => row.principal],
      ["Host", (row) => visible(row.host), "", (row) => row.host],
      ["Nodes", (row) => row.nodes.map((each, at) => [at ? ", " : "", nodeLink(each)])],
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
    const clients = mergedClients(it.clients);
    for (const row of clients) {
      const requests = before.get(row.client_id);
      row.rate = requests === undefined ? null : Math.round((row.requests - requests) / ((now - at) / 1000));
      before.set(row.client_id, row.requests);
    }
    at = now;
    table.set(clients);
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

// One row for each client, with the sums over all nodes; most requests first.
export function mergedClients(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.client_id, [...(found.get(row.client_id) ?? []), row]);
  return [...found.values()].map(mergedClient).sort((a, b) => b.requests - a.requests);
}

function mergedClient(rows) {
  const [newest] = [...rows].sort((a, b) => b.last_at_ms - a.last_at_ms),
    sum = (name) => rows.reduce((total, row) => total + row[name], 0),
    apis = new Map();
  for (const each of rows.flatMap((row) => row.apis)) {
    const known = apis.get(each.api) ?? { api: each.api, requests: 0, errors: {}, problems: [] };
    apis.set(each.api, {
      api: each.api,
      requests: known.requests + each.requests,
      errors: added(known.errors, each.errors),
      problems: [...new Set([...known.problems, ...each.problems])],
    });
  }
  return {
    ...newest,
    nodes: rows.map((row) => row.node).sort((a, b) => a - b),
    requests: sum("requests"),
    errors: sum("errors"),
    disconnects: rows.reduce((total, row) => added(total, row.disconnects), {}),
    apis: [...apis.values()].sort((a, b) => b.requests - a.requests),
  };
}

// The sums of two objects of counts.
function added(some, others) {
  const sums = { ...some };
  for (const [name, count] of Object.entries(others)) sums[name] = (sums[name] ?? 0) + count;
  return sums;
}

// The names of errors with their counts. Errors that are part of the protocol are not marked.
function errorsOf(apis) {
  const sums = apis.reduce((total, each) => added(total, each.errors), {}),
    problems = new Set(apis.flatMap((each) => each.problems));
  if (!Object.keys(sums).length) return "–";
  return Object.entries(sums).map(([code, count], at) => [
    at ? ", " : "",
    h("span", { class: problems.has(code) ? "bad" : null }, `${code} ${number(count)}`),
  ]);
}

// A table of the requests of a client by API.
export const apiTable = (apis) =>
  new Table(
    [
      ["API", (each) => each.api, "", (each) => each.api],
      ["Requests", (each) => number(each.requests), "num", (each) => each.requests],
      ["Errors", (each) => errorsOf([each])],
    ],
    { label: "APIs", tall: false },
  ).set(apis).element;

function details(row) {
  return [
    h("h2", {}, visible(clientName(row.client_id))),
    h("p", {}, link(`/explain/client/${encodePart(row.client_id)}`, "Explain")),
    apiTable(row.apis),
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
