// Topic page: the tabs are modules of their own, which are loaded when they are opened.

import { encodePart, isForbidden, session } from "./api.js";
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
  const title = h("div", { class: "title" }, h("h1", {}, visible(name))),
    tabs = h("div", { class: "tabs", role: "navigation", "aria-label": "Sections of this topic" });
  view.append(title, tabs);
  if (!(tab in TABS)) throw new Error("Page not found");
  const may = session.may_write ? await permitted(name) : [];
  const leave = () => {
    location.hash = "#/topics";
  };
  if (may.includes("DELETE")) title.append(actionButton("Delete topic", deleteTopicsForm([name]), { done: leave }));
  tabs.append(
    ...Object.keys(TABS)
      .filter((each) => each !== "produce" || may.includes("WRITE") || tab === "produce")
      .map((each) =>
        h(
          "a",
          { href: `#/topics/${encodePart(name)}/${each}`, "aria-current": each === tab ? "page" : null },
          each[0].toUpperCase() + each.slice(1),
        ),
      ),
  );
  if (tab === "produce" && !may.includes("WRITE"))
    throw new Error(session.may_write ? `${session.user} may not WRITE topic ${name}.` : "This console is read-only.");
  const show = await TABS[tab]();
  return show(view, name, query, isShown);
}

// What the viewer may do with a topic: nothing if the viewer may not describe it. The tabs say what is missing.
async function permitted(name) {
  try {
    return await permittedOn(name);
  } catch (error) {
    if (isForbidden(error)) return [];
    throw error;
  }
}
