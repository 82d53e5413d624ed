// Times in the zone that the user chose: UTC, or the zone of the browser.

const STORED = "zone";

export const zone = { isLocal: stored() === "local" };

function stored() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}

export function useZone(isLocal) {
  zone.isLocal = isLocal;
  try {
    localStorage.setItem(STORED, isLocal ? "local" : "UTC");
  } catch {
    /* no storage: the zone lasts until the page is closed */
  }
}

export function localZone() {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  return name.replace(/^Etc\//, "");
}
export const zoneName = (isLocal = zone.isLocal) => (isLocal ? localZone() : "UTC");

const padded = (value, digits = 2) => String(value).padStart(digits, "0");

// The date and time of a timestamp as the value of a datetime-local input, or null outside of its range.
export function inputText(ms, isLocal = zone.isLocal) {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime()) || date.getUTCFullYear() > 9998 || date.getUTCFullYear() < 1) return null;
  if (!isLocal) return date.toISOString().slice(0, 23);
  const day = `${padded(date.getFullYear(), 4)}-${padded(date.getMonth() + 1)}-${padded(date.getDate())}`,
    clock = `${padded(date.getHours())}:${padded(date.getMinutes())}:${padded(date.getSeconds())}`;
  return `${day}T${clock}.${padded(date.getMilliseconds(), 3)}`;
}

export function timeText(ms, isLocal = zone.isLocal) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  return inputText(ms, isLocal)?.replace("T", " ") ?? String(ms);
}

// The timestamp in ms of the value of a datetime-local input, or null if it is empty.
export function msOf(text, isLocal = zone.isLocal) {
  const ms = text ? new Date(isLocal ? text : `${text}Z`).getTime() : NaN;
  return Number.isNaN(ms) ? null : ms;
}

// Ranges to choose from: name and the first and last ms, or null without a bound.
export function ranges() {
  const now = Date.now(),
    today = new Date(now);
  if (zone.isLocal) today.setHours(0, 0, 0, 0);
  else today.setUTCHours(0, 0, 0, 0);
  const yesterday = new Date(today);
  if (zone.isLocal) yesterday.setDate(yesterday.getDate() - 1);
  else yesterday.setUTCDate(yesterday.getUTCDate() - 1);
  const minutes = 60_000,
    hours = 60 * minutes;
  return [
    ["Last 5 minutes", now - 5 * minutes, null],
    ["Last 15 minutes", now - 15 * minutes, null],
    ["Last hour", now - hours, null],
    ["Last 24 hours", now - 24 * hours, null],
    ["Last 7 days", now - 7 * 24 * hours, null],
    ["Today", today.getTime(), null],
    ["Yesterday", yesterday.getTime(), today.getTime() - 1],
    ["All times", null, null],
  ];
}
