// HTTP client for the API of the node that serves the page.

export const session = {};

const connection = { lostAt: null };

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== "" && value !== null && value !== undefined,
  );
  const text = new URLSearchParams(given).toString();
  return parsed(await request(`/api/v1${path}${text ? `?${text}` : ""}`));
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
  } catch {
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
  if (!response.ok) throw new Error(found.error ?? String(response.status));
  return found;
}

export const encodePart = encodeURIComponent;
