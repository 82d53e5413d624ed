// Parts that several pages share.

import { Unreachable, encodePart } from "./api.js";
import { field, h, notify } from "./dom.js";

export const CONSOLE_CLIENT_ID = "kbroker-console";

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

export function searchForm(query, path, placeholder) {
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
export const otherNodesNote = (it, what) =>
  it.other_nodes.length > 0 &&
  h(
    "p",
    { class: "soft" },
    `${what} of node${it.other_nodes.length > 1 ? "s" : ""} ${it.other_nodes.join(", ")}: see the console of ${it.other_nodes.length > 1 ? "those nodes" : "that node"}.`,
  );
