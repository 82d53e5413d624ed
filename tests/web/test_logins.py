"""Authentication and permissions of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.endpoint import Endpoint
from kbroker.client.scram_users import remove_scram_password, set_scram_password
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.web.service import HttpService

from .client import HttpResponse, open_http_client
from .secured import basic_auth, secured_broker, secured_config

API = "/api/v1"
FAILURE_MS = 600_000


@asynccontextmanager
async def secured(mechanism: str, **more: str) -> AsyncIterator[tuple[Broker, Endpoint]]:
    """Run a broker with users, and yield it with the address of its console."""
    config = secured_config(mechanism, http_port="0", **more)
    http = HttpService(config)
    async with secured_broker(config, http) as broker:
        yield broker, http.endpoint_of(1)


async def ask(
    endpoint: Endpoint, path: str, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    async with open_http_client(endpoint) as client:
        return await client.ask(path, headers=headers)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_only_users_of_the_broker_are_authenticated(mechanism: str) -> None:
    async with secured(mechanism) as (_, endpoint):
        for headers in (
            {},
            basic_auth("admin", "wrong"),
            basic_auth("nobody", "hush"),
            {"Authorization": "Basic x"},
        ):
            for path in ("/console/", f"{API}/topics", f"{API}/session", f"{API}/overview"):
                response = await ask(endpoint, path, headers)
                assert response.status == 401, path
                assert response.headers["www-authenticate"].startswith("Basic")
        response = await ask(endpoint, f"{API}/session", basic_auth("admin", "hush"))
        assert response.json()["user"] == "admin"
        assert (await ask(endpoint, f"{API}/overview", basic_auth("admin", "hush"))).status == 200
        assert (await ask(endpoint, "/livez")).status == 200


async def test_authenticated_users_are_limited_by_acls() -> None:
    async with secured("PLAIN") as (_, endpoint), open_http_client(endpoint) as client:
        admin, alice = basic_auth("admin", "hush"), basic_auth("alice", "secret")
        token = (await client.ask(f"{API}/session", headers=admin)).json()["token"]
        line = b'{"value": "x"}\n'
        for login, status in ((alice, 403), (admin, 404)):
            headers = {**login, "X-Kbroker-Token": token}
            path = f"{API}/topics/__consumer_offsets/records"
            response = await client.ask(path, "POST", headers, line)
            assert response.status in (status, 404), response.text
        for path in ("/activity", "/cluster", "/storage", "/explain/client/x", "/explain/group/g"):
            assert (await client.ask(API + path, headers=alice)).status == 403, path
            assert (await client.ask(API + path, headers=admin)).status == 200, path
        assert (await client.ask(f"{API}/topics", headers=alice)).json()["topics"] == []


async def test_password_is_not_requested_on_exposed_address() -> None:
    async with secured("PLAIN", http_host="0.0.0.0") as (_, endpoint):
        response = await ask(endpoint, f"{API}/topics", basic_auth("admin", "hush"))
        assert response.status == 403
        assert "passwords over unencrypted HTTP" in response.json()["error"]


async def test_failed_login_delays_only_its_client() -> None:
    delay = {"connection_failed_authentication_delay_ms": str(FAILURE_MS)}
    async with secured("PLAIN", **delay) as (_, endpoint), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask, endpoint, f"{API}/session", basic_auth("nobody", "hush"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        response = await ask(endpoint, f"{API}/session", basic_auth("admin", "hush"))
        assert response.status == 200
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def with_bob() -> AsyncIterator[tuple[ClusterClient, Endpoint]]:
    """Run a broker with the SCRAM user bob, and yield a client with the address of its console."""
    async with secured("SCRAM-SHA-256") as (broker, endpoint):
        security = Security(None, Credentials("SCRAM-SHA-256", "admin", "hush"))
        async with open_cluster([broker.nodes[0].endpoint], security=security) as cluster:
            await set_scram_password(cluster, "bob", "old")
            yield cluster, endpoint


async def status_with(endpoint: Endpoint, password: str) -> int:
    return (await ask(endpoint, f"{API}/session", basic_auth("bob", password))).status


async def test_deleted_user_is_rejected_at_once() -> None:
    async with with_bob() as (cluster, endpoint):
        assert await status_with(endpoint, "old") == 200
        await remove_scram_password(cluster, "bob", ScramMechanism.SHA_256)
        assert await status_with(endpoint, "old") == 401


async def test_old_password_is_rejected_at_once() -> None:
    async with with_bob() as (cluster, endpoint):
        assert await status_with(endpoint, "old") == 200
        await set_scram_password(cluster, "bob", "new")
        assert await status_with(endpoint, "old") == 401
        assert await status_with(endpoint, "new") == 200


async def test_user_that_is_deleted_during_the_check_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with with_bob() as (cluster, endpoint), trio.open_nursery() as nursery:
        computing, deleted = trio.Event(), trio.Event()
        final = ScramClient.final

        def slow_final(client: ScramClient, answer: bytes) -> bytes:
            trio.from_thread.run_sync(computing.set)
            trio.from_thread.run(deleted.wait)
            return final(client, answer)

        monkeypatch.setattr("kbroker.web.logins.ScramClient.final", slow_final)
        statuses: list[int] = []

        async def log_in() -> None:
            statuses.append(await status_with(endpoint, "old"))

        nursery.start_soon(log_in)
        await computing.wait()
        monkeypatch.undo()
        await remove_scram_password(cluster, "bob", ScramMechanism.SHA_256)
        deleted.set()
    assert statuses == [401]
