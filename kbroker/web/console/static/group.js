// Group page: members, lag, details of its type, settings, and dialogs that change the group.

import { Unreachable, get, encodePart } from "./api.js";
import { drawnOnChange, refreshEvery } from "./common.js";
import { card, clientLink, h, lagOf, link, number, shortened, sparkline, topicLink, visible } from "./dom.js";
import { actionButton } from "./forms.js";
import { deleteGroupForm, deleteOffsetsForm, removeMemberForm, resetOffsetsForm } from "./group_forms.js";
import { settings } from "./settings.js";
import { Table } from "./table.js";
import { topology } from "./topology.js";

const TABS = [
  ["", "Overview"],
  ["settings", "Settings"],
];

export default async function group(view, parts) {
  const [, name, tab = ""] = parts;
  const title = h("div", { class: "title" }, h("h1", {}, visible(name))),
    address = `#/groups/${encodePart(name)}`;
  view.append(
    title,
    h(
      "div",
      { class: "tabs", role: "navigation", "aria-label": "Sections of this group" },
      TABS.map(([each, text]) =>
        h("a", { href: each ? `${address}/${each}` : address, "aria-current": each === tab ? "page" : null }, text),
      ),
    ),
  );
  if (tab === "settings") return groupSettings(view, name);
  if (tab) throw new Error("Page not found");
  return members(view, title, name);
}

// The settings that apply to the type of the group; all if it does not exist.
async function groupSettings(view, name) {
  const it = await get(`/groups/${encodePart(name)}/details`).catch(() => ({ type: "" }));
  const prefixes = { Share: ["share.", "errors."], Streams: ["streams."], Consumer: ["consumer."], Classic: ["consumer."] };
  const wanted = prefixes[it.type] ?? [""];
  await settings(view, `/groups/${encodePart(name)}/config`, (row) =>
    wanted.some((each) => row.name.startsWith(each)),
  );
}

async function members(view, title, name) {
  const cards = h("div", { class: "cards" }),
    actions = drawnOnChange(h("div", { class: "row actions" }), (it) => actionsOf(name, it, () => refresh())),
    details = detailsByType(name),
    classic = classicMembers(name, () => refresh());
  const table = new Table(
    [
      ["Topic", (row) => topicLink(row.topic), "", (row) => row.topic],
      ["Partition", (row) => number(row.partition), "num", (row) => row.partition],
      ["Lag", (row) => number(row.lag), "num", (row) => row.lag],
      ["Current offset", (row) => number(row.current_offset), "num", (row) => row.current_offset],
      ["End offset", (row) => number(row.log_end_offset), "num", (row) => row.log_end_offset],
      ["Last 10 min", (row) => sparkline(row.trend, "lag")],
      ["Member ID", (row) => shortened(row.member_id ?? "–"), "", (row) => row.member_id],
      ["Client ID", (row) => clientLink(row.client_id), "", (row) => row.client_id],
      ["Host", (row) => visible(row.host ?? "–")],
    ],
    { label: "Partitions", empty: "The group has no committed offsets and no assigned partitions." },
  );
  title.append(actions.element);
  view.append(
    h("p", {}, link(`/explain/group/${encodePart(name)}`, "Explain")),
    cards,
    details.element,
    h("h2", {}, "Partitions"),
    table.element,
    classic.element,
  );
  async function refresh() {
    const it = await get(`/groups/${encodePart(name)}/details`);
    cards.replaceChildren(
      card("State", it.state),
      card("Type", it.type),
      card("Members", number(it.members)),
      card("Lag", lagOf({ ...it, lag: it.total_lag }), " ", sparkline(it.trend, "lag")),
      card("Assignor", visible(it.assignor || "–")),
    );
    table.set(it.partitions);
    actions.set({ may: it.may, members: it.members, topics: it.topics.map((each) => each.topic).filter(Boolean) });
    classic.set(it);
    await details.refresh(it.type);
  }
  await refresh();
  return refreshEvery(5, refresh);
}

// The buttons that change a group, as far as the viewer may use them.
function actionsOf(name, it, refresh) {
  const may = (operation) => it.may.includes(operation);
  const leave = () => {
    location.hash = "#/groups";
  };
  return [
    may("READ") && actionButton("Reset offsets", resetOffsetsForm(name, it.topics, it.members), { done: refresh }),
    may("DELETE") &&
      it.topics.length > 0 &&
      actionButton("Delete offsets", deleteOffsetsForm(name, it.topics), { done: refresh }),
    may("DELETE") && actionButton("Delete group", deleteGroupForm(name), { done: leave }),
  ];
}

// The members of a classic group, which can be removed one by one.
function classicMembers(name, refresh) {
  const { element, set: draw } = drawnOnChange(h("div"), (members) => {
    if (!members.length) return [];
    return [
      h("h2", {}, "Members"),
      new Table(
        [
          ["Member ID", (row) => shortened(row.member_id)],
          ["Client ID", (row) => clientLink(row.client_id)],
          ["Host", (row) => visible(row.host ?? "–")],
          ["Action", (row) => actionButton("Remove", removeMemberForm(name, row.member_id), { done: refresh })],
        ],
        { label: "Members" },
      ).set(members).element,
    ];
  });
  function set(it) {
    const isOffered = it.type === "Classic" && it.may.includes("READ");
    const members = new Map();
    for (const row of isOffered ? it.partitions : []) if (row.member_id) members.set(row.member_id, row);
    draw([...members.values()].map(({ member_id, client_id, host }) => ({ member_id, client_id, host })));
  }
  return { element, set };
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
