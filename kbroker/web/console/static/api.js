// HTTP client for the API of the node that serves the page.

export const session = {};

const connection = { lostAt: null };

// A parameter whose value is a list is sent several times. `signal` aborts the request.
export async function get(path, query = {}, { signal } = {}) {
  const text = parameters(query).toString();
  return parsed(await request(`/api/v1${path}${text ? `?${text}` : ""}`, { signal }));
}

export function parameters(query) {
  const given = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  return new URLSearchParams(
    given.filter(([, value]) => value !== "" && value !== null && value !== undefined),
  );
}

export async function post(path, body) {
  const data = typeof body === "string" ? body : JSON.stringify(body ?? {});
  return parsed(
    await request(`/api/v1${path}`, {
      method: "POST",
      body: data,
      headers: { "x-kbroker-token": session.token },
    }),
  );
}

// Thrown while the broker is unreachable. The banner reports it, so pages can ignore it.
export class Unreachable extends Error {}

async function request(url, options) {
  try {
    const response = await fetch(url, options);
    connection.lostAt = null;
    banner();
    return response;
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    connection.lostAt ??= new Date();
    banner();
    throw new Unreachable(`The broker at ${location.host} cannot be reached.`);
  }
}

function banner() {
  const element = document.getElementById("unreachable"),
    since = connection.lostAt?.toISOString().slice(11, 19);
  element.hidden = !since;
  document.getElementById("main").classList.toggle("stale", Boolean(since));
  if (since)
    element.textContent = `The broker at ${location.host} cannot be reached since ${since} UTC. This page shows older data and updates when the broker is reachable again.`;
}

async function parsed(response) {
  const found = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) throw Object.assign(new Error(found.error ?? String(response.status)), { details: found });
  return found;
}

export const encodePart = encodeURIComponent;
