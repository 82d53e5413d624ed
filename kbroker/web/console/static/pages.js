// All pages except the topic page.

import { Unreachable, get, encodePart, post, session } from "./api.js";
import { Table, bytes, card, field, h, link, notify, number, sparkline, time, visible } from "./dom.js";
import { topology } from "./topology.js";

const CONSOLE_CLIENT_ID = "kbroker-console";

// Refreshes the page every few seconds while its tab is visible.
export function refreshEvery(seconds, work) {
  const timer = setInterval(() => {
    if (document.hidden) return;
    work().catch((error) => {
      if (!(error instanceof Unreachable)) notify(error.message, true);
    });
  }, seconds * 1000);
  return () => clearInterval(timer);
}

function searchForm(query, path, placeholder) {
  const input = h("input", { type: "search", name: "search", value: query.get("search") ?? "", placeholder });
  return h(
    "form",
    {
      class: "bar",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = `#${path}?search=${encodePart(input.value)}`;
      },
    },
    field("Name contains", input),
    h("button", { class: "main" }, "Search"),
  );
}

// A note for data that only the nodes of other processes have.
const otherNodesNote = (it, what) =>
  it.other_nodes.length > 0 &&
  h(
    "p",
    { class: "soft" },
    `${what} of node${it.other_nodes.length > 1 ? "s" : ""} ${it.other_nodes.join(", ")}: see the console of ${it.other_nodes.length > 1 ? "those nodes" : "that node"}.`,
  );

export async function overview(view) {
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

export async function topics(view, _, query) {
  const search = query.get("search") ?? "",
    internal = query.get("internal") ?? "";
  const moreButton = h("button", { type: "button" }, "Load more");
  const table = new Table(
    [
      ["Topic", (row) => link(`/topics/${encodePart(row.name)}`, row.name)],
      ["Partitions", (row) => number(row.partitions), "num"],
      ["Replicas", (row) => number(row.replicas), "num"],
      ["Records", (row) => number(row.records), "num"],
      ["Size", (row) => bytes(row.bytes), "num"],
      ["Records in / s", (row) => number(row.records_per_second), "num"],
      ["Lag", (row) => number(row.lag), "num"],
      [
        "Groups",
        (row) =>
          row.groups
            .slice(0, 5)
            .map((each) => [link(`/groups/${encodePart(each.group)}`, each.group), ` ${number(each.lag)}  `]),
      ],
    ],
    { label: "Topics" },
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
    table.set(rows);
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
    searchForm(query, "/topics", "orders"),
    h("label", { class: "check" }, box, "Show internal topics"),
    table.element,
    summary,
    moreButton,
  );
  await refresh("");
  return refreshEvery(5, async () => {
    if (rows.length <= 100) await refresh("");
  });
}

export async function groups(view, _, query) {
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

export async function group(view, parts) {
  const name = parts[1],
    cards = h("div", { class: "cards" }),
    details = detailsByType(name);
  const table = new Table(
    [
      ["Topic", (row) => (row.topic ? link(`/topics/${encodePart(row.topic)}`, row.topic) : "–")],
      ["Partition", (row) => number(row.partition), "num"],
      ["Current offset", (row) => number(row.current_offset), "num"],
      ["End offset", (row) => number(row.log_end_offset), "num"],
      ["Lag", (row) => number(row.lag), "num"],
      ["Last 10 min", (row) => sparkline(row.trend, "lag")],
      ["Member ID", (row) => visible(row.member_id ?? "–")],
      ["Client ID", (row) => visible(row.client_id ?? "–")],
      ["Host", (row) => visible(row.host ?? "–")],
    ],
    { label: "Partitions" },
  );
  view.append(
    h("h1", {}, visible(name)),
    h("p", {}, link(`/explain/group/${encodePart(name)}`, "Explain")),
    cards,
    details.element,
    h("h2", {}, "Partitions"),
    table.element,
  );
  async function refresh() {
    const it = await get(`/groups/${encodePart(name)}/details`);
    cards.replaceChildren(
      card("State", it.state),
      card("Type", it.type),
      card("Members", number(it.members)),
      card("Lag", number(it.total_lag), " ", sparkline(it.trend, "lag")),
      card("Assignor", visible(it.assignor || "–")),
    );
    table.set(it.partitions);
    await details.refresh(it.type);
  }
  await refresh();
  if (session.may_write) view.append(resetForm(name, refresh));
  return refreshEvery(5, refresh);
}

const DETAILS = {
  Share: ["dead-letter-queue", "Dead-letter queue", deadLetterQueue],
  Streams: ["topology", "Topology", topology],
};

// The details that only groups of one type have. A topology that is available is not read again.
function detailsByType(name) {
  const element = h("div");
  let shown = "",
    isComplete = false;
  async function refresh(type) {
    if (!(type in DETAILS) || isComplete) return;
    const [path, title, draw] = DETAILS[type];
    const it = await get(`/groups/${encodePart(name)}/${path}`).catch((error) => {
      if (error instanceof Unreachable) throw error;
      return { error: error.message };
    });
    isComplete = it.status === "AVAILABLE";
    const text = JSON.stringify(it);
    if (text === shown) return; // unchanged elements keep the focus
    shown = text;
    element.replaceChildren(
      h("h2", {}, title),
      it.error ? h("p", { class: "bad" }, visible(it.error)) : h("div", {}, draw(it, name)),
    );
  }
  return { element, refresh };
}

function deadLetterQueue({ dead_letter_queue: queue }, group) {
  if (!queue) return h("p", { class: "soft" }, "None: errors.deadletterqueue.topic.name is not set for the group.");
  const query = new URLSearchParams({ from: "newest", header: `__dlq.errors.group=${group}` });
  return [
    queue.topic &&
      h(
        "div",
        { class: "cards" },
        card("Topic", link(`/topics/${encodePart(queue.topic)}/messages?${query}`, queue.topic)),
        card("Records of all groups", number(queue.records)),
        card("Copies key and value", queue.copies_records ? "yes" : "no"),
      ),
    queue.problem && h("p", { class: "bad" }, visible(`Problem: ${queue.problem}`)),
  ];
}

function resetForm(name, refresh) {
  const to = h(
    "select",
    { name: "to" },
    ["start", "end", "offset", "time"].map((each) => h("option", {}, each)),
  );
  const value = h("input", { name: "value", type: "number", value: 0 }),
    topicName = h("input", { name: "topic", placeholder: "all" }),
    plan = h("div");
  const table = new Table(
    [
      ["Topic", (row) => visible(row.topic)],
      ["Partition", (row) => number(row.partition), "num"],
      ["From", (row) => number(row.prior_offset), "num"],
      ["To", (row) => number(row.new_offset), "num"],
      ["Error", (row) => row.error ?? ""],
    ],
    { label: "Plan" },
  );
  async function reset(isDry) {
    const asked = { to: to.value, value: Number(value.value), dry_run: isDry };
    if (topicName.value) asked.topic = topicName.value;
    table.set((await post(`/groups/${encodePart(name)}/seek`, asked)).partitions);
    plan.replaceChildren(
      h("p", {}, isDry ? "Preview, no offset was changed:" : "Offsets reset:"),
      table.element,
      h(
        "div",
        {},
        isDry &&
          h(
            "div",
            { class: "row" },
            h(
              "button",
              { class: "main", type: "button", onclick: () => reset(false).then(refresh).catch(bad) },
              "Reset offsets",
            ),
          ),
      ),
    );
  }
  const bad = (error) => notify(error.message, true);
  const form = h(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        reset(true).catch(bad);
      },
    },
    field("Reset to", to),
    field("Offset, timestamp (ms) or shift", value),
    field("Topic", topicName),
    h("button", {}, "Preview"),
  );
  const deleteButton = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        if (!confirm(`Delete group ${name} and its committed offsets?`)) return;
        await post(`/groups/${encodePart(name)}/delete`)
          .then(() => {
            location.hash = "#/groups";
          })
          .catch(bad);
      },
    },
    "Delete group",
  );
  return h(
    "section",
    {},
    h("h2", {}, "Reset offsets"),
    h("p", { class: "soft" }, "Stop all members of the group first."),
    form,
    plan,
    deleteButton,
  );
}

export async function explain(view, parts) {
  const [, kind, ...names] = parts;
  const it = await get(`/explain/${kind}/${names.map(encodePart).join("/")}`);
  view.append(
    h("h1", {}, `Explanation: ${kind} ${visible(names.join("-"))}`),
    h("p", {}, visible(it.now)),
    h(
      "ul",
      { class: "lines card" },
      !it.past.length && h("li", {}, "No history recorded."),
      it.past.map((each) =>
        h("li", {}, h("span", { class: "soft" }, `${time(each.at_ms)}  `), visible(each.text)),
      ),
    ),
  );
}

export async function activity(view) {
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
    others.replaceChildren(otherNodesNote(it, "Client activity") || "");
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

export async function storage(view, _, query) {
  const [open, stored] = await Promise.all([
    get("/transactions"),
    get("/storage", { search: query.get("search") }),
  ]);
  view.append(
    h("h1", {}, "Transactions & storage"),
    h("h2", {}, "Transactions"),
    new Table(
      [
        [
          "Transactional ID",
          (row) => link(`/explain/transaction/${encodePart(row.transactional_id)}`, row.transactional_id),
        ],
        ["State", (row) => row.state],
        ["Producer ID", (row) => String(row.producer_id), "num"],
        ["Started", (row) => time(row.start_timestamp)],
        ["Partitions", (row) => visible((row.partitions ?? []).join(", ") || "–")],
      ],
      { label: "Transactions" },
    ).set(open.transactions).element,
    h("h2", {}, "Partitions led by this process"),
    otherNodesNote(stored, "Storage") || "",
    searchForm(query, "/storage", "orders"),
    h(
      "p",
      { class: stored.unstable_partitions ? "bad" : "soft" },
      `${number(stored.unstable_partitions)} partitions with a last stable offset below the high watermark${stored.omitted_partitions ? `; ${number(stored.omitted_partitions)} partitions not shown` : ""}`,
    ),
    new Table(
      [
        [
          "Partition",
          (row) =>
            link(`/explain/partition/${encodePart(row.topic)}/${row.partition}`, `${row.topic}-${row.partition}`),
        ],
        ["Start offset", (row) => number(row.log_start_offset), "num"],
        ["Last stable offset", (row) => number(row.last_stable_offset), "num"],
        ["High watermark", (row) => number(row.high_watermark), "num"],
        ["End offset", (row) => number(row.log_end_offset), "num"],
        [
          "Unstable offsets",
          (row) =>
            h(
              "span",
              { class: row.high_watermark > row.last_stable_offset ? "bad" : null },
              number(row.high_watermark - row.last_stable_offset),
            ),
          "num",
        ],
        ["Size", (row) => bytes(row.bytes), "num"],
        ["Segments", (row) => number(row.segments), "num"],
        ["Producer IDs", (row) => number(row.producers), "num"],
        ["Node", (row) => row.node, "num"],
      ],
      { label: "Storage" },
    ).set(stored.partitions).element,
  );
}

export async function cluster(view) {
  const it = await get("/cluster");
  const place = [
    [
      "Partition",
      (row) =>
        link(`/explain/partition/${encodePart(row.topic)}/${row.partition}`, `${row.topic}-${row.partition}`),
    ],
    ["Leader", (row) => (row.leader < 0 ? h("span", { class: "bad" }, "none") : row.leader), "num"],
    ["Replicas", (row) => row.replicas.join(", ")],
    ["ISR", (row) => row.isr.join(", ")],
  ];
  view.append(
    h("h1", {}, "Cluster"),
    h(
      "div",
      { class: "cards" },
      card("Nodes", number(it.brokers.length)),
      card("Topics", number(it.topics)),
      card("Partitions", number(it.partitions)),
      card("Offline partitions", h("span", { class: it.offline ? "bad" : "good" }, number(it.offline))),
      card(
        "Under-replicated partitions",
        h("span", { class: it.under_replicated_count ? "bad" : "good" }, number(it.under_replicated_count)),
      ),
    ),
    h("p", { class: "soft" }, `cluster ${it.cluster_id}`),
    h("h2", {}, "Nodes"),
    new Table(
      [
        ["Node", (row) => row.broker, "num"],
        ["Address", (row) => h("code", {}, visible(`${row.host}:${row.port}`))],
        ["Rack", (row) => visible(row.rack ?? "–")],
        ["Controller", (row) => (row.controller ? "yes" : "")],
        ["Leaders", (row) => number(row.leads), "num"],
        ["Replicas", (row) => number(row.replicas), "num"],
      ],
      { label: "Nodes" },
    ).set(it.brokers).element,
    h("h2", {}, "Offline and under-replicated partitions"),
    new Table(place, { label: "Offline and under-replicated partitions" }).set(it.under_replicated).element,
    h("h2", {}, "Reassignments"),
    new Table(
      [...place, ["Adding", (row) => row.adding.join(", ")], ["Removing", (row) => row.removing.join(", ")]],
      { label: "Reassignments" },
    ).set(it.reassignments).element,
  );
}
