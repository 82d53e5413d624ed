// Topology of a streams group: a drawing of each subtopology, and a table of all nodes.

import { encodePart } from "./api.js";
import { h, link, number, svg, visible } from "./dom.js";
import { Table } from "./table.js";

// Maximum number of nodes in all drawings of a page, and of links in a cell.
const DRAWN_MAX = 500,
  LINKS_MAX = 20;
const BOX = { width: 264, height: 44 },
  GAP = { x: 20, y: 34 },
  NAME_MAX = 34;

const STATUS_TEXTS = {
  NOT_REQUESTED: "The broker does not support topology descriptions.",
  NOT_STORED: "No topology description is stored. Clients of Kafka Streams 4.4 send one.",
  ERROR: "The broker cannot read the topology description; its log has the cause.",
};

export function topology(it) {
  if (it.status !== "AVAILABLE") return h("p", { class: "soft" }, STATUS_TEXTS[it.status] ?? it.status);
  const drawings = [];
  let drawn = 0,
    omitted = 0;
  for (const [id, nodes] of Map.groupBy(it.nodes, (node) => node.subtopology)) {
    if (drawn + nodes.length > DRAWN_MAX) {
      omitted += nodes.length;
      continue;
    }
    drawn += nodes.length;
    const name = id === null ? "Global stores" : `Subtopology ${visible(id)}`;
    drawings.push(h("h3", {}, name), drawing(nodes, name));
  }
  if (omitted) drawings.push(h("p", { class: "soft" }, `${number(omitted)} more nodes are only listed.`));
  const table = new Table(
    [
      ["Subtopology", (row) => visible(row.subtopology ?? "–")],
      ["Node", (row) => visible(row.name)],
      ["Type", (row) => row.type],
      ["Topics", (row) => topicLinks(row.topics)],
      ["State stores", (row) => visible(row.stores.join(", ") || "–")],
      ["Successors", (row) => visible(row.successors.join(", ") || "–")],
    ],
    { label: "Nodes of the topology" },
  ).set(it.nodes);
  return h("div", {}, drawings, h("h3", {}, "Nodes"), table.element);
}

const topicLinks = (topics) => [
  topics.slice(0, LINKS_MAX).map((each) => [link(`/topics/${encodePart(each)}`, each), " "]),
  topics.length > LINKS_MAX && `and ${number(topics.length - LINKS_MAX)} more`,
];

function drawing(nodes, name) {
  const places = layout(nodes);
  const all = [...places.values()];
  const width = Math.max(...all.map((each) => each.x)) + BOX.width + 2,
    height = Math.max(...all.map((each) => each.y)) + BOX.height + 2;
  const edges = [...places].flatMap(([node, from]) =>
    [...new Set(node.successors)]
      .map((each) => places.get(nodes.find((one) => one.name === each)))
      .filter(Boolean)
      .map((to) => edge(from, to)),
  );
  const label = `${name}: ${number(nodes.length)} nodes; the table lists them`;
  return h(
    "div",
    { class: "scroll graph", tabindex: 0, role: "region", "aria-label": name },
    svg(
      "svg",
      { width, height, viewBox: `-1 -1 ${width} ${height}`, role: "img", "aria-label": label },
      edges,
      [...places].map(([node, place]) => box(node, place)),
    ),
  );
}

// Returns the place of each node: below its predecessors, in the order of their columns.
function layout(nodes) {
  const layers = [];
  for (const [node, rank] of ranks(nodes)) (layers[rank] ??= []).push(node);
  const places = new Map(),
    columns = new Map();
  layers.filter(Boolean).forEach((layer, row) => {
    const column = (node) => columns.get(node.name) ?? 0;
    layer.sort((a, b) => column(a) - column(b));
    layer.forEach((node, at) => {
      places.set(node, { x: at * (BOX.width + GAP.x), y: row * (BOX.height + GAP.y) });
      node.successors.forEach((each, branch) => columns.set(each, columns.get(each) ?? at + branch / 1000));
    });
  });
  return places;
}

// Returns the rank of each node: the length of the longest path to it. A cycle is cut at its first node.
function ranks(nodes) {
  const byName = new Map(nodes.map((node) => [node.name, node])),
    found = new Map(nodes.map((node) => [node, 0])),
    waiting = new Map(nodes.map((node) => [node, 0]));
  const successors = (node) => [...new Set(node.successors)].map((each) => byName.get(each)).filter(Boolean);
  for (const node of nodes) for (const each of successors(node)) waiting.set(each, waiting.get(each) + 1);
  while (waiting.size) {
    const [node] = [...waiting].find(([, count]) => !count) ?? [...waiting][0];
    waiting.delete(node);
    for (const each of successors(node)) {
      if (!waiting.has(each)) continue;
      waiting.set(each, waiting.get(each) - 1);
      found.set(each, Math.max(found.get(each), found.get(node) + 1));
    }
  }
  return found;
}

function box(node, { x, y }) {
  const details = [
    node.type !== "processor" && `${node.type}${node.topics.length ? `: ${node.topics.join(", ")}` : ""}`,
    node.stores.length && `stores: ${node.stores.join(", ")}`,
  ].filter(Boolean);
  const detail = details.join("; ") || node.type;
  const text = (y, content, kind) =>
    svg("text", { x: BOX.width / 2, y, "text-anchor": "middle", class: kind }, shortened(visible(content)));
  return svg(
    "g",
    { transform: `translate(${x} ${y})`, class: `node ${node.type}` },
    svg("title", {}, visible(`${node.name} (${detail})`)),
    svg("rect", { width: BOX.width, height: BOX.height, rx: node.type === "processor" ? 4 : 20 }),
    text(18, node.name, "name"),
    text(35, detail, "detail"),
  );
}

// Shortens a name in its middle, because its end has the number of the node.
const shortened = (text) =>
  text.length > NAME_MAX ? `${text.slice(0, NAME_MAX - 13)}…${text.slice(-12)}` : text;

function edge(from, to) {
  const x1 = from.x + BOX.width / 2,
    y1 = from.y + BOX.height,
    x2 = to.x + BOX.width / 2,
    y2 = to.y,
    bend = GAP.y / 2;
  return svg("path", {
    class: "edge",
    d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}M${x2 - 5} ${y2 - 7}L${x2} ${y2}L${x2 + 5} ${y2 - 7}`,
  });
}
