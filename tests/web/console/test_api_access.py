"""Permissions of the console: every route, with ACLs for the address of the viewer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio

from kbroker.broker import Broker
from kbroker.client.acls import EVERY_ACL, add_acls, remove_acls
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.process.http import http_service
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.messages.offsets import OffsetCommitRequest
from kbroker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from ...schemas.client import RegistryClient
from ...schemas.client import record as avro_record
from ..client import HttpClient, HttpResponse
from ..secured import basic_auth, secured_broker, secured_config
from .consoles import API, record
from .test_schemas import framed

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
ALICE, ADMIN = basic_auth("alice", "secret"), basic_auth("admin", "hush")
TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
READ, WRITE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
CREATE, ALTER, ALTER_CONFIGS = AclOperation.CREATE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
COUNTRY = avro_record("Order", ("country", "string"))


SET_TOPIC = b'{"set": {"retention.ms": "1000"}}'
SET_BROKER = b'{"set": {"log.retention.ms": "1000"}}'
SET_LIMIT = b'{"set": {"share.delivery.count.limit": "4"}}'


class Route(NamedTuple):
    """A route with the permissions that it needs, and its status if the viewer has them."""

    path: str
    needs: tuple[tuple[AclOperation, AclResourceType], ...]
    is_change: bool = False
    body: bytes = b"{}"
    permitted_status: int = 200


ROUTES = [
    Route("/topics/{topic}", ((DESCRIBE, TOPIC),)),
    Route("/topics/{topic}/config", ((DESCRIBE_CONFIGS, TOPIC),)),
    Route("/topics/{topic}/permissions", ((DESCRIBE, TOPIC),)),
    # The topic exists already.
    Route("/topics", ((CREATE, TOPIC),), True, b'{"name": "t"}', 409),
    Route("/topics/delete", ((DELETE, TOPIC),), True, b'{"topics": ["t"]}'),
    Route("/topics/{topic}/partitions", ((ALTER, TOPIC),), True, b'{"count": 2}'),
    Route("/topics/{topic}/delete-records", ((DELETE, TOPIC),), True, b'{"to": "start"}'),
    Route("/topics/{topic}/config", ((ALTER_CONFIGS, TOPIC),), True, SET_TOPIC),
    Route("/groups/{group:path}/config", ((ALTER_CONFIGS, GROUP),), True, SET_LIMIT),
    Route("/brokers/{broker}/config", ((ALTER_CONFIGS, CLUSTER),), True, SET_BROKER),
    Route("/topics/{topic}/messages", ((READ, TOPIC),)),
    Route("/topics/{topic}/live", ((READ, TOPIC),)),
    Route("/topics/{topic}/records/{partition}/{offset}", ((READ, TOPIC),)),
    Route("/topics/{topic}/records/{partition}/{offset}/{part}", ((READ, TOPIC),)),
    Route("/topics/{topic}/records", ((WRITE, TOPIC),), True, b'{"value": "x"}\n'),
    Route(
        "/topics/{topic}/records/{partition}/{offset}/resend",
        ((READ, TOPIC), (WRITE, TOPIC)),
        True,
    ),
    Route("/groups/{group:path}/details", ((DESCRIBE, GROUP),)),
    Route("/groups/{group:path}/dead-letter-queue", ((DESCRIBE, GROUP),)),
    # The group is no streams group.
    Route("/groups/{group:path}/topology", ((DESCRIBE, GROUP),), permitted_status=404),
    Route(
        "/groups/{group:path}/seek",
        ((READ, GROUP), (READ, TOPIC)),
        True,
        b'{"to": "start", "topics": {"t": null}, "dry_run": false}',
    ),
    # The group exists already.
    Route(
        "/groups/{group:path}/create",
        ((READ, GROUP), (DESCRIBE, GROUP), (READ, TOPIC)),
        True,
        b'{"type": "share", "to": "start", "topics": {"t": null}}',
        409,
    ),
    Route(
        "/groups/{group:path}/delete",
        ((DELETE, GROUP), (DESCRIBE, GROUP)),
        True,
        b'{"dry_run": false}',
    ),
    Route(
        "/groups/{group:path}/delete-offsets",
        ((DELETE, GROUP), (DESCRIBE, GROUP), (READ, TOPIC)),
        True,
        b'{"topics": {"t": null}}',
    ),
    # The group has no such member.
    Route(
        "/groups/{group:path}/remove-members",
        ((READ, GROUP), (DESCRIBE, GROUP)),
        True,
        b'{"members": ["m"]}',
        404,
    ),
    Route("/groups/delete", ((DELETE, GROUP),), True, b'{"groups": ["g"]}'),
    Route("/groups/{group:path}/config", ((DESCRIBE_CONFIGS, GROUP),)),
    Route("/brokers/{broker}/config", ((DESCRIBE_CONFIGS, CLUSTER),)),
    Route("/activity", ((DESCRIBE, CLUSTER),)),
    Route("/cluster", ((DESCRIBE, CLUSTER),)),
    Route("/storage", ((DESCRIBE, CLUSTER),)),
    Route("/placement", ((DESCRIBE, CLUSTER),)),
    # The partitions do not exist, and no other broker can take those that do.
    Route("/placement/reassign", ((ALTER, CLUSTER),), True, permitted_status=400),
    Route("/placement/move-topic", ((ALTER, CLUSTER),), True, permitted_status=400),
    Route("/placement/cancel", ((ALTER, CLUSTER),), True, permitted_status=400),
    Route("/placement/elect", ((ALTER, CLUSTER),), True),
    Route("/placement/drain", ((ALTER, CLUSTER),), True, permitted_status=400),
    Route("/placement/rebalance", ((ALTER, CLUSTER), (DESCRIBE_CONFIGS, CLUSTER)), True),
    Route(
        "/transactions/{name:path}/abort",
        ((WRITE, TRANSACTIONAL_ID), (DESCRIBE, TRANSACTIONAL_ID)),
        True,
        permitted_status=404,
    ),
    Route("/users", ((DESCRIBE, CLUSTER),)),
    Route("/users/set", ((ALTER, CLUSTER),), True, b'{"user": "bob", "password": "x"}'),
    Route(
        "/users/delete",
        ((ALTER, CLUSTER), (DESCRIBE, CLUSTER)),
        True,
        b'{"user": "eve"}',
        permitted_status=404,
    ),
    Route("/acls", ((DESCRIBE, CLUSTER),)),
    Route(
        "/acls/explain?principal=bob&operation=read&resource_type=topic&resource=t",
        ((DESCRIBE, CLUSTER),),
    ),
    Route("/acls/add", ((ALTER, CLUSTER),), True, permitted_status=400),
    Route("/acls/remove", ((ALTER, CLUSTER),), True, permitted_status=400),
    Route("/quotas", ((DESCRIBE_CONFIGS, CLUSTER),)),
    Route("/quotas/set", ((ALTER_CONFIGS, CLUSTER),), True, permitted_status=400),
    Route("/explain/group/{group:path}", ((DESCRIBE, GROUP),)),
    Route("/explain/transaction/{name:path}", ((DESCRIBE, TRANSACTIONAL_ID),)),
    Route("/explain/client/{name:path}", ((DESCRIBE, CLUSTER),)),
    Route("/explain/partition/{topic}/{partition}", ((DESCRIBE, TOPIC),)),
]
# Routes that return 404 unless the broker runs under test.
UNDER_TEST = {"/tests", "/tests/disarm", "/tests/advance"}
# Routes that show each authenticated user only what it may see.
FILTERED = {
    "/session",
    "/topics",
    "/groups",
    "/overview",
    "/transactions",
    "/transactions/hanging",
    "/transactions/abort",
    "/tokens",
    "/tokens/create",
    "/tokens/renew",
    "/tokens/expire",
}
# Routes whose permissions the schema registry checks; see test_registry.py.
OF_REGISTRY = {
    "/schemas",
    "/schemas/{subject:path}/versions",
    "/schemas/{subject:path}/versions/{version}",
    "/schemas/{subject:path}/compare",
    "/schemas/{subject:path}/register",
    "/schemas/{subject:path}/check",
    "/schemas/{subject:path}/level",
    "/schemas/{subject:path}/delete",
    "/schema-level",
}
VALUES = {
    "{topic}": "t",
    "{group:path}": "g",
    "{name:path}": "x",
    "{broker}": "1",
    "{partition}": "0",
    "{offset}": "0",
    "{part}": "value",
}
NAMES = {TOPIC: "t", GROUP: "g", TRANSACTIONAL_ID: "x", CLUSTER: CLUSTER_NAME}


class Shop(NamedTuple):
    """A broker with ACLs, a topic with one record that has a schema, and a console."""

    broker: Broker
    console: Endpoint
    cluster: ClusterClient
    routes: list[str]

    async def allow(
        self,
        permissions: Iterable[tuple[AclOperation, AclResourceType]],
        host: str,
        permission: AclPermission = ALLOW,
        name: str | None = None,
    ) -> None:
        """Add ACLs for alice from one address."""
        await add_acls(
            self.cluster,
            [
                Acl(
                    Pattern(kind, PatternType.LITERAL, name or NAMES[kind]),
                    "User:alice",
                    host,
                    operation,
                    permission,
                )
                for operation, kind in permissions
            ],
        )

    async def ask(
        self,
        path: str,
        login: Mapping[str, str] = ALICE,
        host: str = HERE,
        *,
        body: bytes | None = None,
    ) -> HttpResponse:
        """Send a request from a local address. For a stream, read only the head of the response."""
        endpoint = self.console
        async with await trio.open_tcp_stream(*endpoint, local_address=host) as stream:
            client = HttpClient(stream, str(endpoint))
            if body is None:
                if path.endswith("/live"):
                    return await client.head_of(path, login)
                return await client.ask(path, headers=login)
            session = await client.ask(f"{API}/session", headers=login)
            headers = {**login, "X-Kbroker-Token": session.json()["token"]}
            return await client.ask(path, "POST", headers, body)

    async def status(self, route: Route, host: str) -> int:
        body = route.body if route.is_change else None
        return (await self.ask(_filled(route.path), host=host, body=body)).status


def _filled(path: str) -> str:
    for name, value in VALUES.items():
        path = path.replace(name, value)
    return API + path


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    config = secured_config("PLAIN", http_port="0", registry_port="0")
    service = http_service(config, configured_listeners(config))
    assert service is not None
    assert service.http is not None
    assert service.registry is not None
    async with (
        secured_broker(config, service) as broker,
        open_cluster([broker.nodes[0].endpoint], dial=broker.dial_inside) as cluster,
    ):
        registry = RegistryClient(service.registry.endpoint_of(1), headers=ADMIN)
        schema = await registry.register("t-value", COUNTRY)
        await create_topics(cluster, [NewTopic("t", 1)])
        value = framed(schema, bytes([4]) + b"DE")
        await Producer(cluster).write({("t", 0): [record(value)]})
        console = service.http.console
        assert console is not None
        routes = [each.path for each in console.routes(broker.nodes[0])]
        yield Shop(broker, service.http.endpoint_of(1), cluster, routes)


async def commit(cluster: ClusterClient) -> None:
    """Create the group by committing an offset of the topic."""
    connection = await cluster.coordinator("g")
    partition = OffsetCommitRequest.Partition(partition_index=0, committed_offset=0)
    topic = OffsetCommitRequest.Topic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id="g", topics=[topic])
    response = await connection.ask(request, oldest=2, newest=9)
    assert not response.topics[0].partitions[0].error_code


async def test_each_route_needs_a_permission_or_filters_its_rows() -> None:
    known = {each.path.partition("?")[0] for each in ROUTES}
    known |= UNDER_TEST | FILTERED | OF_REGISTRY
    async with shop() as setup:
        found = {each.removeprefix(API) for each in setup.routes if each.startswith(API)}
        assert found == known
        for route in ROUTES:
            assert await setup.status(route, HERE) == 403, route.path
        for path in UNDER_TEST:
            body = None if path == "/tests" else b"{}"
            assert (await setup.ask(API + path, body=body)).status == 403, path
        overview = (await setup.ask(f"{API}/overview")).json()
        assert "may not DESCRIBE cluster kafka-cluster" in overview["missing_permission"]
        assert (overview["topics"], overview["groups"]) == (0, 0)
        assert overview["requests_per_second"] is None
        assert (await setup.ask(f"{API}/topics?internal=1")).json()["topics"] == []
        assert (await setup.ask(f"{API}/groups")).json()["groups"] == []
        assert (await setup.ask(f"{API}/transactions")).json()["transactions"] == []


@pytest.mark.slow
async def test_acl_for_one_host_counts_by_the_address_of_the_viewer() -> None:
    async with shop() as setup:
        for route in ROUTES:
            await commit(setup.cluster)
            await setup.allow(route.needs, ELSEWHERE)
            assert await setup.status(route, HERE) == 403, route.path
            assert await setup.status(route, ELSEWHERE) == route.permitted_status, route.path
            # a denial takes precedence over all ACLs that allow
            for permission in route.needs:
                await setup.allow([permission], ELSEWHERE, DENY)
            await commit(setup.cluster)
            assert await setup.status(route, ELSEWHERE) == 403, route.path
            await remove_acls(setup.cluster, [EVERY_ACL])


async def test_console_shows_schemas_to_viewers_who_may_read_them_only() -> None:
    async with shop() as setup:
        await setup.allow([(READ, TOPIC)], "*")
        (row,) = (await setup.ask(f"{API}/topics/t/messages?from=oldest")).json()["records"]
        assert "value_schema" not in row
        assert "country" not in str(row)
        decoded = f"{API}/topics/t/records/0/0/value?decoded=1"
        assert (await setup.ask(decoded)).status == 404
        url = f"{API}/topics/t/messages?from=oldest&where=value.country%3D%3D%22DE%22"
        assert (await setup.ask(url)).json()["records"] == []
        await setup.allow([(READ, TOPIC)], "*", name="_schemas")
        (row,) = (await setup.ask(f"{API}/topics/t/messages?from=oldest")).json()["records"]
        assert row["value_schema"]["subject"] == "t-value"
        assert (await setup.ask(decoded)).json() == {"country": "DE"}
        assert len((await setup.ask(url)).json()["records"]) == 1


async def test_responses_list_only_changes_that_the_acls_of_the_viewer_permit() -> None:
    async with shop() as setup:
        await commit(setup.cluster)
        await setup.allow([(DESCRIBE_CONFIGS, TOPIC), (ALTER, TOPIC)], HERE)
        await setup.allow([(READ, GROUP)], HERE)
        assert (await setup.ask(f"{API}/topics/t")).json()["may"] == ["ALTER"]
        listed = (await setup.ask(f"{API}/topics")).json()
        assert (listed["may"], listed["topics"][0]["may"]) == ([], ["ALTER"])
        assert (await setup.ask(f"{API}/topics/t/config")).json()["may"] == []
        assert (await setup.ask(f"{API}/groups/g/details")).json()["may"] == ["READ"]
        assert (await setup.ask(f"{API}/groups")).json()["may"] == ["CREATE"]
        await setup.allow([(CREATE, TOPIC)], HERE, name="other")
        assert (await setup.ask(f"{API}/topics")).json()["may"] == ["CREATE"]
        body = b'{"name": "another", "dry_run": false}'
        assert (await setup.ask(f"{API}/topics", body=body)).status == 403
        body = b'{"topics": ["t"], "dry_run": false}'
        assert (await setup.ask(f"{API}/topics/delete", body=body)).status == 403


async def test_topic_details_contain_configs_only_with_describe_configs() -> None:
    async with shop() as setup:
        await setup.allow([(READ, TOPIC)], HERE)
        found = (await setup.ask(f"{API}/topics/t")).json()
        assert (found["configs"], len(found["partitions"])) == (None, 1)
        await setup.allow([(DESCRIBE_CONFIGS, TOPIC)], HERE)
        assert (await setup.ask(f"{API}/topics/t")).json()["configs"] == {}


async def test_changes_of_offsets_need_read_on_the_topics_already_for_the_preview() -> None:
    async with shop() as setup:
        await commit(setup.cluster)
        await setup.allow([(READ, GROUP), (DELETE, GROUP), (DESCRIBE, TOPIC)], HERE)
        for path, body in (
            ("seek", b'{"to": "start"}'),
            ("create", b'{"type": "share", "to": "start", "topics": {"t": null}}'),
            ("delete-offsets", b'{"topics": {"t": null}}'),
        ):
            response = await setup.ask(f"{API}/groups/g/{path}", body=body)
            assert (response.status, "may not READ" in response.text) == (403, True), response.text
