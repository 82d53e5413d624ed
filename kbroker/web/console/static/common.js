// Parts that several pages share.

import { RECOVERED, Unreachable, isForbidden, session } from "./api.js";
import { field, h, notify, visible } from "./dom.js";

export const CONSOLE_CLIENT_ID = "kbroker-console";

// Refreshes the page every few seconds while its tab is visible, and when the broker answers again.
export function refreshEvery(seconds, work) {
  let isBusy = false;
  async function refresh() {
    if (document.hidden || isBusy) return;
    isBusy = true;
    await work().catch((error) => {
      if (!(error instanceof Unreachable)) notify(error.message, true);
    });
    isBusy = false;
  }
  const timer = setInterval(refresh, seconds * 1000);
  addEventListener(RECOVERED, refresh);
  document.addEventListener("visibilitychange", refresh);
  return () => {
    clearInterval(timer);
    removeEventListener(RECOVERED, refresh);
    document.removeEventListener("visibilitychange", refresh);
  };
}

// A form that searches names; `more` are further fields, whose values are in the URL too.
export function searchForm(query, path, placeholder, ...more) {
  const input = h("input", { type: "search", name: "search", value: query.get("search") ?? "", placeholder });
  return h(
    "form",
    {
      class: "bar",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = `#${path}?${new URLSearchParams(new FormData(event.target))}`;
      },
    },
    field("Name contains", input),
    more,
    h("button", { class: "main" }, "Search"),
  );
}

// Notes for nodes whose data is missing: those that do not respond, and those that this node cannot reach.
export function otherNodesNote({ other_nodes: others = [], silent_nodes: silent = [] }, what) {
  const nodes = (ids) => `node${ids.length > 1 ? "s" : ""} ${ids.join(", ")}`;
  return [
    silent.length > 0 && h("p", { class: "bad" }, `No response from ${nodes(silent)}. ${what} of ${nodes(silent)} are missing.`),
    others.length > 0 &&
      h("p", { class: "soft" }, `${what} of ${nodes(others)} are only available in the console of each of these nodes.`),
  ];
}

// An element whose contents `draw(data)` returns. It is drawn again only if the data differs, so that the
// focus stays.
export function drawnOnChange(element, draw) {
  let shown = "";
  return {
    element,
    set(data) {
      const text = JSON.stringify(data);
      if (text === shown) return;
      shown = text;
      element.replaceChildren(...[draw(data)].flat(Infinity).filter(Boolean));
    },
  };
}

// The result of a request, or its error if the viewer lacks a permission: the other parts of a page are shown.
export async function orForbidden(request) {
  try {
    return await request;
  } catch (error) {
    if (isForbidden(error)) return error;
    throw error;
  }
}

// The text of a list without rows, for viewers who see only what ACLs permit.
export const emptyText = (text, what) =>
  session.enforces_acls ? `${text} Only ${what} that ${visible(session.user)} may DESCRIBE are listed.` : text;

// Splits the name of a partition, such as "orders-3".
export function splitPartition(text) {
  const at = text.lastIndexOf("-");
  return [text.slice(0, at), text.slice(at + 1)];
}

// Calls `draw`, which replaces the rows of a table, and then focuses the same checkbox or button again.
export function keepFocus(table, draw) {
  const label = table.body.contains(document.activeElement) && document.activeElement.ariaLabel;
  draw();
  if (label) table.body.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
}
