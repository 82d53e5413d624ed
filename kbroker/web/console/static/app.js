// Router: the URL fragment contains the whole state of a page.

import { get, session } from "./api.js";
import { h, notify, visible } from "./dom.js";

// Pages of the navigation, and pages of single objects. A page's module is loaded when it is opened.
const PAGES = [
  ["", "Overview", () => import("./overview.js")],
  ["topics", "Topics", () => import("./topics.js")],
  ["groups", "Groups", () => import("./groups.js")],
  ["schemas", "Schemas", () => import("./schemas.js")],
  ["security", "Security", () => import("./security.js")],
  ["activity", "Activity", () => import("./activity.js")],
  ["storage", "Transactions & storage", () => import("./storage.js")],
  ["cluster", "Cluster", () => import("./cluster.js")],
  ["tests", "Test", () => import("./tests.js")],
];
const OBJECTS = {
  topics: () => import("./topic.js"),
  groups: () => import("./group.js"),
  brokers: () => import("./broker.js"),
  schemas: () => import("./subject.js"),
  security: () => import("./security.js"),
  explain: () => import("./explain.js"),
};
let leavePage = null,
  shown = 0;

export function parseHash() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decodeURIComponent),
    query: new URLSearchParams(query ?? ""),
  };
}

function loaderOf(parts) {
  if (parts.length > 1) return OBJECTS[parts[0]];
  return PAGES.find(([name]) => name === (parts[0] ?? ""))?.[2];
}

async function show() {
  const mine = ++shown,
    { parts, query } = parseHash(),
    main = document.getElementById("main");
  document.getElementById("detail").close();
  if (leavePage) leavePage();
  leavePage = null;
  document
    .getElementById("nav")
    .replaceChildren(
      ...PAGES.filter(([name]) => name !== "tests" || session.under_test).map(([name, text]) =>
        h("a", { href: `#/${name}`, "aria-current": name === (parts[0] ?? "") ? "page" : null }, text),
      ),
    );
  const view = h("div");
  document.title = [...parts].reverse().concat("kbroker").join(" · ");
  try {
    const load = loaderOf(parts);
    if (!load) throw new Error("Page not found");
    const page = await load();
    const end = await page.default(view, parts, query, () => mine === shown);
    if (mine !== shown) {
      end?.();
      return;
    }
    leavePage = end;
  } catch (error) {
    if (mine !== shown) return;
    view.replaceChildren(h("h1", {}, "Error"), h("p", { class: "bad" }, visible(error.message)));
  }
  main.replaceChildren(view);
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

// Keyboard shortcuts: g and a letter open a page, / focuses the first field.
let isGoPending = false;
function key(event) {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey)
    return;
  const pages = {
    o: "",
    t: "topics",
    g: "groups",
    a: "activity",
    s: "storage",
    c: "cluster",
    r: "schemas",
    u: "security",
  };
  if (isGoPending && event.key in pages) location.hash = `#/${pages[event.key]}`;
  isGoPending = !isGoPending && event.key === "g";
  if (event.key === "/") {
    document.querySelector("main input")?.focus();
    event.preventDefault();
  }
}

initTheme();
addEventListener("hashchange", show);
addEventListener("keydown", key);
addEventListener("unhandledrejection", (event) => notify(event.reason?.message ?? "Unexpected error", true));
try {
  Object.assign(session, await get("/session"));
  document.getElementById("who").textContent =
    `${session.user} · node ${session.node_id}${session.may_write ? "" : " · read-only"}`;
} catch (error) {
  notify(error.message, true);
}
show();
