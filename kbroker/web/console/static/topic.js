// Topic page: the tabs are modules of their own, which are loaded when they are opened.

import { encodePart, session } from "./api.js";
import { h, visible } from "./dom.js";
import { actionButton } from "./forms.js";
import { deleteTopicsForm, permittedOn } from "./topic_forms.js";

const TABS = {
  messages: async () => (await import("./messages.js")).default,
  partitions: async () => (await import("./topic_tabs.js")).partitions,
  groups: async () => (await import("./topic_tabs.js")).groups,
  config: async () => (await import("./topic_tabs.js")).config,
  produce: async () => (await import("./produce.js")).default,
};

export default async function topic(view, parts, query, isShown) {
  const [, name, tab = "messages"] = parts;
  const may = session.may_write ? await permittedOn(name) : [];
  const tabs = Object.keys(TABS).filter((each) => each !== "produce" || may.includes("WRITE"));
  const leave = () => {
    location.hash = "#/topics";
  };
  view.append(
    h(
      "div",
      { class: "title" },
      h("h1", {}, visible(name)),
      may.includes("DELETE") && actionButton("Delete topic", deleteTopicsForm([name]), { done: leave }),
    ),
    h(
      "div",
      { class: "tabs", role: "navigation", "aria-label": "Sections of this topic" },
      tabs.map((each) =>
        h(
          "a",
          { href: `#/topics/${encodePart(name)}/${each}`, "aria-current": each === tab ? "page" : null },
          each[0].toUpperCase() + each.slice(1),
        ),
      ),
    ),
  );
  if (!(tab in TABS)) throw new Error("Page not found");
  const show = await TABS[tab]();
  return show(view, name, query, isShown);
}
