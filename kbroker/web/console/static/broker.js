// Settings of one node, or of all nodes.

import { encodePart } from "./api.js";
import { h } from "./dom.js";
import { settings } from "./settings.js";

const EVERY_NODE = "default";

export default async function broker(view, parts) {
  const shown = parts[1],
    tabs = h("div", { class: "tabs", role: "navigation", "aria-label": "Nodes" });
  view.append(
    h("h1", {}, shown === EVERY_NODE ? "Settings of all nodes" : `Settings of node ${shown}`),
    tabs,
    h(
      "p",
      { class: "soft" },
      shown === EVERY_NODE
        ? "These values apply to all nodes that have no value of their own."
        : "These values apply to this node only.",
    ),
  );
  const { brokers } = await settings(view, `/brokers/${encodePart(shown)}/config`);
  tabs.replaceChildren(
    ...[EVERY_NODE, ...brokers.map(String)].map((each) =>
      h(
        "a",
        { href: `#/brokers/${each}`, "aria-current": each === shown ? "page" : null },
        each === EVERY_NODE ? "All nodes" : `Node ${each}`,
      ),
    ),
  );
}
