// How pages ask the node that serves them.

export const session = {};

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== "" && value !== null && value !== undefined,
  );
  const text = new URLSearchParams(given).toString();
  return answered(await fetch(`/api/v1${path}${text ? `?${text}` : ""}`));
}

export async function post(path, body) {
  const data = typeof body === "string" ? body : JSON.stringify(body ?? {});
  return answered(
    await fetch(`/api/v1${path}`, {
      method: "POST",
      body: data,
      headers: { "x-kbroker-token": session.token },
    }),
  );
}

async function answered(response) {
  const found = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) throw new Error(found.error ?? String(response.status));
  return found;
}

export const part = encodeURIComponent;
