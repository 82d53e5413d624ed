// Elements shared by all pages. Data from the broker is inserted as text only, never as markup.

// Creates an element. Attributes whose name begins with "on" are event listeners.
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false),
  );
  return element;
}

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

// A number with its noun, such as "1 record" or "2 records".
export const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// The lag of a group, and the number of partitions that it does not include, as the command line shows it.
export const lagOf = ({ lag, without_offset: without }) => [
  number(lag),
  without > 0 && h("span", { class: "soft lacking" }, `${counted(without, "partition")} without offsets`),
];

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const compact = (value) => COMPACT.format(value);

// A duration in microseconds.
export function duration(us) {
  if (us < 1000) return `${us} µs`;
  return us < 1_000_000 ? `${Number((us / 1000).toPrecision(3))} ms` : `${Number((us / 1_000_000).toPrecision(3))} s`;
}

export function bytes(value) {
  if (value === null || value === undefined || value < 0) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").replace("Z", "");
}

// Escapes invisible characters, so that they cannot hide text or change its direction.
export function visible(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

// Creates an SVG element.
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.flat(Infinity));
  return element;
}

export function sparkline(values, label, width = 120, height = 24) {
  const known = (values ?? []).filter((each) => each !== null);
  if (!known.length) return h("span", { class: "soft" }, "–");
  const most = Math.max(...known, 1),
    step = width / Math.max(values.length - 1, 1);
  let line = "",
    isDown = false;
  values.forEach((value, at) => {
    if (value === null) {
      isDown = false;
      return;
    }
    line += `${isDown ? "L" : "M"}${(at * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`;
    isDown = true;
  });
  const last = values.length - 1;
  if (values[last] !== null && values[last - 1] === null) line += "h0.1";
  const text = `${label}: now ${known[known.length - 1]}, maximum ${most}`;
  return svg(
    "svg",
    { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text },
    svg("path", {
      d: line,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.8",
      "stroke-linecap": "round",
    }),
  );
}

export const link = (path, text) => h("a", { href: `#${path}` }, visible(text));
// Links to the pages of objects. Missing names are shown as a dash.
const linkOrDash = (path, name) => (name === null || name === undefined || name === "" ? "–" : named(path, name));
const named = (path, name) => h("a", { href: `#${path(encodeURIComponent(name))}` }, shortened(String(name), 80));
export const topicLink = (name) => linkOrDash((each) => `/topics/${each}`, name);
export const groupLink = (name) => linkOrDash((each) => `/groups/${each}`, name);
export const clientLink = (name) => linkOrDash((each) => `/explain/client/${each}`, name);
export const nodeLink = (id) => (id < 0 ? h("span", { class: "bad" }, "none") : linkOrDash((each) => `/brokers/${each}`, id));
export const partitionLink = (topic, partition) => link(`/explain/partition/${encodeURIComponent(topic)}/${partition}`, `${topic}-${partition}`);
export const userLink = (principal) => linkOrDash((each) => `/security/acls?principal=${each}`, principal);

export const card = (name, ...big) =>
  h("div", { class: "card" }, h("div", { class: "name" }, name), h("div", { class: "big" }, ...big));
export const field = (name, input) => h("label", {}, name, input);

// Shortens a long name in the middle; the title has the whole name.
export function shortened(text, most = 48) {
  const whole = visible(text);
  if (whole.length <= most) return whole;
  const half = Math.floor((most - 1) / 2);
  return h("span", { title: whole }, `${whole.slice(0, half)}…${whole.slice(-half)}`);
}

export function notify(text, isBad = false) {
  const notes = document.getElementById("notes");
  if ([...notes.children].some((each) => each.textContent === visible(text))) return;
  const line = h("div", { class: isBad ? "note bad" : "note" }, visible(text));
  notes.append(line);
  setTimeout(() => line.remove(), isBad ? 9000 : 4000);
}
