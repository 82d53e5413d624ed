// Router: the URL fragment contains the whole state of a page.

import { RECOVERED, Unreachable, encodePart, get, isForbidden, loadSession, session } from "./api.js";
import { h, link, notify, visible } from "./dom.js";

// Pages of the navigation: path, name, key after g, module. A page's module is loaded when it is opened.
const PAGES = [
  ["", "Overview", "o", () => import("./overview.js")],
  ["topics", "Topics", "t", () => import("./topics.js")],
  ["groups", "Groups", "g", () => import("./groups.js")],
  ["schemas", "Schemas", "r", () => import("./schemas.js")],
  ["security", "Security", "u", () => import("./security.js")],
  ["activity", "Activity", "a", () => import("./activity.js")],
  ["storage", "Transactions & storage", "s", () => import("./storage.js")],
  ["cluster", "Cluster", "c", () => import("./cluster.js")],
  ["tests", "Test", "e", () => import("./tests.js")],
];
// Pages of single objects.
const OBJECTS = {
  topics: () => import("./topic.js"),
  groups: () => import("./group.js"),
  brokers: () => import("./broker.js"),
  schemas: () => import("./subject.js"),
  security: () => import("./security.js"),
  explain: () => import("./explain.js"),
};
// Time after which a page that is not complete shows that it is loading.
const LOADING_MS = 200;
let leavePage = null,
  shown = 0,
  isIncomplete = false,
  needsReload = false;

function parseHash() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decodeURIComponent),
    query: new URLSearchParams(query ?? ""),
  };
}

// Page of the navigation to which a page belongs.
function pageOf([first = "", kind]) {
  const explained = { group: "groups", partition: "topics", client: "activity", transaction: "storage" };
  return first === "explain" ? (explained[kind] ?? "") : first === "brokers" ? "cluster" : first;
}

const shownPages = () => PAGES.filter(([name]) => name !== "tests" || session.under_test);

function loaderOf(parts) {
  if (parts.length > 1) return OBJECTS[parts[0]];
  return PAGES.find(([name]) => name === (parts[0] ?? ""))?.[3];
}

// Loads the module of a page. A browser may not load a module again that could not be loaded once, so
// the whole document is loaded again when the broker answers.
async function moduleOf(load) {
  try {
    return await load();
  } catch (error) {
    needsReload = true;
    await get("/session");
    needsReload = false;
    throw error;
  }
}

async function show() {
  const mine = ++shown,
    { parts, query } = parseHash(),
    main = document.getElementById("main"),
    isShown = () => mine === shown;
  for (const each of document.querySelectorAll("dialog[open]")) each.close();
  leavePage?.();
  leavePage = null;
  drawNavigation(parts);
  document.title = [...parts].reverse().concat("kbroker").join(" · ");
  const timer = setTimeout(() => {
    if (isShown()) main.replaceChildren(h("p", { class: "soft", role: "status" }, "Loading …"));
  }, LOADING_MS);
  const view = h("div");
  try {
    const load = loaderOf(parts);
    if (!load) throw new Error("Page not found");
    const page = await moduleOf(load);
    if (parts.length > 1) view.append(crumbs(parts));
    const end = await page.default(view, parts, query, isShown);
    if (!isShown()) end?.();
    else leavePage = end;
    if (isShown()) isIncomplete = false;
  } catch (error) {
    if (isShown()) showError(view, parts, error);
  }
  clearTimeout(timer);
  if (isShown()) main.replaceChildren(view);
}

function showError(view, parts, error) {
  isIncomplete = error instanceof Unreachable;
  const name = PAGES.find(([path]) => path === pageOf(parts))?.[1] ?? "Page",
    kept = [...view.children].filter((each) => each.matches("h1, .title, .tabs, .crumbs"));
  if (!kept.some((each) => each.matches("h1, .title"))) kept.push(h("h1", {}, visible(parts[1] ?? name)));
  view.replaceChildren(...kept, failure(error));
}

// The part of a page that says why the rest is missing.
function failure(error) {
  if (isIncomplete) return h("p", {}, "The broker does not answer. This page opens as soon as it answers.");
  return h(
    "section",
    { class: "failed", role: "alert" },
    h("p", { class: "bad" }, isForbidden(error) ? "A permission is missing." : "This page cannot be shown."),
    h("p", {}, visible(error.message)),
    h("div", { class: "row" }, h("button", { type: "button", onclick: show }, "Try again"), link("/", "Overview")),
  );
}

function recovered() {
  if (needsReload) location.reload();
  else if (isIncomplete) show();
}

// -- navigation

function drawNavigation(parts) {
  const links = shownPages().map(([name, text, letter]) => {
    const current = name === pageOf(parts) ? "page" : null;
    return h("a", { href: `#/${name}`, "aria-current": current, title: `Keys: g ${letter}` }, text);
  });
  document.getElementById("nav").replaceChildren(...links);
  openMenu(false);
}

// Links to the pages above the page of an object.
function crumbs(parts) {
  const page = PAGES.find(([name]) => name === pageOf(parts));
  const above = parts[0] === "explain" ? aboveExplanation(parts) : [link(`/${page[0]}`, page[1])];
  const names = parts[0] === "explain" ? [] : parts.slice(1);
  names.forEach((name, at) => {
    const path = [parts[0], ...names.slice(0, at + 1)].map(encodePart).join("/");
    const text = parts[0] !== "brokers" ? name : name === "default" ? "All nodes" : `Node ${name}`;
    if (at < names.length - 1) above.push(link(`/${path}`, text));
    else above.push(h("span", { "aria-current": "page" }, visible(text)));
  });
  return h("nav", { class: "crumbs", "aria-label": "Breadcrumbs" }, h("ol", {}, above.map((each) => h("li", {}, each))));
}

function aboveExplanation(parts) {
  const [, kind, name, partition] = parts,
    [path, text] = PAGES.find(([each]) => each === pageOf(parts)),
    items = [link(`/${path}`, text)];
  if (kind === "group") items.push(link(`/groups/${encodePart(name)}`, name));
  if (kind === "partition") items.push(link(`/topics/${encodePart(name)}/partitions`, name), partition);
  if (kind === "client" || kind === "transaction") items.push(visible(name ?? ""));
  return [...items, h("span", { "aria-current": "page" }, "Explanation")];
}

function openMenu(isOpen) {
  document.getElementById("menu").setAttribute("aria-expanded", String(isOpen));
  document.getElementById("nav").classList.toggle("open", isOpen);
}

function applyTheme(name) {
  document.documentElement.dataset.theme = name;
}

function initTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };
  applyTheme(stored() ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => applyTheme(stored() ?? (dark.matches ? "dark" : "light")));
  document.getElementById("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    applyTheme(next);
    try {
      localStorage.setItem("theme", next);
    } catch {
      /* no storage: the theme lasts until the page is closed */
    }
  });
}

// -- keys

const loadPalette = () => import("./palette.js");
const openPalette = async () => (await loadPalette()).default(shownPages());
const showKeys = async () => (await loadPalette()).showKeys(shownPages());

let isGoPending = false;
function key(event) {
  const isTyping = event.target.matches("input, textarea, select, [contenteditable]");
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey) {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) openPalette();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const page = isGoPending && shownPages().find(([, , letter]) => letter === event.key);
  const actions = { "/": openPalette, "?": showKeys, f: () => document.querySelector("main input")?.focus() };
  if (page) location.hash = `#/${page[0]}`;
  else if (event.key in actions) {
    event.preventDefault();
    actions[event.key]();
  }
  isGoPending = !isGoPending && event.key === "g";
}

initTheme();
document.getElementById("menu").addEventListener("click", (event) => {
  openMenu(event.currentTarget.getAttribute("aria-expanded") !== "true");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
document.getElementById("find").addEventListener("click", openPalette);
addEventListener("hashchange", show);
addEventListener("keydown", key);
addEventListener(RECOVERED, recovered);
addEventListener("unhandledrejection", (event) => {
  if (!(event.reason instanceof Unreachable)) notify(event.reason?.message ?? "Unexpected error", true);
});
try {
  await loadSession();
  document.getElementById("who").textContent =
    `${session.user} · node ${session.node_id}${session.may_write ? "" : " · read-only"}`;
} catch (error) {
  if (!(error instanceof Unreachable)) notify(error.message, true);
}
await show();
loadPalette().catch(() => {}); // loaded early, so that it opens before the next key
