// Dialogs that create, reset and delete groups, delete their offsets, and remove their members.

import { encodePart, get, post } from "./api.js";
import { counted, h, number, visible } from "./dom.js";
import { blockingProblem, facts, fieldError } from "./forms.js";
import { Table } from "./table.js";
import { checkRows, integerOf, partitionsOf } from "./topic_forms.js";

const TARGETS = [
  ["start", "Earliest"],
  ["end", "Latest"],
  ["offset", "Offset"],
  ["time", "Time"],
];

// The fields of an offset and a time; each is shown if it is selected.
const TARGET_FIELDS = [
  { name: "offset", label: "Offset", type: "number", min: 0, required: true, when: ({ to }) => to === "offset" },
  { name: "time", label: "Time", type: "time", required: true, when: ({ to }) => to === "time" },
];

// Options of the dialog that creates a group.
export const createGroupForm = (created) => ({
  title: "Create group",
  text: "A group without members, with committed offsets from which its consumers start.",
  confirm: "Create group",
  fields: [
    { name: "group", label: "Group ID", required: true, placeholder: "billing" },
    {
      name: "type",
      label: "Type",
      type: "select",
      options: [
        ["consumer", "Consumer group"],
        ["share", "Share group"],
      ],
    },
    { name: "topics", label: "Topics", required: true, placeholder: "orders, payments" },
    { name: "to", label: "Start at", type: "select", options: TARGETS },
    ...TARGET_FIELDS,
  ],
  act: async (values) => {
    const { group, type, topics } = values;
    const names = topics.split(",").map((each) => each.trim());
    const asked = { type, topics: Object.fromEntries(names.filter(Boolean).map((each) => [each, null])) };
    const it = await post(`/groups/${encodePart(group)}/create`, { ...asked, ...target(values), dry_run: false });
    checkRows(it.partitions, (row) => `${row.topic}-${row.partition}`);
    created(group);
    return `Group ${group} is created.`;
  },
});

// Options of the dialog that resets the offsets of a group with a number of active members.
export function resetOffsetsForm(name, topics, members) {
  const path = `/groups/${encodePart(name)}/seek`;
  return {
    title: `Reset offsets of ${name}`,
    text: members ? `Stop the ${counted(members, "active member")} of the group first.` : "",
    confirm: "Reset offsets",
    isDangerous: true,
    fields: [
      {
        name: "to",
        label: "Reset to",
        type: "select",
        required: true,
        options: [["", "Choose …"], ...TARGETS, ["shift", "Shift by a number of records"], ["offsets", "Offset of each partition"]],
      },
      ...TARGET_FIELDS,
      {
        name: "shift",
        label: "Number of records",
        type: "number",
        required: true,
        help: "A negative number goes back.",
        when: ({ to }) => to === "shift",
      },
      topicField(topics, [["", "All topics of the group"]]),
      {
        name: "offsets",
        label: "Offsets",
        required: true,
        placeholder: "0=100, 1=250",
        help: "PARTITION=OFFSET, separated by commas.",
        when: ({ to }) => to === "offsets",
      },
      {
        name: "partitions",
        label: "Partitions",
        placeholder: "all",
        help: "Numbers, such as 0, 3.",
        when: ({ to }) => to !== "offsets",
      },
    ],
    preview: async (values) => seekPreview(await post(path, { ...seek(values), dry_run: true })),
    act: async (values) => {
      const it = await post(path, { ...seek(values), dry_run: false });
      checkRows(it.partitions, (row) => `${row.topic}-${row.partition}`);
      return `Offsets of ${number(it.partitions.length)} partitions are reset.`;
    },
  };
}

// A field for a topic that the group reads; without any, its name can be entered.
const topicField = (topics, others = []) => ({
  name: "topic",
  label: "Topic",
  ...(topics.length ? { type: "select", options: [...others, ...topics] } : { required: true, placeholder: "orders" }),
});

function seek(values) {
  const { to, topic, partitions } = values;
  if (to !== "offsets") {
    const numbers = partitions.trim() ? partitionsOf(partitions) : null;
    if (numbers && !topic) throw fieldError("topic", "Select the topic of the partitions.");
    return { ...target(values), ...(topic ? { topics: { [topic]: numbers } } : {}) };
  }
  if (!topic) throw fieldError("topic", "Select the topic of the offsets.");
  const offsets = values.offsets
    .split(",")
    .filter((each) => each.trim())
    .map((each) => {
      const [partition, offset] = each.split("=");
      return {
        topic,
        partition: integerOf(partition, "partition", "offsets"),
        offset: integerOf(offset ?? "", "offset", "offsets"),
      };
    });
  return { offsets };
}

const target = ({ to, ...values }) => (to in values ? { to, value: values[to] } : { to });

function seekPreview(it) {
  const change = (row) => (row.prior_offset === null ? null : row.new_offset - row.prior_offset);
  const changes = it.partitions.map(change).filter((each) => each !== null);
  const sum = (values) => values.reduce((total, each) => total + each, 0);
  const again = sum(changes.map((each) => Math.max(-each, 0))),
    skipped = sum(changes.map((each) => Math.max(each, 0)));
  const table = new Table(
    [
      ["Topic", (row) => visible(row.topic)],
      ["Partition", (row) => number(row.partition), "num"],
      ["Offset", (row) => `${number(row.prior_offset)} → ${number(row.new_offset)}`, "num"],
      ["Change", (row) => number(change(row)), "num"],
    ],
    { label: "New offsets", tall: false },
  ).set(it.partitions);
  return h(
    "div",
    {},
    blockingProblem(it.problem),
    h("p", {}, `${counted(again, "record")} will be read again, and ${number(skipped)} skipped.`),
    table.element,
  );
}

// Options of the dialog that deletes a group.
export const deleteGroupForm = (name) => ({
  title: `Delete group ${name}`,
  text: "The group and its offsets are deleted. This cannot be undone.",
  confirm: "Delete group",
  isDangerous: true,
  preview: async () => {
    const it = await post(`/groups/${encodePart(name)}/delete`);
    const { topics, total_lag: lag } = await get(`/groups/${encodePart(name)}/details`);
    const names = topics.map((each) => each.topic).filter(Boolean);
    return h(
      "div",
      {},
      facts([
        ["Type", it.type],
        ["State", it.state],
        ["Topics with offsets", visible(names.join(", ") || "none")],
        ["Lag", number(lag)],
      ]),
      blockingProblem(it.problem),
    );
  },
  act: async () => {
    await post(`/groups/${encodePart(name)}/delete`, { dry_run: false });
    return `Group ${name} is deleted.`;
  },
});

// Options of the dialog that deletes several groups.
export const deleteGroupsForm = (names) => ({
  title: `Delete ${number(names.length)} group${names.length > 1 ? "s" : ""}`,
  text: "The groups and their offsets are deleted. This cannot be undone.",
  confirm: "Delete groups",
  isDangerous: true,
  preview: async () =>
    new Table(
      [
        ["Group", (row) => visible(row.group)],
        ["Type", (row) => row.type],
        ["State", (row) => row.state],
        ["Problem", (row) => h("span", { class: "bad" }, row.problem ?? "")],
      ],
      { label: "Groups to delete", tall: false },
    ).set((await post("/groups/delete", { groups: names })).groups).element,
  act: async () => {
    const { groups } = await post("/groups/delete", { groups: names, dry_run: false });
    checkRows(groups, (row) => row.group);
    return `${number(names.length)} groups are deleted.`;
  },
});

// Options of the dialog that deletes the offsets of a topic.
export function deleteOffsetsForm(name, topics) {
  const path = `/groups/${encodePart(name)}/delete-offsets`;
  const asked = ({ topic, partitions }) => ({
    topics: { [topic]: partitions.trim() ? partitionsOf(partitions) : null },
  });
  return {
    title: `Delete offsets of ${name}`,
    text: "Consumers of the group then start at the position of their setting auto.offset.reset.",
    confirm: "Delete offsets",
    isDangerous: true,
    fields: [
      topicField(topics),
      { name: "partitions", label: "Partitions", placeholder: "all", help: "Numbers, such as 0, 3." },
    ],
    preview: async (values) => {
      const it = await post(path, asked(values));
      const table = new Table(
        [
          ["Topic", (row) => visible(row.topic)],
          ["Partition", (row) => number(row.partition), "num"],
          ["Offset", (row) => number(row.offset), "num"],
        ],
        { label: "Offsets to delete", tall: false },
      ).set(it.partitions);
      return h("div", {}, blockingProblem(it.problem), table.element);
    },
    act: async (values) => {
      const it = await post(path, { ...asked(values), dry_run: false });
      checkRows(it.partitions, (row) => `${row.topic}-${row.partition}`);
      return `Offsets of ${number(it.partitions.length)} partitions are deleted.`;
    },
  };
}

// Options of the dialog that removes a member.
export const removeMemberForm = (name, member) => ({
  title: "Remove member",
  text: "Its partitions are assigned to the other members. A member that still runs joins the group again.",
  confirm: "Remove member",
  isDangerous: true,
  preview: async () => {
    const it = await post(`/groups/${encodePart(name)}/remove-members`, { members: [member] });
    const [row] = it.members;
    return facts([
      ["Group", visible(name)],
      ["Member ID", visible(row.member_id)],
      ["Client ID", visible(row.client_id || "–")],
      ["Assigned partitions", number(row.partitions)],
    ]);
  },
  act: async () => {
    const asked = { members: [member], dry_run: false };
    checkRows((await post(`/groups/${encodePart(name)}/remove-members`, asked)).members, (row) => row.member_id);
    return "The member is removed.";
  },
});
