"""Authentication and permissions of the registry."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.client.acls import add_acls, remove_acls
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.schemas.api import SchemaApi
from kbroker.schemas.service import RegistryService
from kbroker.schemas.topic import SchemaTopic
from kbroker.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from ..web.client import open_http_client
from ..web.secured import basic_auth, secured_broker, secured_config
from .client import RegistryClient

ADMIN, ALICE = basic_auth("admin", "hush"), basic_auth("alice", "secret")
SCHEMA = {"schema": '"string"'}
# Routes that every user may read: they reveal nothing about schemas.
OPEN = ("/", "/contexts", "/schemas/types", "/v1/metadata/id", "/v1/metadata/version")
READING = (
    ("GET", "/schemas"),
    ("GET", "/schemas/ids/1"),
    ("GET", "/schemas/ids/1/schema"),
    ("GET", "/schemas/ids/1/subjects"),
    ("GET", "/schemas/ids/1/versions"),
    ("GET", "/schemas/guids/x"),
    ("GET", "/schemas/guids/x/ids"),
    ("GET", "/subjects"),
    ("POST", "/subjects/orders-value"),
    ("GET", "/subjects/orders-value/metadata"),
    ("GET", "/subjects/orders-value/versions"),
    ("GET", "/subjects/orders-value/versions/1"),
    ("GET", "/subjects/orders-value/versions/1/schema"),
    ("GET", "/subjects/orders-value/versions/1/referencedby"),
    ("POST", "/compatibility/subjects/orders-value/versions"),
    ("POST", "/compatibility/subjects/orders-value/versions/1"),
    ("GET", "/config"),
    ("GET", "/config/orders-value"),
    ("GET", "/mode"),
    ("GET", "/mode/orders-value"),
)
CHANGING = (
    (AclOperation.WRITE, "POST", "/subjects/{}/versions"),
    (AclOperation.ALTER_CONFIGS, "PUT", "/config/{}"),
    (AclOperation.ALTER_CONFIGS, "DELETE", "/config/{}"),
    (AclOperation.ALTER_CONFIGS, "PUT", "/mode/{}"),
    (AclOperation.ALTER_CONFIGS, "DELETE", "/mode/{}"),
    (AclOperation.DELETE, "DELETE", "/subjects/{}/versions/1"),
    (AclOperation.DELETE, "DELETE", "/subjects/{}"),
)
FOR_ALL = (("PUT", "/config"), ("DELETE", "/config"), ("PUT", "/mode"), ("DELETE", "/mode"))
BODY = SCHEMA | {"compatibility": "NONE", "mode": "READWRITE"}
DENIED = 40301


@asynccontextmanager
async def secured(
    mechanism: str = "PLAIN", *, nodes: int | None = None, **more: str
) -> AsyncIterator[tuple[Broker, RegistryService]]:
    """Run a broker with users and a registry."""
    config = secured_config(mechanism, registry_port="0", **more)
    service = RegistryService(config)
    async with secured_broker(config, service, nodes=nodes) as broker:
        yield broker, service


SECURITY = Security(None, Credentials("PLAIN", "admin", "hush"))


async def allow(broker: Broker, operation: AclOperation, topic: str) -> None:
    """Permit alice an operation on a topic, and wait until the permission is in force."""
    pattern = Pattern(AclResourceType.TOPIC, PatternType.LITERAL, topic)
    acl = Acl(pattern, "User:alice", "*", operation, AclPermission.ALLOW)
    async with open_cluster([broker.nodes[0].endpoint], security=SECURITY) as cluster:
        await add_acls(cluster, [acl])


async def deny(broker: Broker, operation: AclOperation, topic: str) -> None:
    """Remove the permission of `allow`."""
    wanted = AclFilter(
        AclResourceType.TOPIC,
        topic,
        PatternType.LITERAL,
        "User:alice",
        "*",
        operation,
        AclPermission.ALLOW,
    )
    async with open_cluster([broker.nodes[0].endpoint], security=SECURITY) as cluster:
        assert len(await remove_acls(cluster, [wanted])) == 1


def test_every_route_is_covered_by_access_tests() -> None:
    nobody: Any = None
    routes = SchemaApi(nobody, nobody, nobody, nobody, nobody).routes()
    served_routes = {
        (method, re.sub(r"{[a-z]+}", "{}", each.path))
        for each in routes
        for method in (each.methods or set()) - {"HEAD"}
    }
    changing = [(method, path) for _, method, path in CHANGING]
    known = (*(("GET", path) for path in OPEN), *READING, *changing, *FOR_ALL)
    assert served_routes == {
        (method, re.sub(r"orders-value|(?<=/)[1x](?=/|$)", "{}", path)) for method, path in known
    }


async def test_general_routes_need_no_permission() -> None:
    async with secured() as (_, service):
        endpoint = RegistryClient(service.endpoint_of(1), ALICE)
        for path in OPEN:
            assert (await endpoint.ask("GET", path)).status == 200


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_only_users_of_the_broker_are_authenticated(mechanism: str) -> None:
    async with secured(mechanism) as (_, service):
        for headers in (
            {},
            basic_auth("admin", "wrong"),
            basic_auth("nobody", "hush"),
            {"Authorization": "Basic x"},
            {"Authorization": "Bearer hush"},
        ):
            for path in ("/", "/subjects", "/nowhere"):
                async with open_http_client(service.endpoint_of(1)) as client:
                    response = await client.ask(path, headers=headers)
                assert response.status == 401, path
                assert response.json()["error_code"] == 401
                assert response.headers["www-authenticate"].startswith("Basic")
        admin = RegistryClient(service.endpoint_of(1), ADMIN)
        assert await admin.register("orders-value", '"string"') == 1
        assert await admin.get("/subjects") == ["orders-value"]


async def test_user_without_permissions_cannot_read_or_write() -> None:
    async with secured() as (_, service):
        admin = RegistryClient(service.endpoint_of(1), ADMIN)
        alice = RegistryClient(service.endpoint_of(1), ALICE)
        await admin.register("orders-value", '"string"')
        changing = [(method, path.format("orders-value")) for _, method, path in CHANGING]
        for method, path in (*READING, *changing, *FOR_ALL):
            body = None if method == "GET" else BODY
            assert await alice.refusal(method, path, body) == DENIED, (method, path)
        assert await admin.get("/subjects/orders-value/versions") == [1]


async def test_read_on_schemas_topic_permits_reading_all_schemas() -> None:
    async with secured() as (broker, service):
        admin = RegistryClient(service.endpoint_of(1), ADMIN)
        alice = RegistryClient(service.endpoint_of(1), ALICE)
        await admin.register("orders-value", '"string"')
        await allow(broker, AclOperation.READ, "_schemas")
        for method, path in READING:
            response = await alice.ask(method, path, None if method == "GET" else SCHEMA)
            assert response.status in (200, 404), (method, path, response)
        assert await alice.refusal("POST", "/subjects/orders-value/versions", SCHEMA) == DENIED


async def test_permission_on_topic_permits_changing_its_subjects() -> None:
    async with secured() as (broker, service):
        alice = RegistryClient(service.endpoint_of(1), ALICE)
        for operation, method, path in CHANGING:
            await allow(broker, operation, "orders")
            for subject in ("orders-value", "orders-key", "orders"):
                response = await alice.ask(method, path.format(subject), BODY)
                assert response.status in (200, 404), (method, path, response)
            for subject in ("others-value", "orders-values", "_schemas"):
                assert await alice.refusal(method, path.format(subject), BODY) == DENIED
        for method, path in FOR_ALL:
            assert await alice.refusal(method, path, BODY) == DENIED


async def test_permission_on_schemas_topic_permits_changing_all_subjects() -> None:
    async with secured() as (broker, service):
        alice = RegistryClient(service.endpoint_of(1), ALICE)
        for operation, method, path in CHANGING:
            await allow(broker, operation, "_schemas")
            response = await alice.ask(method, path.format("orders-value"), BODY)
            assert response.status in (200, 404), (method, path, response)
        for method, path in FOR_ALL:
            assert (await alice.ask(method, path, BODY)).status == 200


async def test_change_is_denied_if_the_permission_is_removed_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = released = trio.Event()
    write = SchemaTopic.write

    async def slow_write(topic: SchemaTopic, plan: Any) -> Any:
        waiting.set()
        await released.wait()
        return await write(topic, plan)

    async with secured() as (broker, service):
        admin = RegistryClient(service.endpoint_of(1), ADMIN)
        alice = RegistryClient(service.endpoint_of(1), ALICE)
        await admin.register("orders-value", '"string"')
        await admin.put("/config/orders-value", BODY)
        await admin.put("/mode/orders-value", BODY)
        refusals = []

        async def change(method: str, path: str) -> None:
            body = {**BODY, "schema": '"int"', "mode": "READONLY", "compatibility": "FULL"}
            refusals.append(await alice.refusal(method, path.format("orders-value"), body))

        monkeypatch.setattr("kbroker.schemas.topic.SchemaTopic.write", slow_write)
        for operation, method, path in CHANGING:
            waiting, released = trio.Event(), trio.Event()
            await allow(broker, operation, "orders")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(change, method, path)
                await waiting.wait()
                await deny(broker, operation, "orders")
                released.set()
        assert refusals == [DENIED] * len(CHANGING)
        assert await admin.get("/subjects/orders-value/versions") == [1]
        assert (await admin.get("/config/orders-value"))["compatibilityLevel"] == "NONE"
        assert (await admin.get("/mode/orders-value"))["mode"] == "READWRITE"


async def test_without_authorizer_every_user_may_do_everything() -> None:
    async with secured(authorizer_class_name="") as (_, service):
        alice = RegistryClient(service.endpoint_of(1), ALICE)
        assert await alice.register("orders-value", '"string"') == 1
        assert (await RegistryClient(service.endpoint_of(1)).ask("GET", "/subjects")).status == 401


async def test_failed_login_delays_only_its_client() -> None:
    more = secured("SCRAM-SHA-256", connection_failed_authentication_delay_ms="600000")
    async with more as (_, service), trio.open_nursery() as nursery:
        answered = []

        async def guess(name: str) -> None:
            stranger = RegistryClient(service.endpoint_of(1), basic_auth(name, "wrong"))
            answered.append(await stranger.ask("GET", "/subjects"))

        for name in ("admin", "nobody", "alice"):
            nursery.start_soon(guess, name)
        admin = RegistryClient(service.endpoint_of(1), ADMIN)
        await admin.register("orders-value", '"string"')
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert answered == []
        nursery.cancel_scope.cancel()


async def test_audit_log_contains_failed_logins_and_denied_operations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with secured() as (_, service):
        with caplog.at_level(logging.INFO, "kbroker.audit"):
            stranger = RegistryClient(service.endpoint_of(1), basic_auth("alice", "wrong"))
            await stranger.ask("GET", "/subjects")
            alice = RegistryClient(service.endpoint_of(1), ALICE | {"User-Agent": "x/1"})
            await alice.ask("POST", "/subjects/orders-value/versions", SCHEMA)
    found = [each.fields for each in caplog.records if each.name == "kbroker.audit"]  # type: ignore[attr-defined]
    failed, denied = (each for each in found if each["host"] == "127.0.0.1")
    assert (failed["outcome"], failed["principal"]) == ("authentication failed", "User:alice")
    assert denied["outcome"] == "denied"
    assert (denied["principal"], denied["operation"]) == ("User:alice", "WRITE")
    assert (denied["resource"], denied["api"]) == ("orders", "SchemaRegistry")
    assert (denied["version"], denied["client_id"]) == ("POST", "x/1")


async def test_users_can_write_at_each_node() -> None:
    async with secured(nodes=3) as (broker, service):
        clients = [RegistryClient(service.endpoint_of(each.id), ADMIN) for each in broker.nodes]
        for number, client in enumerate(clients, 1):
            schema = {"type": "fixed", "name": "F", "size": number}
            assert await client.register(f"orders-{number}", schema) == number
        for client in clients:
            assert len(await client.get("/subjects")) == 3


async def test_successful_login_is_cached_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = []

    async def accept_all(self: object, users: object, mechanism: str, name: str, _: str) -> bool:
        checks.append(name)
        return True

    monkeypatch.setattr("kbroker.web.logins.HttpAuthenticator._accepts", accept_all)
    async with secured(authorizer_class_name="") as (_, service):
        admin = RegistryClient(service.endpoint_of(1), ADMIN)
        for _ in range(3):
            await admin.get("/subjects")
        assert checks == ["admin"]
        await RegistryClient(service.endpoint_of(1), basic_auth("admin", "other")).get("/subjects")
        assert checks == ["admin", "admin"]
        monkeypatch.setattr("kbroker.web.logins.CACHE_SECONDS", 0)
        for _ in range(2):
            await RegistryClient(service.endpoint_of(1), ALICE).get("/subjects")
        assert checks[2:] == ["alice", "alice"]
