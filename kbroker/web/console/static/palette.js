// Command palette: finds pages, topics, groups and actions; and the list of keyboard shortcuts.

import { get, encodePart, session } from "./api.js";
import { h, visible } from "./dom.js";
import { openForm } from "./forms.js";

// Rows of each kind, and the time without typing after which the broker is asked.
const ROWS_MAX = 8,
  TYPING_MS = 150;

// Actions: name, path that performs it, and words that find it as well.
const ACTIONS = [
  ["Switch between dark and light theme", () => document.getElementById("theme").click(), "color colour"],
  ["Show keyboard shortcuts", () => showKeys(known), "help keys"],
];
const WRITE_ACTIONS = [
  ["Create topic", createTopic, "new add"],
  ["Create group", createGroup, "new add"],
];
// Lists of the API: kind, page that must exist, path, name of the rows in the response, name of a row, and
// page of a row.
const LISTS = [
  ["Topic", "topics", "/topics", "topics", (row) => row.name, (name) => `/topics/${encodePart(name)}`],
  ["Group", "groups", "/groups", "groups", (row) => row.group, (name) => `/groups/${encodePart(name)}`],
  ["Subject", "schemas", "/schemas", "subjects", (row) => row.subject, (name) => `/schemas/${encodePart(name)}`],
  ["User", "security", "/users", "users", (row) => row.user, () => "/security/users"],
];
let known = [];

export default function openPalette(pages) {
  known = pages;
  new Palette(pages).open();
}

class Palette {
  constructor(pages) {
    const actions = session.may_write ? [...WRITE_ACTIONS, ...ACTIONS] : ACTIONS;
    this.fixed = [
      ...pages.map(([path, name]) => ({ kind: "Page", name, act: goTo(`/${path}`) })),
      ...actions.map(([name, act, words]) => ({ kind: "Action", name, words, act })),
    ];
    this.rows = [];
    this.chosen = 0;
    this.asked = 0;
    this.timer = null;
    this.list = h("ul", { id: "palette-rows", role: "listbox", "aria-label": "Results" });
    this.status = h("p", { class: "soft", role: "status" });
    this.input = h("input", {
      name: "palette",
      role: "combobox",
      placeholder: "Find a page, topic, group, user, subject or action",
      autocomplete: "off",
      "aria-label": "Find",
      "aria-expanded": "true",
      "aria-controls": "palette-rows",
      oninput: () => this.search(),
      onkeydown: (event) => this.key(event),
    });
    this.element = h("dialog", { class: "palette", "aria-label": "Find" }, this.input, this.list, this.status);
    this.element.addEventListener("close", () => this.element.remove());
    this.element.addEventListener("click", (event) => event.target === this.element && this.element.close());
  }
  open() {
    document.body.append(this.element);
    this.element.showModal();
    this.search();
    this.input.focus();
  }
  search() {
    clearTimeout(this.timer);
    const text = this.input.value.trim().toLowerCase(),
      mine = ++this.asked;
    const fixed = this.fixed.filter(({ name, words = "" }) => `${name} ${words}`.toLowerCase().includes(text));
    this.show(fixed);
    if (!text) return;
    this.timer = setTimeout(() => this.ask(text, mine, fixed), TYPING_MS);
  }
  // Asks the broker for matching objects; a list that the viewer may not read is left out.
  async ask(text, mine, fixed) {
    this.status.textContent = "Searching …";
    const lists = LISTS.filter(([, page]) => known.some(([path]) => path === page));
    const found = await Promise.all(lists.map((each) => objectsOf(each, text)));
    if (mine !== this.asked) return;
    this.show([...fixed, ...found.flat()]);
  }
  show(rows) {
    this.rows = rows;
    this.list.replaceChildren(
      ...rows.map((row, at) =>
        h(
          "li",
          { id: `palette-${at}`, role: "option", onclick: () => this.run(row), onpointermove: () => this.choose(at) },
          h("span", { class: "soft" }, row.kind),
          h("span", {}, visible(row.name)),
        ),
      ),
    );
    this.status.textContent = rows.length ? "" : "Nothing found.";
    this.choose(0);
  }
  choose(at) {
    this.chosen = Math.max(Math.min(at, this.rows.length - 1), 0);
    [...this.list.children].forEach((each, index) => {
      each.setAttribute("aria-selected", String(index === this.chosen));
      if (index === this.chosen) each.scrollIntoView({ block: "nearest" });
    });
    if (this.rows.length) this.input.setAttribute("aria-activedescendant", `palette-${this.chosen}`);
    else this.input.removeAttribute("aria-activedescendant");
  }
  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (event.key in steps) this.choose(this.chosen + steps[event.key]);
    else if (event.key === "Enter" && this.rows.length) this.run(this.rows[this.chosen]);
    else return;
    event.preventDefault();
  }
  run(row) {
    this.element.close();
    row.act();
  }
}

const goTo = (path) => () => {
  location.hash = `#${path}`;
};

async function createTopic() {
  const form = (await import("./topic_forms.js")).createTopicForm;
  openForm(form((name) => goTo(`/topics/${encodePart(name)}/partitions`)()));
}

async function createGroup() {
  const form = (await import("./group_forms.js")).createGroupForm;
  openForm(form((name) => goTo(`/groups/${encodePart(name)}`)()));
}

// Returns objects whose names contain a text; none if the viewer may not list them.
async function objectsOf([kind, , path, key, nameOf, pageOf], search) {
  try {
    const it = await get(path, { search, limit: ROWS_MAX });
    const names = it[key].map(nameOf).filter((name) => name.toLowerCase().includes(search));
    return names.slice(0, ROWS_MAX).map((name) => ({ kind, name, act: goTo(pageOf(name)) }));
  } catch {
    return [];
  }
}

// Shows the keyboard shortcuts.
export function showKeys(pages) {
  known = pages;
  const keys = [
    ["/ or Ctrl K", "Find a page, topic, group or action"],
    ["f", "Select the first field of the page"],
    ["?", "Show this list"],
    ...pages.map(([, name, letter]) => [`g ${letter}`, name]),
    ["Enter", "Open the selected row of a table"],
    ["Esc", "Close a dialog"],
  ];
  const element = h(
    "dialog",
    { "aria-label": "Keyboard shortcuts" },
    h("h1", {}, "Keyboard shortcuts"),
    h(
      "dl",
      { class: "facts" },
      keys.map(([name, text]) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, text)]),
    ),
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => element.close() }, "Close")),
  );
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
}
