"""Tests of ApiVersions: the broker serves exactly the versions that it advertises."""

from __future__ import annotations

import struct
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker import Broker
from kbroker.cluster import ConfigResource, ResourceType
from kbroker.handlers import api_versions
from kbroker.handlers.api_versions import TELEMETRY_APIS
from kbroker.handlers.context import Context
from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import decode, encode_bytes
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import encode_request
from kbroker.protocol.messages.api_versions import ApiVersionsResponse

from ..brokers import started
from ..wire import ConnectionClosed, Wire, connected, create_topic, request

SERVED = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (0, 18),
    ApiKey.LIST_OFFSETS: (0, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (0, 10),
    ApiKey.OFFSET_FETCH: (0, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 5),
    ApiKey.CREATE_TOPICS: (0, 7),
    ApiKey.DELETE_TOPICS: (0, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 6),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (0, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (0, 5),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
    ApiKey.SHARE_FETCH: (1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (0, 0),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0),
    ApiKey.PUSH_TELEMETRY: (0, 0),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
    ApiKey.UNREGISTER_CONTROLLER: (0, 0),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (0, 0),
    ApiKey.READ_SHARE_GROUP_STATE: (0, 0),
    ApiKey.WRITE_SHARE_GROUP_STATE: (0, 1),
    ApiKey.DELETE_SHARE_GROUP_STATE: (0, 0),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (0, 1),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (0, 1),
    ApiKey.STREAMS_GROUP_DESCRIBE: (0, 1),
}
# Versions that are advertised while no metrics subscription exists.
ADVERTISED = {key: each for key, each in SERVED.items() if key not in TELEMETRY_APIS}


@pytest.mark.parametrize("version", range(6))
async def test_api_versions_lists_all_served_versions(wire: Wire, version: int) -> None:
    hello = request(ApiKey.API_VERSIONS, client_software_name="a-b.c9", client_software_version="1")
    response = await wire.ask(ApiKey.API_VERSIONS, version, hello)
    assert response.error_code == 0
    assert {r.api_key: (r.min_version, r.max_version) for r in response.api_keys} == ADVERTISED


async def test_api_versions_response_has_header_version_0(wire: Wire) -> None:
    hello = request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1")
    await wire.send(ApiKey.API_VERSIONS, 3, hello)
    frame = await wire.receive_frame()
    # The error code follows the correlation ID directly, then a compact array.
    assert struct.unpack_from(">ihB", frame) == (1, 0, len(ADVERTISED) + 1)


@pytest.mark.parametrize("version", [6, 127, 32767, -1, -32768])
@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff\xff", b"garbage instead of body"])
async def test_unknown_api_versions_version_gets_response_in_version_0(
    wire: Wire, version: int, body: bytes
) -> None:
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 77, -1)
    await wire.send_bytes(struct.pack(">i", len(header + body)) + header + body)
    frame = await wire.receive_frame()
    assert struct.unpack_from(">i", frame) == (77,)
    response, end = decode(ApiVersionsResponse, frame, 0, 4)
    assert end == len(frame)
    row = response.api_keys[0]
    assert (response.error_code, len(response.api_keys)) == (ErrorCode.UNSUPPORTED_VERSION, 1)
    assert (row.api_key, row.min_version, row.max_version) == (ApiKey.API_VERSIONS, 0, 5)
    assert await wire.works()


def unserved_versions() -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = [
        (key, top + 1) for key, (_, top) in SERVED.items() if key != ApiKey.API_VERSIONS
    ]
    pairs += [(key, 0) for key in ApiKey if key not in SERVED]
    return [*pairs, (4, 0), (7, 0), (93, 0), (-1, 0), (32767, 0), (ApiKey.METADATA, -1)]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "version"), unserved_versions())
async def test_unserved_api_or_version_closes_connection(
    broker: Broker, wire: Wire, key: int, version: int
) -> None:
    frame = struct.pack(">hhih", key, version, 1, -1) + bytes(20)
    await wire.send_bytes(struct.pack(">i", len(frame)) + frame)
    assert await wire.wait_closed() == b""
    assert broker.node.context.error_log.unhandled_errors == 0
    async with connected(broker.endpoint) as other:
        assert await other.works()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "software", "code"),
    [
        ("a", "1", 0),
        ("apache-kafka-java", "4.3.0", 0),
        ("a.b-c", "1-x.2", 0),
        ("", "1", 42),
        ("a", "", 42),
        ("-a", "1", 42),
        ("a", "1.", 42),
        ("a b", "1", 42),
        ("a_b", "1", 42),
        ("a\n", "1", 42),
        ("ä", "1", 42),
        ("a/b", "1", 42),
    ],
)
@pytest.mark.parametrize("version", [3, 4, 5])
async def test_client_software_name_and_version_are_validated(
    wire: Wire, version: int, name: str, software: str, code: int
) -> None:
    hello = request(
        ApiKey.API_VERSIONS, client_software_name=name, client_software_version=software
    )
    response = await wire.ask(ApiKey.API_VERSIONS, version, hello)
    assert response.error_code == code
    assert bool(response.api_keys) == (code == 0)  # Kafka omits them in errors
    assert await wire.works()


@pytest.mark.slow
@pytest.mark.parametrize(("key", "versions"), SERVED.items(), ids=lambda each: str(each))
async def test_every_advertised_version_gets_response_of_its_version(
    broker: Broker, wire: Wire, key: ApiKey, versions: tuple[int, int]
) -> None:
    """Each empty request must reach a handler and get a response of its version."""
    for version in range(versions[0], versions[1] + 1):
        fields: dict[str, object] = {"acks": 1} if key == ApiKey.PRODUCE else {}
        if key == ApiKey.API_VERSIONS:
            fields = {"client_software_name": "a", "client_software_version": "1"}
        await wire.ask(key, version, request(key, **fields))


async def test_client_id_is_decoded_in_both_header_versions(broker: Broker, wire: Wire) -> None:
    """The client ID is a non-compact string even in flexible request headers."""
    ask = request(ApiKey.METADATA, topics=[])
    for version in (8, 9):
        for client_id in (None, "", "x" * 200):
            parts = encode_request(ApiKey.METADATA, version, version, client_id, ask)
            await wire.send_bytes(b"".join(parts))  # type: ignore[arg-type]
            assert (await wire.receive_frame())[:4] == version.to_bytes(4, "big")


async def test_client_raises_connection_closed_after_end_of_stream(wire: Wire) -> None:
    await wire.send_bytes(b"\xff" * 4)
    with pytest.raises(ConnectionClosed):
        await wire.receive_frame()


HELLO = request(ApiKey.API_VERSIONS, client_software_name="a-b.c9", client_software_version="1")


async def test_cached_response_shows_each_change_at_once(
    broker: Broker, pytestconfig: pytest.Config
) -> None:
    """After random changes, the cached response equals a freshly built one in every version."""
    random = Random(pytestconfig.getoption("--seed"))
    cluster, apis = broker.node.cluster, load_apis()
    metrics = ConfigResource(ResourceType.CLIENT_METRICS, "all")
    shown = set()
    async with connected(broker.endpoint) as wire:
        for number in range(30):
            match random.randrange(4):
                case 0:
                    values = {} if cluster.own_configs(metrics) else {"metrics": ""}
                    await cluster.alter_configs(metrics, values, cause="test")
                case 1:
                    levels = cluster.features | {"transaction.version": random.randrange(3)}
                    revision = cluster.features_revision
                    await cluster.finalize_features(levels, revision=revision, cause="test")
                case 2:
                    await create_topic(wire, f"t{number}")
            version = random.randrange(6)
            response = await wire.ask(ApiKey.API_VERSIONS, version, HELLO)
            ctx = SimpleNamespace(version=version, node=broker.node, apis=apis)
            fresh = encode_bytes(api_versions._response(cast(Context, ctx)), version)
            assert response == decode(ApiVersionsResponse, fresh, version)[0]
            shown.add(fresh)
    assert len(shown) > 5


async def test_connections_share_one_cached_response(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(broker.endpoint) as wire:
        first = await wire.ask(ApiKey.API_VERSIONS, 4, HELLO)
    monkeypatch.setattr(api_versions, "_row", None)
    for _ in range(3):
        async with connected(broker.endpoint) as wire:
            assert await wire.ask(ApiKey.API_VERSIONS, 4, HELLO) == first


def expecting(cluster_id: str | None, node_id: int) -> Any:
    """Return a request of a client that expects a cluster and a node."""
    return request(
        ApiKey.API_VERSIONS,
        client_software_name="a",
        client_software_version="1",
        cluster_id=cluster_id,
        node_id=node_id,
    )


async def test_client_of_another_cluster_or_node_must_rebootstrap() -> None:
    """KIP-1242: the response has no APIs, and the connection stays usable."""
    async with started(nodes=2) as broker:
        own = broker.node.cluster.id
        for node in broker.nodes:
            other = 3 - node.node.id
            for cluster_id, node_id in (("other", node.node.id), (own, other), (own, -2)):
                async with connected(node.endpoint) as wire:
                    ask = expecting(cluster_id, node_id)
                    response = await wire.ask(ApiKey.API_VERSIONS, 5, ask)
                    assert response == ApiVersionsResponse(
                        error_code=ErrorCode.REBOOTSTRAP_REQUIRED
                    )
                    # Older versions do not have the fields.
                    assert (await wire.ask(ApiKey.API_VERSIONS, 4, ask)).api_keys
            async with connected(node.endpoint) as wire:
                ask = expecting(own, node.node.id)
                response = await wire.ask(ApiKey.API_VERSIONS, 5, ask)
                assert (response.error_code, bool(response.api_keys)) == (0, True)


@pytest.mark.parametrize(("cluster_id", "node_id"), [(None, 1), ("", -1), ("other", -1)])
async def test_cluster_id_without_node_id_is_rejected(
    wire: Wire, cluster_id: str | None, node_id: int
) -> None:
    """A node ID without a cluster ID is rejected as well."""
    response = await wire.ask(ApiKey.API_VERSIONS, 5, expecting(cluster_id, node_id))
    assert response == ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    assert await wire.works()
