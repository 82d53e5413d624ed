// Overview: state, problems and rates of the cluster.

import { get } from "./api.js";
import { refreshEvery, otherNodesNote } from "./common.js";
import { bytes, card, h, link, notify, number, sparkline, visible } from "./dom.js";
import { Table } from "./table.js";

export default async function overview(view) {
  const cards = h("div", { class: "cards" }),
    rest = h("div");
  view.append(h("h1", {}, "Overview"), cards, rest);
  async function refresh() {
    const it = await get("/overview");
    const now = (values) => values?.[values.length - 1];
    const [state, isGood] = stateOf(it);
    cards.replaceChildren(
      card("State", h("span", { class: isGood ? "good" : "bad" }, state)),
      card("Topics", link("/topics", number(it.topics))),
      card("Groups", link("/groups", number(it.groups))),
      card(
        "Records in / s",
        number(now(it.records_per_second)),
        " ",
        sparkline(it.records_per_second, "records a second"),
      ),
      card(
        "Requests / s",
        number(now(it.requests_per_second)),
        " ",
        sparkline(it.requests_per_second, "requests a second"),
      ),
      ...(it.disks ?? []).map((each) =>
        card(
          "Disk",
          bytes(each.free),
          " free",
          h("div", { class: "soft" }, `${each.directory} of ${bytes(each.total)}`),
        ),
      ),
    );
    const where = it.listeners[0].address;
    rest.replaceChildren(
      otherNodesNote(it, "Requests, disks and clients") || "",
      h("h2", {}, "Problems"),
      it.problems === null
        ? h(
            "p",
            {},
            it.software === null
              ? "Problems are shown to users with DESCRIBE on the cluster: "
              : "This cluster has too many partitions to check them here: run ",
            h("code", {}, "kbroker cluster health"),
            ".",
          )
        : it.problems.length
          ? new Table(
              [
                ["Type", (row) => row.what],
                ["Resource", (row) => visible(row.where)],
                ["Problem", (row) => visible(row.problem), "wide"],
                ["Suggested fix", (row) => visible(row.action), "wide"],
              ],
              { label: "Problems" },
            ).set(it.problems).element
          : h("p", { class: "good" }, "None."),
      h("h2", {}, "Listeners"),
      new Table(
        [
          ["Listener", (row) => row.name],
          ["Address", (row) => h("code", {}, row.address)],
          ["TLS", (row) => (row.tls ? "yes" : "no")],
          ["Authentication", (row) => row.mechanisms.join(", ") || "none"],
        ],
        { label: "Listeners" },
      ).set(it.listeners).element,
      h("h2", {}, "Clients"),
      new Table(
        [
          ["Software", (row) => visible(row[0])],
          ["Connections", (row) => number(row[1]), "num"],
        ],
        { label: "Clients" },
      ).set(Object.entries(it.software ?? {})).element,
      h("h2", {}, "Connect a client"),
      ...snippets(where),
    );
  }
  await refresh();
  return refreshEvery(5, refresh);
}

// The most severe state: outages first, then other problems.
function stateOf(it) {
  const count = (value, one) => `${number(value)} ${one}${value > 1 ? "s" : ""}`,
    outage = it.outage,
    errors = it.problems?.filter((row) => row.severity === "error").length;
  const found = [
    outage?.brokers_down && `${count(outage.brokers_down, "broker")} down`,
    outage?.offline && `${count(outage.offline, "partition")} offline`,
    outage?.under_replicated && `${count(outage.under_replicated, "partition")} under-replicated`,
  ].filter(Boolean);
  if (found.length) return [found.join(", "), false];
  return errors ? [count(errors, "problem"), false] : [it.state, true];
}

function snippets(where) {
  const texts = [
    [
      "Python",
      `from confluent_kafka import Consumer\nconsumer = Consumer({"bootstrap.servers": "${where}", "group.id": "g"})`,
    ],
    ["Java", `bootstrap.servers=${where}`],
    ["Spark", `spark.readStream.format("kafka").option("kafka.bootstrap.servers", "${where}")`],
  ];
  return texts.map(([name, text]) =>
    h(
      "div",
      {},
      h(
        "div",
        { class: "row" },
        h("strong", {}, name),
        h(
          "button",
          {
            type: "button",
            "aria-label": `Copy for ${name}`,
            onclick: async () => {
              await navigator.clipboard.writeText(text);
              notify("Copied");
            },
          },
          "Copy",
        ),
      ),
      h("pre", { tabindex: 0 }, text),
    ),
  );
}
