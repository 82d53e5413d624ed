"""Tests of elections, reassignments, features and unregistration on a single node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from kbroker.storage.errors import StorageError

from ..brokers import started
from ..wire import Wire, connected, create_topic, metadata, request

NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def codes(rows: list[Any], of_topic: str) -> dict[tuple[str, int], int]:
    """Return the error codes by topic and partition, for either naming of the response fields."""
    found = {}
    for topic in rows:
        for part in getattr(topic, of_topic):
            name = getattr(topic, "topic", None) or topic.name
            index = part.partition_id if of_topic == "partition_result" else part.partition_index
            found[name, index] = part.error_code
            assert bool(part.error_message) == bool(part.error_code)
    return found


# -- ElectLeaders


async def elect(wire: Wire, version: int, kind: int, *topics: tuple[str, list[int]] | None) -> Any:
    rows = None
    if None not in topics:
        rows = [ElectLeadersRequest.Topic(topic=t[0], partitions=t[1]) for t in topics if t]
    ask = ElectLeadersRequest(election_type=kind, topic_partitions=rows)
    return await wire.ask(ApiKey.ELECT_LEADERS, version, ask)


@pytest.mark.parametrize("version", range(3))
async def test_election_is_not_needed_if_preferred_replica_leads(wire: Wire, version: int) -> None:
    await create_topic(wire, "a", 2)
    response = await elect(wire, version, 0, ("a", [0, 1, 2, -1]), ("b", [0]))
    assert response.error_code == 0
    assert codes(response.replica_election_results, "partition_result") == {
        ("a", 0): NOT_NEEDED,
        ("a", 1): NOT_NEEDED,
        ("a", 2): UNKNOWN,
        ("a", -1): UNKNOWN,
        ("b", 0): UNKNOWN,
    }
    assert [p.leader_epoch for p in (await metadata(wire, ["a"])).topics[0].partitions] == [0, 0]


@pytest.mark.parametrize("kind", [0, 1])
async def test_election_of_all_partitions_lists_topics_without_unneeded_elections(
    wire: Wire, kind: int
) -> None:
    await create_topic(wire, "a", 2)
    (row,) = (await elect(wire, 2, kind, None)).replica_election_results
    assert (row.topic, row.partition_result) == ("a", [])


@pytest.mark.parametrize("kind", [2, -1])
async def test_unknown_election_type_is_rejected(wire: Wire, kind: int) -> None:
    response = await elect(wire, 1, kind, ("a", [0]))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    rows = codes(response.replica_election_results, "partition_result")
    assert rows == {("a", 0): ErrorCode.INVALID_REQUEST}
    assert (await elect(wire, 2, kind, None)).replica_election_results == []


async def test_election_gives_leader_to_leaderless_partition(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "a")
    partition = broker.node.cluster.topics["a"].partitions[0]
    partition.leader = -1
    response = await elect(wire, 2, 0, None)
    assert codes(response.replica_election_results, "partition_result") == {("a", 0): 0}
    (row,) = (await metadata(wire, ["a"])).topics
    assert (row.partitions[0].leader_id, row.partitions[0].leader_epoch) == (1, 1)


# -- reassignments


MOVES: dict[str, tuple[list[int] | None, int]] = {
    "same": ([1], 0),
    "cancel": (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    "none": ([], BAD_ASSIGNMENT),
    "twice": ([1, 1], BAD_ASSIGNMENT),
    "unknown node": ([2], BAD_ASSIGNMENT),
    "one known": ([1, 2], BAD_ASSIGNMENT),
}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("move", MOVES)
async def test_reassignment_is_validated_on_single_node(
    wire: Wire, version: int, move: str
) -> None:
    replicas, code = MOVES[move]
    await create_topic(wire, "a")
    cls = AlterPartitionReassignmentsRequest
    rows = [cls.Partition(partition_index=i, replicas=replicas) for i in (0, 7)]
    ask = cls(topics=[cls.Topic(name=name, partitions=rows) for name in ("a", "b")])
    response = await wire.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, ask)
    assert (response.error_code, response.allow_replication_factor_change) == (0, True)
    assert codes(response.responses, "partitions") == {
        ("a", 0): code,
        ("a", 7): UNKNOWN,
        ("b", 0): UNKNOWN,
        ("b", 7): UNKNOWN,
    }
    every = ListPartitionReassignmentsRequest(topics=None)
    listed = await wire.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, every)
    assert (listed.error_code, listed.topics) == (0, [])


# -- features


async def test_finalized_features_are_advertised(broker: Broker, wire: Wire) -> None:
    hello = request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1")
    for version, supported in (
        (3, {"metadata.version": (30, 33)}),
        (
            4,
            {
                "metadata.version": (30, 33),
                "group.version": (0, 1),
                "streams.version": (0, 1),
                "share.version": (0, 2),
                "transaction.version": (0, 2),
            },
        ),
    ):
        response = await wire.ask(ApiKey.API_VERSIONS, version, hello)
        rows = response.finalized_features
        levels = {row.name: (row.min_version_level, row.max_version_level) for row in rows}
        assert levels == {
            "metadata.version": (33, 33),
            "group.version": (1, 1),
            "streams.version": (1, 1),
            "share.version": (2, 2),
            "transaction.version": (2, 2),
        }
        found = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
        assert found == supported, "clients of version 3 reject features with minimum level 0"
    before = response.finalized_features_epoch
    await create_topic(wire, "a")
    response = await wire.ask(ApiKey.API_VERSIONS, 3, hello)
    assert before < response.finalized_features_epoch == broker.node.cluster.revision


async def test_feature_level_can_be_lowered_disabled_and_raised(broker: Broker, wire: Wire) -> None:
    hello = request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1")
    levels = {
        "metadata.version": 33,
        "group.version": 1,
        "streams.version": 1,
        "share.version": 2,
        "transaction.version": 2,
    }
    for level, kind in ((1, 2), (0, 2), (0, 2), (2, 1), (1, 3), (2, 1)):
        row = UpdateFeaturesRequest.Feature(
            feature="transaction.version", max_version_level=level, upgrade_type=kind
        )
        for validate_only in (True, False):
            ask = UpdateFeaturesRequest(feature_updates=[row], validate_only=validate_only)
            response = await wire.ask(ApiKey.UPDATE_FEATURES, 2, ask)
            assert response.error_code == 0
            if not validate_only:
                levels["transaction.version"] = level
            shown = (await wire.ask(ApiKey.API_VERSIONS, 4, hello)).finalized_features
            running = {name: level for name, level in levels.items() if level}
            assert {each.name: each.max_version_level for each in shown} == running


UPDATES = {
    "same level": (("metadata.version", 33, 1), 0),
    "same level downgraded": (("metadata.version", 33, 2), 0),
    "above": (("metadata.version", 34, 1), ErrorCode.INVALID_UPDATE_VERSION),
    "below": (("metadata.version", 29, 2), ErrorCode.INVALID_UPDATE_VERSION),
    "nothing": (("metadata.version", 0, 2), ErrorCode.INVALID_UPDATE_VERSION),
    "lower": (("transaction.version", 1, 2), 0),
    "lower, as an upgrade": (("transaction.version", 1, 1), ErrorCode.INVALID_UPDATE_VERSION),
    "off": (("transaction.version", 0, 2), 0),
    "beyond": (("transaction.version", 3, 1), ErrorCode.INVALID_UPDATE_VERSION),
    "negative": (("transaction.version", -1, 2), ErrorCode.INVALID_UPDATE_VERSION),
    "unknown": (("other", 1, 1), ErrorCode.INVALID_UPDATE_VERSION),
    "unknown to nothing": (("other", 0, 2), ErrorCode.INVALID_UPDATE_VERSION),
}


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("case", UPDATES)
async def test_feature_update_is_validated(wire: Wire, version: int, case: str) -> None:
    (name, level, kind), code = UPDATES[case]
    row = UpdateFeaturesRequest.Feature(
        feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind > 1
    )
    response = await wire.ask(
        ApiKey.UPDATE_FEATURES, version, UpdateFeaturesRequest(feature_updates=[row])
    )
    assert response.error_code == code
    assert bool(response.error_message) == bool(code)
    rows = [(row.feature, row.error_code) for row in response.results]
    assert rows == ([] if code or version == 2 else [(name, 0)])


@pytest.mark.parametrize("kind", [0, 4, -1])
async def test_unknown_feature_upgrade_type_is_rejected(wire: Wire, kind: int) -> None:
    row = UpdateFeaturesRequest.Feature(
        feature="metadata.version", max_version_level=33, upgrade_type=kind
    )
    ask = UpdateFeaturesRequest(feature_updates=[row])
    response = await wire.ask(ApiKey.UPDATE_FEATURES, 1, ask)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert (await wire.ask(ApiKey.UPDATE_FEATURES, 0, ask)).error_code == 0


async def test_metadata_version_of_earlier_release_can_be_upgraded(tmp_path: Path) -> None:
    """Levels of a cluster stay until an operator upgrades them: 30 is Kafka 4.3."""
    async with started(tmp_path) as broker:
        cluster = broker.node.cluster
        levels = {**cluster.features, "metadata.version": 30}
        revision = cluster.features_revision
        assert await cluster.finalize_features(levels, revision=revision, cause="test")
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.cluster.features["metadata.version"] == 30
        row = UpdateFeaturesRequest.Feature(
            feature="metadata.version", max_version_level=33, upgrade_type=1
        )
        ask = UpdateFeaturesRequest(feature_updates=[row])
        assert (await wire.ask(ApiKey.UPDATE_FEATURES, 2, ask)).error_code == 0
        assert broker.node.cluster.features["metadata.version"] == 33


async def test_broker_does_not_start_if_feature_level_is_unsupported(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        cluster = broker.node.cluster
        levels = {**cluster.features, "transaction.version": 3}
        revision = cluster.features_revision
        assert await cluster.finalize_features(levels, revision=revision, cause="test")
    with pytest.raises(
        StorageError, match=r"transaction\.version at level 3, .* start a newer one"
    ):
        async with started(tmp_path):
            pass


# -- brokers


@pytest.mark.parametrize(
    ("node", "code"),
    [
        (1, ErrorCode.INVALID_REQUEST),
        (2, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (-1, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ],
)
async def test_unregistering_running_or_unknown_broker_is_rejected(
    wire: Wire, node: int, code: ErrorCode
) -> None:
    """This broker is running, and it is the only one."""
    response = await wire.ask(ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=node))
    assert response.error_code == code
    assert response.error_message
    assert await wire.works()


@pytest.mark.parametrize(("kind", "code"), [(2, 114), (3, 115), (0, 115)])
async def test_describe_cluster_rejects_other_endpoint_types(
    wire: Wire, kind: int, code: int
) -> None:
    """The response names the endpoint type that it comes from, not the requested one."""
    ask = DescribeClusterRequest(endpoint_type=kind)
    response = await wire.ask(ApiKey.DESCRIBE_CLUSTER, 2, ask)
    assert (response.error_code, response.endpoint_type, response.controller_id) == (code, 1, -1)
    assert (response.cluster_id, response.brokers) == ("", [])
