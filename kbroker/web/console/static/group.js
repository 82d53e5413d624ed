// Group page: members, lag, details of its type, and a form that resets offsets.

import { Unreachable, get, encodePart, post, session } from "./api.js";
import { refreshEvery } from "./common.js";
import { card, field, h, link, notify, number, sparkline, visible } from "./dom.js";
import { Table } from "./table.js";
import { topology } from "./topology.js";

export default async function group(view, parts) {
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
    if (topicName.value) asked.topics = { [topicName.value]: null };
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
        await post(`/groups/${encodePart(name)}/delete`, { dry_run: false })
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
