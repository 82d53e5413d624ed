// HTTP client for the API of the node that serves the page.

export const session = {};

// Event on `window` after the broker answers again, with a new session.
export const RECOVERED = "broker-recovered";
const RETRY_MS = 2000,
  READ_MS = 20_000,
  WRITE_MS = 60_000,
  NOT_READY = 503,
  FORBIDDEN = 403,
  TOKEN_HEADER = "x-kbroker-token";
const connection = { answeredAt: null, isLost: false, timer: null };

// A parameter whose value is a list is sent several times. `signal` aborts the request.
export async function get(path, query = {}, { signal } = {}) {
  const text = parameters(query).toString();
  return parsed(await request(`/api/v1${path}${text ? `?${text}` : ""}`, { signal }, READ_MS));
}

// Returns the error of a stream that the broker refuses, or null if it accepts the stream now. An EventSource
// does not tell the reason.
export async function streamError(url) {
  const aborting = new AbortController();
  try {
    const response = await request(url, { signal: aborting.signal }, READ_MS);
    if (!response.ok) await parsed(response);
  } catch (error) {
    return error;
  } finally {
    aborting.abort();
  }
  return null;
}

export function parameters(query) {
  const given = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  return new URLSearchParams(
    given.filter(([, value]) => value !== "" && value !== null && value !== undefined),
  );
}

// Each process of a server has its own token. If another process answers now, the token is loaded again.
export async function post(path, body) {
  const data = typeof body === "string" ? body : JSON.stringify(body ?? {});
  const send = () =>
    request(
      `/api/v1${path}`,
      { method: "POST", body: data, headers: { [TOKEN_HEADER]: session.token } },
      WRITE_MS,
    );
  let response = await send();
  if (response.status === FORBIDDEN && (await response.clone().text()).includes(TOKEN_HEADER)) {
    await loadSession();
    response = await send();
  }
  return parsed(response);
}

// Loads the session: version, user and token.
export async function loadSession() {
  Object.assign(session, await get("/session"));
}

// Thrown while the broker does not answer. The banner reports it, so pages can ignore it.
export class Unreachable extends Error {
  constructor() {
    super("The broker does not answer. Try again when it answers.");
  }
}

async function request(url, options, milliseconds) {
  const timeout = AbortSignal.timeout(milliseconds),
    signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  let response;
  try {
    response = await fetch(url, { ...options, signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
  }
  if (!response || response.status === NOT_READY) {
    lost();
    throw new Unreachable();
  }
  connection.answeredAt = new Date();
  if (connection.isLost) retry();
  return response;
}

function lost() {
  connection.isLost = true;
  connection.timer ??= setInterval(retry, RETRY_MS);
  banner();
}

// Loads the session again, because a broker that was started again has a new token.
async function retry() {
  const signal = AbortSignal.timeout(RETRY_MS);
  const response = await fetch("/api/v1/session", { signal }).catch(() => null);
  if (!response || response.status === NOT_READY || !connection.isLost) return;
  const found = await response.json().catch(() => null);
  if (response.ok && found) Object.assign(session, found);
  clearInterval(connection.timer);
  Object.assign(connection, { isLost: false, timer: null, answeredAt: new Date() });
  banner();
  dispatchEvent(new Event(RECOVERED));
}

function banner() {
  const element = document.getElementById("unreachable"),
    { isLost, answeredAt } = connection,
    last = answeredAt && ` Last update ${answeredAt.toISOString().slice(11, 19)} UTC.`;
  element.hidden = !isLost;
  document.getElementById("main").classList.toggle("stale", isLost);
  const text = `The broker at ${location.host} does not answer.${last ?? ""} Retrying …`;
  if (isLost && element.textContent !== text) element.textContent = text;
}

async function parsed(response) {
  const found = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) {
    const { status } = response;
    throw Object.assign(new Error(found.error ?? String(status)), { details: found, status });
  }
  return found;
}

// True for an error because the viewer lacks a permission.
export const isForbidden = (error) => error.status === FORBIDDEN;

export const encodePart = encodeURIComponent;
