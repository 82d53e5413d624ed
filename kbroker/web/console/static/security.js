// Users, ACLs, quotas and delegation tokens: the tabs are modules of their own, which are loaded when they are opened.

import { h } from "./dom.js";

const TABS = {
  users: ["Users", () => import("./users.js")],
  acls: ["ACLs", () => import("./acls.js")],
  quotas: ["Quotas", () => import("./quotas.js")],
  tokens: ["Tokens", () => import("./tokens.js")],
};

export default async function security(view, parts, query, isShown) {
  const tab = parts[1] ?? "users";
  if (!(tab in TABS)) throw new Error("Page not found");
  view.append(
    h("h1", {}, "Security"),
    h(
      "div",
      { class: "tabs", role: "navigation", "aria-label": "Sections of security" },
      Object.entries(TABS).map(([name, [text]]) =>
        h("a", { href: `#/security/${name}`, "aria-current": name === tab ? "page" : null }, text),
      ),
    ),
  );
  const page = await TABS[tab][1]();
  return page.default(view, query, isShown);
}
