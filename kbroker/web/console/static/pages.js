// All pages but that of a topic.

import { Unreachable, get, part, post, session } from "./api.js";
import { Table, bytes, card, field, h, link, note, number, spark, time, visible } from "./dom.js";

const OWN = "kbroker-console";

// Ask again every few seconds while the page is shown and can be seen.
export function again(seconds, work) {
  const timer = setInterval(() => {
    if (document.hidden) return;
    work().catch((error) => {
      if (!(error instanceof Unreachable)) note(error.message, true);
    });
  }, seconds * 1000);
  return () => clearInterval(timer);
}

function searching(query, path, placeholder) {
  const input = h("input", { type: "search", name: "search", value: query.get("search") ?? "", placeholder });
  return h(
    "form",
    {
      class: "bar",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = `#${path}?search=${part(input.value)}`;
      },
    },
    field("Name contains", input),
    h("button", { class: "main" }, "Search"),
  );
}

// Whom to ask for what this process does not know.
const elsewhere = (it, what, is = "is") =>
  it.elsewhere.length > 0 &&
  h(
    "p",
    { class: "soft" },
    `${what} node${it.elsewhere.length > 1 ? "s" : ""} ${it.elsewhere.join(", ")} ${is} told by the console there.`,
  );

export async function overview(view) {
  const cards = h("div", { class: "cards" }),
    rest = h("div");
  view.append(h("h1", {}, "Overview"), cards, rest);
  async function look() {
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
        spark(it.records_per_second, "records a second"),
      ),
      card(
        "Requests / s",
        number(now(it.requests_per_second)),
        " ",
        spark(it.requests_per_second, "requests a second"),
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
      elsewhere(it, "Requests, disks and clients of", "are") || "",
      h("h2", {}, "Problems"),
      it.problems === null
        ? h(
            "p",
            {},
            it.software === null
              ? "Problems are shown to users with DESCRIBE on the cluster: "
              : "This cluster has too many partitions to check each one here: run ",
            h("code", {}, "kbroker cluster health"),
            ".",
          )
        : it.problems.length
          ? new Table(
              [
                ["What", (row) => row.what],
                ["Where", (row) => visible(row.where)],
                ["Problem", (row) => visible(row.problem), "wide"],
                ["What helps", (row) => visible(row.action), "wide"],
              ],
              { label: "Problems" },
            ).set(it.problems).element
          : h("p", { class: "good" }, "None."),
      h("h2", {}, "Addresses"),
      new Table(
        [
          ["Listener", (row) => row.name],
          ["Address", (row) => h("code", {}, row.address)],
          ["TLS", (row) => (row.tls ? "yes" : "no")],
          ["Logins", (row) => row.login.join(", ") || "none"],
        ],
        { label: "Addresses" },
      ).set(it.listeners).element,
      h("h2", {}, "Clients"),
      new Table(
        [
          ["Software", (row) => visible(row[0])],
          ["Connections", (row) => number(row[1]), "num"],
        ],
        { label: "Clients" },
      ).set(Object.entries(it.software ?? {})).element,
      h("h2", {}, "To connect"),
      ...snippets(where),
    );
  }
  await look();
  return again(5, look);
}

// The worst that is known: what a user loses now, then what is about to fail.
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
              note("copied");
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
  const more = h("button", { type: "button" }, "More");
  const table = new Table(
    [
      ["Topic", (row) => link(`/topics/${part(row.name)}`, row.name)],
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
            .map((each) => [link(`/groups/${part(each.group)}`, each.group), ` ${number(each.lag)}  `]),
      ],
    ],
    { label: "Topics" },
  );
  const said = h("p", { class: "soft" });
  let rows = [],
    next = "";
  async function look(after) {
    const found = await get("/topics", { search, internal, after, limit: 100 });
    rows = after ? rows.concat(found.topics) : found.topics;
    next = found.next;
    more.hidden = !next;
    said.textContent = `${number(rows.length)} of ${number(found.matching)} topics`;
    table.set(rows);
  }
  more.addEventListener("click", () => look(next));
  const box = h("input", {
    type: "checkbox",
    checked: internal === "1",
    onchange: (event) => {
      location.hash = `#/topics?search=${part(search)}&internal=${event.target.checked ? 1 : ""}`;
    },
  });
  view.append(
    h("h1", {}, "Topics"),
    searching(query, "/topics", "orders"),
    h("label", { class: "check" }, box, "Internal topics too"),
    table.element,
    said,
    more,
  );
  await look("");
  return again(5, async () => {
    if (rows.length <= 100) await look("");
  });
}

export async function groups(view, _, query) {
  const table = new Table(
    [
      ["Group", (row) => link(`/groups/${part(row.group)}`, row.group)],
      ["State", (row) => row.state],
      ["Type", (row) => row.type],
      ["Members", (row) => number(row.members), "num"],
      ["Lag", (row) => number(row.lag), "num"],
      ["10 minutes", (row) => spark(row.trend, "lag")],
      ["Coordinator", (row) => number(row.coordinator), "num"],
    ],
    { label: "Groups" },
  );
  view.append(h("h1", {}, "Groups"), searching(query, "/groups", "shop"), table.element);
  const look = async () => table.set((await get("/groups", { search: query.get("search") })).groups);
  await look();
  return again(5, look);
}

export async function group(view, parts) {
  const name = parts[1],
    cards = h("div", { class: "cards" });
  const table = new Table(
    [
      ["Topic", (row) => (row.topic ? link(`/topics/${part(row.topic)}`, row.topic) : "–")],
      ["Partition", (row) => number(row.partition), "num"],
      ["Offset", (row) => number(row.current_offset), "num"],
      ["End", (row) => number(row.log_end_offset), "num"],
      ["Lag", (row) => number(row.lag), "num"],
      ["10 minutes", (row) => spark(row.trend, "lag")],
      ["Member", (row) => visible(row.member_id ?? "–")],
      ["Client", (row) => visible(row.client_id ?? "–")],
      ["Host", (row) => visible(row.host ?? "–")],
    ],
    { label: "Partitions" },
  );
  view.append(
    h("h1", {}, visible(name)),
    h("p", {}, link(`/explain/group/${part(name)}`, "Why is it so?")),
    cards,
    h("h2", {}, "Partitions"),
    table.element,
  );
  async function look() {
    const it = await get(`/groups/${part(name)}/details`);
    cards.replaceChildren(
      card("State", it.state),
      card("Type", it.type),
      card("Members", number(it.members)),
      card("Lag", number(it.total_lag), " ", spark(it.trend, "lag")),
      card("Assignor", visible(it.assignor || "–")),
    );
    table.set(it.partitions);
  }
  await look();
  if (session.may_write) view.append(moving(name, look));
  return again(5, look);
}

function moving(name, look) {
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
  async function seek(isDry) {
    const asked = { to: to.value, value: Number(value.value), dry_run: isDry };
    if (topicName.value) asked.topic = topicName.value;
    table.set((await post(`/groups/${part(name)}/seek`, asked)).partitions);
    plan.replaceChildren(
      h("p", {}, isDry ? "This is what would change:" : "Moved:"),
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
              { class: "main", type: "button", onclick: () => seek(false).then(look).catch(bad) },
              "Move the group",
            ),
          ),
      ),
    );
  }
  const bad = (error) => note(error.message, true);
  const form = h(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        seek(true).catch(bad);
      },
    },
    field("To", to),
    field("Offset, ms, or so many on", value),
    field("Topic", topicName),
    h("button", {}, "Rehearse"),
  );
  const gone = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        if (!confirm(`Delete group ${name} with its offsets?`)) return;
        await post(`/groups/${part(name)}/delete`)
          .then(() => {
            location.hash = "#/groups";
          })
          .catch(bad);
      },
    },
    "Delete the group",
  );
  return h(
    "section",
    {},
    h("h2", {}, "Move it"),
    h("p", { class: "soft" }, "A group that is moved or deleted must have no members."),
    form,
    plan,
    gone,
  );
}

export async function explain(view, parts) {
  const [, kind, ...names] = parts;
  const it = await get(`/explain/${kind}/${names.map(part).join("/")}`);
  view.append(
    h("h1", {}, `Why ${kind} ${visible(names.join("-"))} is so`),
    h("p", {}, visible(it.now)),
    h(
      "ul",
      { class: "lines card" },
      !it.past.length && h("li", {}, "Nothing is known of what led there."),
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
      ["Client", (row) => visible(row.client_id || "(no name)")],
      ["Software", (row) => visible(row.software || "–")],
      ["User", (row) => visible(row.principal)],
      ["Host", (row) => visible(row.host)],
      ["Node", (row) => row.node, "num"],
      ["Requests", (row) => number(row.requests), "num"],
      ["/ s", (row) => number(row.rate), "num"],
      ["Errors", (row) => h("span", { class: row.errors ? "bad" : null }, number(row.errors)), "num"],
      [
        "Disconnects",
        (row) =>
          Object.entries(row.disconnects)
            .map(([kind, count]) => `${kind} ${count}`)
            .join(", ") || "–",
      ],
      ["Last", (row) => time(row.last_at_ms)],
    ],
    {
      label: "Clients",
      pick: (row) => {
        detail.replaceChildren(
          h("h2", {}, visible(row.client_id || "(no name)")),
          h("p", {}, link(`/explain/client/${part(row.client_id)}`, "In sentences")),
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
    h("h2", {}, "What happened at this node"),
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "What happened" }, list),
  );
  async function look() {
    const it = await get("/activity", { after }),
      now = performance.now();
    after = it.number;
    others.replaceChildren(elsewhere(it, "What clients do at") || "");
    for (const row of it.clients) {
      const key = `${row.node} ${row.client_id}`;
      row.rate =
        at && before.has(key) ? Math.round((row.requests - before.get(key)) / ((now - at) / 1000)) : null;
      before.set(key, row.requests);
    }
    at = now;
    table.set(it.clients);
    lines = it.happenings
      .filter((each) => each.client_id !== OWN)
      .reverse()
      .concat(lines)
      .slice(0, 300);
    list.replaceChildren(
      ...lines.map((each) =>
        h(
          "li",
          { class: each.trouble ? "bad" : null },
          `${time(each.at_ms)}  ${visible(each.client_id || "(no name)")} at ${visible(each.host)}: ${visible(each.text)}${each.times > 1 ? ` (${number(each.times)} times)` : ""}`,
        ),
      ),
    );
  }
  await look();
  return again(2, look);
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
          "Transactional id",
          (row) => link(`/explain/transaction/${part(row.transactional_id)}`, row.transactional_id),
        ],
        ["State", (row) => row.state],
        ["Producer", (row) => String(row.producer_id), "num"],
        ["Since", (row) => time(row.start_timestamp)],
        ["Partitions", (row) => visible((row.partitions ?? []).join(", ") || "–")],
      ],
      { label: "Transactions" },
    ).set(open.transactions).element,
    h("h2", {}, "Partitions that this process leads"),
    elsewhere(stored, "What is stored by") || "",
    searching(query, "/storage", "orders"),
    h(
      "p",
      { class: stored.held_back ? "bad" : "soft" },
      `${number(stored.held_back)} hold back readers of committed records${stored.left_out ? `; ${number(stored.left_out)} more are not shown` : ""}`,
    ),
    new Table(
      [
        [
          "Partition",
          (row) =>
            link(`/explain/partition/${part(row.topic)}/${row.partition}`, `${row.topic}-${row.partition}`),
        ],
        ["Start", (row) => number(row.log_start_offset), "num"],
        ["Last stable", (row) => number(row.last_stable_offset), "num"],
        ["High watermark", (row) => number(row.high_watermark), "num"],
        ["End", (row) => number(row.log_end_offset), "num"],
        [
          "Held back",
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
        ["Producers", (row) => number(row.producers), "num"],
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
        link(`/explain/partition/${part(row.topic)}/${row.partition}`, `${row.topic}-${row.partition}`),
    ],
    ["Leader", (row) => (row.leader < 0 ? h("span", { class: "bad" }, "none") : row.leader), "num"],
    ["Replicas", (row) => row.replicas.join(", ")],
    ["In sync", (row) => row.isr.join(", ")],
  ];
  view.append(
    h("h1", {}, "Cluster"),
    h(
      "div",
      { class: "cards" },
      card("Nodes", number(it.brokers.length)),
      card("Topics", number(it.topics)),
      card("Partitions", number(it.partitions)),
      card("Offline", h("span", { class: it.offline ? "bad" : "good" }, number(it.offline))),
      card(
        "Not all in sync",
        h("span", { class: it.behind_count ? "bad" : "good" }, number(it.behind_count)),
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
        ["Leads", (row) => number(row.leads), "num"],
        ["Replicas", (row) => number(row.replicas), "num"],
      ],
      { label: "Nodes" },
    ).set(it.brokers).element,
    h("h2", {}, "Partitions without leader or with copies that are behind"),
    new Table(place, { label: "Behind" }).set(it.behind).element,
    h("h2", {}, "Reassignments"),
    new Table(
      [...place, ["Adding", (row) => row.adding.join(", ")], ["Removing", (row) => row.removing.join(", ")]],
      { label: "Reassignments" },
    ).set(it.reassignments).element,
  );
}
