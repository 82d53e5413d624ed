// Settings of one node, or of all nodes.

import { encodePart } from "./api.js";
import { h, visible } from "./dom.js";
import { settings } from "./settings.js";

const EVERY_NODE = "default";

export default async function broker(view, parts) {
  const shown = parts[1],
    tabs = h("div", { class: "tabs", role: "navigation", "aria-label": "Nodes" });
  view.append(
    h("h1", {}, shown === EVERY_NODE ? "Settings of all nodes" : visible(`Settings of node ${shown}`)),
    tabs,
    h(
      "p",
      { class: "soft" },
      shown === EVERY_NODE
        ? "These values apply to all nodes that have no value of their own."
        : "These values apply to this node only.",
    ),
  );
  tabs.append(...tabLinks([...new Set([EVERY_NODE, shown])], shown));
  const { brokers } = await settings(view, `/brokers/${encodePart(shown)}/config`);
  tabs.replaceChildren(...tabLinks([EVERY_NODE, ...brokers.map(String)], shown));
}

const tabLinks = (names, shown) =>
  names.map((each) =>
    h(
      "a",
      { href: `#/brokers/${encodePart(each)}`, "aria-current": each === shown ? "page" : null },
      each === EVERY_NODE ? "All nodes" : visible(`Node ${each}`),
    ),
  );
