// Overview: health, trends and settings of the cluster.

import { get, encodePart } from "./api.js";
import { drawnOnChange, otherNodesNote, refreshEvery, splitPartition } from "./common.js";
import { bytes, card, compact, duration, h, link, notify, number, visible } from "./dom.js";
import { Table } from "./table.js";

export default async function overview(view) {
  const health = drawnOnChange(h("section", { class: "health", "aria-label": "Health" }), healthOf),
    cards = drawnOnChange(h("div", { class: "cards" }), cardsOf),
    rest = drawnOnChange(h("div"), restOf),
    trends = trendCharts((await import("./charts.js")).Charts);
  view.append(h("h1", {}, "Overview"), health.element, cards.element, trends.element, rest.element);
  async function refresh() {
    const it = await get("/overview");
    health.set(pick(it, "problems", "is_checked", "other_nodes", "silent_nodes", "missing_permission"));
    cards.set(pick(it, "state", "outage", "problems", "topics", "groups", "disks"));
    rest.set(pick(it, "listeners", "software", "missing_permission"));
    trends.set(it);
  }
  await refresh();
  return refreshEvery(5, refresh);
}

const pick = (it, ...names) => Object.fromEntries(names.map((name) => [name, it[name]]));

// -- health

function healthOf(it) {
  if (it.missing_permission)
    return [h("p", {}, visible(`Problems, disks, clients and most charts are not shown: ${it.missing_permission}.`))];
  const command = h("code", {}, "kbroker cluster health");
  return [
    !it.problems.length && h("p", { class: "fine good" }, "✓ Everything is fine"),
    it.problems.length > 0 && h("ul", { class: "problems" }, it.problems.map(problemLine)),
    !it.is_checked &&
      h("p", { class: "soft" }, "This cluster has too many partitions to query all their leaders here: run ", command, "."),
    otherNodesNote(it, "Requests, bytes, response times, disks and clients"),
  ];
}

function problemLine(row) {
  const isError = row.severity === "error";
  return h(
    "li",
    { class: isError ? "error" : "warning" },
    h("span", { class: isError ? "badge bad" : "badge" }, isError ? "Error" : "Warning"),
    h(
      "div",
      {},
      row.count
        ? h("strong", {}, `${number(row.count)} partitions `)
        : h("strong", {}, `${row.what[0].toUpperCase()}${row.what.slice(1)} `, link(pageOf(row), row.where)),
      row.count ? visible(row.problem) : `: ${visible(row.problem)}`,
      row.count && placesOf(row),
      row.action && h("div", { class: "soft" }, `Suggested fix: ${visible(row.action)}`),
    ),
  );
}

// The partitions of a problem that stands for several.
const placesOf = (row) =>
  h(
    "details",
    {},
    h("summary", {}, "Partitions"),
    row.places.map((where, at) => [at ? ", " : "", link(pageOf({ ...row, where }), where)]),
    row.count > row.places.length && ` and ${number(row.count - row.places.length)} more`,
  );

// The page on which a problem can be examined or fixed.
function pageOf({ what, where, transactional_id: transaction }) {
  if (transaction) return `/explain/transaction/${encodePart(transaction)}`;
  const [topic] = splitPartition(where).map(encodePart);
  const pages = {
    partition: `/topics/${topic}/partitions`,
    transaction: `/storage?search=${topic}`,
    group: `/groups/${encodePart(where)}`,
    directory: "/storage",
    broker: `/brokers/${encodePart(where)}`,
  };
  return pages[what] ?? "/cluster";
}

function cardsOf(it) {
  const [state, isGood] = stateOf(it);
  return [
    card("State", h("span", { class: isGood ? "good" : "bad" }, state)),
    card("Topics", link("/topics", number(it.topics))),
    card("Groups", link("/groups", number(it.groups))),
    (it.disks ?? []).map((each) =>
      card(
        `Disk of node ${each.node}`,
        each.read_only_reason ? h("span", { class: "bad" }, "read-only") : [bytes(each.free), " free"],
        h("div", { class: "soft" }, visible(`${each.directory} of ${bytes(each.total)}`)),
        each.read_only_reason && h("div", { class: "bad detail" }, visible(each.read_only_reason)),
      ),
    ),
  ];
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

// -- trends

function trendCharts(Charts) {
  const charts = new Charts(),
    element = h("section", { "aria-label": "Trends" }, h("h2", {}, "Last ten minutes"), charts.element);
  const records = charts.add("Records in / s", compact),
    traffic = charts.add("Bytes / s", bytes),
    requests = charts.add("Requests / s", compact),
    produce = charts.add("Produce response time", duration),
    others = charts.add("Response time of other requests", duration),
    lag = charts.add("Lag (records)", compact);
  others.element.title = "Without requests that wait for records or for group members";
  function set(it) {
    const reason = it.missing_permission && "Not shown: needs DESCRIBE on the cluster.",
      lags = it.group_lags.map((each) => [each.group, each.trend]);
    records.set([["in", it.records_per_second]], reason);
    traffic.set(
      [
        ["in", it.bytes_in_per_second],
        ["out", it.bytes_out_per_second],
      ],
      reason,
    );
    requests.set([["all", it.requests_per_second]], reason);
    produce.set(percentiles(it.produce_us), reason);
    others.set(percentiles(it.request_us), reason);
    if (it.lag) lag.set([["all groups", it.lag], ...lags]);
    else lag.set(lags, lags.length ? "" : "No lag in the groups that you may describe.");
    charts.set(it.sampled_at_ms, it.sample_seconds * 1000);
  }
  return { element, set };
}

const percentiles = (it) => Object.entries(it ?? {});

// -- settings

function restOf(it) {
  return [
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
    it.missing_permission
      ? h("p", { class: "soft" }, "Not shown: needs DESCRIBE on the cluster.")
      : new Table(
          [
            ["Software", (row) => visible(row[0]), "", (row) => row[0]],
            ["Connections", (row) => number(row[1]), "num", (row) => row[1]],
          ],
          { label: "Clients" },
        ).set(Object.entries(it.software)).element,
    h("h2", {}, "Connect a client"),
    ...snippets(it.listeners[0]),
  ];
}

function snippets(listener) {
  const python = securityOf(listener, { user: "sasl.username", password: "sasl.password", trusted: "ssl.ca.location" }),
    java = securityOf(listener, { trusted: "ssl.truststore.location" }),
    address = ["bootstrap.servers", listener.address];
  const texts = [
    ["Python", pythonSnippet([address, ...python, ["group.id", "g"]])],
    ["Java", [address, ...java].map(([name, value]) => `${name}=${value}`).join("\n")],
    ["Spark", sparkSnippet([address, ...java])],
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

function pythonSnippet(settings) {
  const lines = settings.map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
  return `from confluent_kafka import Consumer\nconsumer = Consumer({\n${lines.join("\n")}\n})`;
}

function sparkSnippet(settings) {
  const option = ([name, value]) => `    .option(${JSON.stringify(`kafka.${name}`)}, ${JSON.stringify(value)})`;
  const lines = settings.map(option);
  return `(spark.readStream.format("kafka")\n${lines.join("\n")}\n    .option("subscribe", "TOPIC"))`;
}

// The settings for the security of a listener, with placeholders. `names` has the client's setting of the user
// and of the password (Java's clients have one setting for both), and of the file of trusted certificates.
function securityOf(listener, names) {
  const preferred = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"],
    mechanism = preferred.find((each) => listener.mechanisms.includes(each)),
    protocol = `${mechanism ? "SASL_" : ""}${listener.tls ? "SSL" : "PLAINTEXT"}`;
  if (protocol === "PLAINTEXT") return [];
  const settings = [["security.protocol", protocol]];
  if (listener.tls && !names.user) settings.push(["ssl.truststore.type", "PEM"]);
  if (listener.tls) settings.push([names.trusted, "CA.pem"]);
  if (mechanism) settings.push(["sasl.mechanism", mechanism]);
  if (!mechanism || mechanism === "OAUTHBEARER") return settings;
  if (names.user) return [...settings, [names.user, "USER"], [names.password, "PASSWORD"]];
  const type = mechanism === "PLAIN" ? "plain.Plain" : "scram.Scram",
    module = `org.apache.kafka.common.security.${type}LoginModule`;
  return [...settings, ["sasl.jaas.config", `${module} required username="USER" password="PASSWORD";`]];
}
