"""Cross-site requests to all endpoints that change something."""

from __future__ import annotations

import pytest

from kbroker.web.console.api import ROOT

from .consoles import Console, console

# The path parameters of all routes. Nothing with these names exists, except for node 1.
PARAMETERS = {
    "{topic}": "t",
    "{group:path}": "g",
    "{name:path}": "x",
    "{subject:path}": "s",
    "{broker}": "1",
    "{partition}": "0",
    "{offset}": "0",
}


def write_paths(client: Console) -> list[str]:
    """Return the paths of all POST routes."""
    found = []
    assert client.service.console is not None
    for route in client.service.console.routes(client.broker.nodes[0]):
        if "POST" in (route.methods or ()):
            path = route.path.removeprefix(ROOT)
            for name, value in PARAMETERS.items():
                path = path.replace(name, value)
            assert "{" not in path
            found.append(path)
    assert len(found) > 25
    return found


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-Kbroker-Token": "wrong"},
    ],
    ids=lambda each: " ".join(next(iter(each.items()))),
)
async def test_cross_site_requests_change_nothing(headers: dict[str, str]) -> None:
    async with console() as client:
        token = (await client.get("/session"))["token"]
        for path in write_paths(client):
            given = {"X-Kbroker-Token": token, **headers}
            response = await client.http.ask(ROOT + path, "POST", given, b"{}")
            assert response.status == 403, path
