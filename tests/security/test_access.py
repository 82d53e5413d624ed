"""Permissions that each API requires, tested over the wire."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.cluster.acl_changes import add_acls
from kbroker.cluster.features import METADATA_VERSION
from kbroker.config import BrokerConfig, ConfigError
from kbroker.handlers.registry import load_apis
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import CreateAclsRequest, DeleteAclsRequest
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest
from kbroker.protocol.schema import ZERO_UUID
from kbroker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from ..fuzz.world import VALID, World, make_world
from ..handlers.test_consumer_groups import assigned_partitions, beat
from ..handlers.test_consumer_groups import describe as describe_groups
from ..handlers.test_consumer_groups import find as find_group
from ..handlers.test_streams_groups import TOPOLOGY, describe_streams, statuses, streams_beat
from ..testing.test_error_responses import errors_in
from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    request,
    sequenced,
    values_of,
)

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_admin="hush" user_alice="hush" user_bob="hush";'
)
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
TRANSACTIONAL_ID, CLUSTER = AclResourceType.TRANSACTIONAL_ID, AclResourceType.CLUSTER
ALL, READ, WRITE, CREATE = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
)
DELETE, ALTER, DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
SEES_CONFIGS, ALTERS_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY

DENIED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AclResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
# Permissions with which an API denies nothing.
NEEDS: dict[ApiKey, Mapping[AclResourceType, tuple[AclOperation, ...]]] = {
    ApiKey.PRODUCE: {TOPIC: (WRITE,)},
    ApiKey.FETCH: {TOPIC: (READ,)},
    ApiKey.LIST_OFFSETS: {TOPIC: (DESCRIBE,)},
    ApiKey.METADATA: {TOPIC: (DESCRIBE, CREATE)},
    ApiKey.OFFSET_COMMIT: {GROUP: (READ,), TOPIC: (READ,)},
    ApiKey.OFFSET_FETCH: {GROUP: (DESCRIBE,), TOPIC: (DESCRIBE,)},
    ApiKey.FIND_COORDINATOR: {
        GROUP: (DESCRIBE,),
        TRANSACTIONAL_ID: (DESCRIBE,),
        CLUSTER: (AclOperation.CLUSTER_ACTION,),
    },
    ApiKey.JOIN_GROUP: {GROUP: (READ,)},
    ApiKey.HEARTBEAT: {GROUP: (READ,)},
    ApiKey.LEAVE_GROUP: {GROUP: (READ,)},
    ApiKey.SYNC_GROUP: {GROUP: (READ,)},
    ApiKey.DESCRIBE_GROUPS: {GROUP: (DESCRIBE,)},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {GROUP: (READ,), TOPIC: (DESCRIBE,)},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {GROUP: (DESCRIBE,), TOPIC: (DESCRIBE,)},
    ApiKey.STREAMS_GROUP_HEARTBEAT: {GROUP: (READ,), TOPIC: (DESCRIBE,)},
    ApiKey.STREAMS_GROUP_DESCRIBE: {GROUP: (DESCRIBE,), TOPIC: (DESCRIBE,)},
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: {GROUP: (READ,)},
    ApiKey.SHARE_GROUP_HEARTBEAT: {GROUP: (READ,), TOPIC: (DESCRIBE,)},
    ApiKey.SHARE_GROUP_DESCRIBE: {GROUP: (DESCRIBE,), TOPIC: (DESCRIBE,)},
    ApiKey.SHARE_FETCH: {GROUP: (READ,), TOPIC: (READ,)},
    ApiKey.SHARE_ACKNOWLEDGE: {GROUP: (READ,), TOPIC: (READ,)},
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {GROUP: (DESCRIBE,), TOPIC: (DESCRIBE,)},
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: {GROUP: (READ,), TOPIC: (READ,)},
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: {GROUP: (DELETE,), TOPIC: (READ,)},
    ApiKey.CREATE_TOPICS: {TOPIC: (CREATE,)},
    ApiKey.DELETE_TOPICS: {TOPIC: (DELETE,)},
    ApiKey.DELETE_RECORDS: {TOPIC: (DELETE,)},
    ApiKey.INIT_PRODUCER_ID: {
        CLUSTER: (AclOperation.IDEMPOTENT_WRITE,),
        TRANSACTIONAL_ID: (WRITE,),
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {TOPIC: (DESCRIBE,)},
    ApiKey.ADD_PARTITIONS_TO_TXN: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
    ApiKey.ADD_OFFSETS_TO_TXN: {TRANSACTIONAL_ID: (WRITE,), GROUP: (READ,)},
    ApiKey.END_TXN: {TRANSACTIONAL_ID: (WRITE,)},
    ApiKey.WRITE_TXN_MARKERS: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
    ApiKey.TXN_OFFSET_COMMIT: {TRANSACTIONAL_ID: (WRITE,), GROUP: (READ,), TOPIC: (READ,)},
    ApiKey.DESCRIBE_ACLS: {CLUSTER: (DESCRIBE,)},
    ApiKey.CREATE_ACLS: {CLUSTER: (ALTER,)},
    ApiKey.DELETE_ACLS: {CLUSTER: (ALTER,)},
    ApiKey.DESCRIBE_CONFIGS: {TOPIC: (SEES_CONFIGS,), CLUSTER: (SEES_CONFIGS,)},
    ApiKey.ALTER_CONFIGS: {TOPIC: (ALTERS_CONFIGS,)},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        TOPIC: (ALTERS_CONFIGS,),
        CLUSTER: (ALTERS_CONFIGS,),
        GROUP: (ALTERS_CONFIGS,),
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: {CLUSTER: (ALTER,)},
    ApiKey.DESCRIBE_LOG_DIRS: {CLUSTER: (DESCRIBE,)},
    ApiKey.CREATE_PARTITIONS: {TOPIC: (ALTER,)},
    ApiKey.DELETE_GROUPS: {GROUP: (DELETE,)},
    ApiKey.ELECT_LEADERS: {CLUSTER: (ALTER,)},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {CLUSTER: (ALTER,)},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {CLUSTER: (DESCRIBE,)},
    ApiKey.OFFSET_DELETE: {GROUP: (DELETE,), TOPIC: (READ,)},
    ApiKey.CREATE_DELEGATION_TOKEN: {AclResourceType.USER: (AclOperation.CREATE_TOKENS,)},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {CLUSTER: (SEES_CONFIGS,)},
    ApiKey.ALTER_CLIENT_QUOTAS: {CLUSTER: (ALTERS_CONFIGS,)},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {CLUSTER: (DESCRIBE,)},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {CLUSTER: (ALTER,)},
    ApiKey.DESCRIBE_QUORUM: {CLUSTER: (DESCRIBE,)},
    ApiKey.UPDATE_FEATURES: {CLUSTER: (ALTER,)},
    ApiKey.DESCRIBE_PRODUCERS: {TOPIC: (READ,)},
    ApiKey.UNREGISTER_BROKER: {CLUSTER: (ALTER,)},
    ApiKey.DESCRIBE_TRANSACTIONS: {TRANSACTIONAL_ID: (DESCRIBE,)},
    ApiKey.LIST_CONFIG_RESOURCES: {CLUSTER: (SEES_CONFIGS,)},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {TOPIC: (DESCRIBE,)},
    ApiKey.ADD_RAFT_VOTER: {CLUSTER: (ALTER,)},
    ApiKey.REMOVE_RAFT_VOTER: {CLUSTER: (ALTER,)},
    ApiKey.UNREGISTER_CONTROLLER: {CLUSTER: (ALTER,)},
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
    ApiKey.READ_SHARE_GROUP_STATE: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
    ApiKey.WRITE_SHARE_GROUP_STATE: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
    ApiKey.DELETE_SHARE_GROUP_STATE: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: {CLUSTER: (AclOperation.CLUSTER_ACTION,)},
}
# APIs that omit hidden items instead of returning an error.
HIDES = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER}
# APIs that check token ownership; see tests/handlers/test_delegation_tokens.py.
OWNED = {
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
FREE = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}
SEEDS = 8
# Timeout of a response that may depend on other requests.
PATIENCE_SECONDS = 0.3


@asynccontextmanager
async def guarded(*settings: str, data_dir: Path | None = None) -> AsyncIterator[Broker]:
    """Run a broker whose only super user is `admin`."""
    options = [
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms=PLAIN",
        f"sasl.jaas.config={USERS}",
        f"authorizer.class.name={AUTHORIZER}",
        "super.users=User:admin",
        "group.initial.rebalance.delay.ms=0",
        *settings,
    ]
    config = BrokerConfig.load(options=options, strict=True)
    directory = None if data_dir is None else str(data_dir)
    listeners = configured_listeners(config)
    async with open_broker(config, data_dir=directory, listeners=listeners) as broker:
        yield broker
        assert broker.node.context.error_log.unhandled_errors == 0


@asynccontextmanager
async def user(broker: Broker, name: str) -> AsyncIterator[Wire]:
    """Connect as an authenticated user."""
    async with connected(broker.endpoint) as wire:
        await wire.ask(ApiKey.SASL_HANDSHAKE, 1, request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN"))
        message = f"\0{name}\0hush".encode()
        ask = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=message)
        assert not (await wire.ask(ApiKey.SASL_AUTHENTICATE, 2, ask)).error_code
        yield wire


def acl_for(
    kind: AclResourceType,
    operation: AclOperation,
    name: str = "*",
    permission: AclPermission = ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
) -> CreateAclsRequest.Acl:
    return CreateAclsRequest.Acl(
        resource_type=kind,
        resource_name=CLUSTER_NAME if kind is CLUSTER else name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


async def grant(admin: Wire, *acls: CreateAclsRequest.Acl) -> None:
    response = await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations=[*acls]))
    assert not any(errors_in(response)), response


async def denials(wire: Wire, world: World, key: ApiKey, version: int) -> set[int]:
    """Return the authorization error codes in the responses to several requests."""
    found = set()
    for seed in range(SEEDS):
        request_ = VALID[key](world, random.Random(seed))
        if key is ApiKey.PRODUCE:
            request_.acks = 1
        await wire.send(key, version, request_)
        with trio.move_on_after(PATIENCE_SECONDS) as scope:
            found |= set(errors_in(await wire.receive()))
        if scope.cancelled_caught:
            break
    return found & set(DENIED.values())


def test_permission_table_covers_every_api() -> None:
    assert NEEDS.keys() | HIDES | OWNED | FREE == set(load_apis())


@pytest.mark.slow
@pytest.mark.parametrize("key", NEEDS, ids=lambda key: key.api_name)
async def test_api_requires_each_listed_permission(key: ApiKey) -> None:
    """Check without permissions, with all but one, and with all."""
    version = load_apis()[key].versions[-1]
    rights = [acl_for(kind, each) for kind, operations in NEEDS[key].items() for each in operations]
    async with guarded() as broker, user(broker, "admin") as admin:
        world = await make_world(admin)
        async with user(broker, "alice") as wire:
            first = await denials(wire, world, key, version)
            assert first
            assert first <= {DENIED[kind] for kind in NEEDS[key]}
        for missing in rights:
            if key is ApiKey.METADATA and missing.operation == CREATE:
                continue  # needed only to create topics: test_auto_topic_creation_requires_create
            kind = AclResourceType(missing.resource_type)
            left = [each for each in rights if each != missing]
            # DESCRIBE alone is not enough. Deletions of missing topics: see the test below.
            if missing.operation != DESCRIBE and key is not ApiKey.DELETE_TOPICS:
                left.append(acl_for(kind, DESCRIBE))
            await remove_all(admin)
            await grant(admin, acl_for(TOPIC, READ, "nothing"), *left)
            async with user(broker, "alice") as wire:
                code = DENIED[kind]
                assert code in await denials(wire, world, key, version), missing
        await grant(admin, *rights)
        async with user(broker, "alice") as wire:
            assert not await denials(wire, world, key, version)


async def remove_all(admin: Wire) -> None:
    cls = DeleteAclsRequest
    all_acls = cls.Filter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    response = await admin.ask(ApiKey.DELETE_ACLS, 3, cls(filters=[all_acls]))
    assert not any(errors_in(response)), response


@pytest.mark.parametrize("key", sorted(HIDES), ids=lambda key: ApiKey(key).api_name)
async def test_listing_hides_items_without_permission(key: ApiKey) -> None:
    version = load_apis()[key].versions[-1]
    async with guarded() as broker, user(broker, "admin") as admin:
        await make_world(admin)
        ask = request(key)
        if key is ApiKey.DESCRIBE_CLUSTER:
            ask.include_cluster_authorized_operations = True
        for name in ("alice", "admin"):
            async with user(broker, name) as wire:
                response = await wire.ask(key, version, ask)
            shown = {
                ApiKey.LIST_GROUPS: lambda body: body.groups,
                ApiKey.LIST_TRANSACTIONS: lambda body: body.transaction_states,
                ApiKey.DESCRIBE_CLUSTER: lambda body: body.cluster_authorized_operations,
            }[key](response)
            assert not response.error_code
            assert bool(shown) is (name == "admin")


@pytest.mark.parametrize("kind", [GROUP, TRANSACTIONAL_ID], ids=lambda kind: kind.name)
async def test_listing_shows_items_with_describe_permission(kind: AclResourceType) -> None:
    key = ApiKey.LIST_GROUPS if kind is GROUP else ApiKey.LIST_TRANSACTIONS

    async def list_ids(wire: Wire) -> list[str]:
        response = await wire.ask(key, load_apis()[key].versions[-1], request(key))
        if kind is GROUP:
            return [row.group_id for row in response.groups]
        return [row.transactional_id for row in response.transaction_states]

    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        await make_world(admin)
        known = await list_ids(admin)
        await grant(admin, acl_for(kind, DESCRIBE, known[0]))
        assert await list_ids(alice) == known[:1]


@pytest.mark.parametrize("version", [0, 3])
async def test_add_partitions_requires_write_on_transaction_and_topic(version: int) -> None:
    """The last version is for brokers and requires another permission."""
    cls = AddPartitionsToTxnRequest
    ask = cls(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[cls.Topic(name="t", partitions=[0])],
    )
    needs = acl_for(TRANSACTIONAL_ID, WRITE, "tx"), acl_for(TOPIC, WRITE, "t")
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        await create_topic(admin, "t")
        for missing in needs:
            await remove_all(admin)
            await grant(admin, *(each for each in needs if each != missing))
            response = await alice.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, ask)
            code = DENIED[AclResourceType(missing.resource_type)]
            assert set(errors_in(response)) - {0} == {code}
        await remove_all(admin)
        await grant(admin, *needs)
        response = await alice.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, ask)
        assert set(errors_in(response)) - {0} == {ErrorCode.NOT_COORDINATOR}


async def metadata_of(wire: Wire, *names: str, **fields: Any) -> Any:
    """Return the Metadata response for topics, or for all topics."""
    rows = [{"name": name} for name in names]
    cls = type(request(ApiKey.METADATA))
    topics = [cls.Topic(**row) for row in rows] if names else None
    ask = request(ApiKey.METADATA, topics=topics, **fields)
    return await wire.ask(ApiKey.METADATA, 12, ask)


async def test_metadata_hides_topics_without_describe() -> None:
    """The response does not reveal whether the topic exists."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        secret = await create_topic(admin, "secret")
        await create_topic(admin, "orders-eu")
        await grant(
            admin,
            acl_for(TOPIC, READ, "orders", pattern=PatternType.PREFIXED),
            acl_for(GROUP, READ, "g"),
        )
        metadata = await metadata_of(alice, include_topic_authorized_operations=True)
        (row,) = metadata.topics
        assert row.name == "orders-eu"
        assert row.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
        named = (await metadata_of(alice, "secret", "none", allow_auto_topic_creation=True)).topics
        assert {(row.error_code, row.topic_id.int, len(row.partitions)) for row in named} == {
            (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0, 0)
        }
        assert "none" not in broker.node.cluster.topics
        cls = type(request(ApiKey.METADATA))
        ask = request(ApiKey.METADATA, topics=[cls.Topic(name=None, topic_id=secret.id)])
        (row,) = (await alice.ask(ApiKey.METADATA, 12, ask)).topics
        assert (row.error_code, row.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        assert len((await metadata_of(admin)).topics) == 2


async def test_auto_topic_creation_requires_create() -> None:
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        await grant(admin, acl_for(TOPIC, DESCRIBE))
        (row,) = (await metadata_of(alice, "t", allow_auto_topic_creation=True)).topics
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await grant(admin, acl_for(TOPIC, CREATE, "t"))
        (row,) = (await metadata_of(alice, "t", allow_auto_topic_creation=True)).topics
        assert row.error_code == 0


async def test_consumer_group_regex_matches_only_describable_topics() -> None:
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        for name in ("open-1", "open-2", "secret"):
            await create_topic(admin, name)
        await find_group(admin)
        await grant(admin, acl_for(GROUP, READ), acl_for(TOPIC, DESCRIBE, "open-1"))
        await grant(admin, acl_for(TOPIC, DESCRIBE, "secret", DENY))
        response = await beat(alice, "a", 0, subscribed_topic_names=[], subscribed_topic_regex=".*")
        assert assigned_partitions(response) == [0]
        (row,) = await describe_groups(admin)
        (member,) = row.members
        assert [each.topic_name for each in member.assignment.topic_partitions] == ["open-1"]
        response = await beat(alice, "a", 0, subscribed_topic_names=["open-1", "secret"])
        assert response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_streams_internal_topics_require_create() -> None:
    """A streams member joins and gets the topics that it may not create (KIP-1071)."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        await create_topic(admin, "t")
        await find_group(admin)
        await grant(
            admin, acl_for(GROUP, READ), acl_for(TOPIC, DESCRIBE), acl_for(TOPIC, CREATE, "log")
        )
        response = await streams_beat(alice, "a", 0, topology=TOPOLOGY)
        assert "; Unauthorized to CREATE on topics between." in statuses(response)[3]
        assert "log" not in broker.node.cluster.topics
        await grant(admin, acl_for(TOPIC, CREATE, "between"))
        await streams_beat(alice, "a", 0, topology=TOPOLOGY)
        assert {"between", "log"} <= broker.node.cluster.topics.keys()
        await grant(admin, acl_for(TOPIC, DESCRIBE, "log", DENY), acl_for(GROUP, DESCRIBE))
        (row,) = await describe_streams(alice)
        assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (row.topology, row.members) == (None, [])
        response = await streams_beat(alice, "a", 0, topology=TOPOLOGY)
        assert response.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_metadata_reports_authorized_operations_of_missing_topic() -> None:
    """The response contains authorized operations as for an existing topic (KIP-430)."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        await grant(admin, acl_for(TOPIC, READ, "none"))
        request_ = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
        allowed, denied = (await metadata_of(alice, "none", "other", **request_)).topics
        assert allowed.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert allowed.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
        assert denied.error_code == DENIED[TOPIC]
        assert denied.topic_authorized_operations == -(2**31)
        request_["include_topic_authorized_operations"] = False
        (row,) = (await metadata_of(alice, "none", **request_)).topics
        assert row.topic_authorized_operations == -(2**31)


@pytest.mark.parametrize("version", [1, 5, 6])
async def test_describe_does_not_permit_delete(version: int) -> None:
    cls = type(request(ApiKey.DELETE_TOPICS))
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        await grant(admin, acl_for(TOPIC, DESCRIBE), acl_for(TOPIC, WRITE), acl_for(TOPIC, ALTER))
        rows = [cls.Topic(name="orders"), cls.Topic(name=None, topic_id=topic.id)]
        ask = cls(topics=rows, topic_names=["orders"])
        results = (await alice.ask(ApiKey.DELETE_TOPICS, version, ask)).responses
        assert {row.error_code for row in results} == {DENIED[TOPIC]}
        assert len(results) == (2 if version >= 6 else 1)
        assert "orders" in broker.node.cluster.topics
        await grant(admin, acl_for(TOPIC, DELETE, "orders"))
        results = (await alice.ask(ApiKey.DELETE_TOPICS, version, ask)).responses
        assert results[0].error_code == 0
        assert "orders" not in broker.node.cluster.topics


async def test_delete_on_cluster_permits_deleting_every_topic() -> None:
    """DESCRIBE on the topic is not required, as in Kafka."""
    cls = type(request(ApiKey.DELETE_TOPICS))
    ask = cls(topics=[cls.Topic(name="orders"), cls.Topic(name="none")])
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        rows = (await alice.ask(ApiKey.DELETE_TOPICS, 6, ask)).responses
        assert [row.error_code for row in rows] == [DENIED[TOPIC]] * 2
        await grant(admin, acl_for(CLUSTER, DELETE))
        rows = (await alice.ask(ApiKey.DELETE_TOPICS, 6, ask)).responses
        assert [(row.error_code, row.topic_id) for row in rows] == [
            (0, topic.id),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ZERO_UUID),
        ]


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_denied_fetch_returns_empty_aborted_transactions(isolation_level: int) -> None:
    """The list is empty, not null, for both isolation levels, as in Kafka."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        ask = fetch_request(topic)
        ask.isolation_level = isolation_level
        (row,) = (await alice.ask(ApiKey.FETCH, 12, ask)).responses
        assert row.partitions[0].error_code == DENIED[TOPIC]
        assert row.partitions[0].aborted_transactions == []


async def test_alter_on_cluster_permits_write_txn_markers() -> None:
    """The tool kafka-transactions uses this (KIP-664)."""
    cls = type(request(ApiKey.WRITE_TXN_MARKERS))
    topics = [cls.Topic(name="none", partition_indexes=[0])]
    ask = cls(markers=[cls.Marker(producer_id=1, producer_epoch=0, topics=topics)])
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        for code in (DENIED[CLUSTER], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            response = await alice.ask(ApiKey.WRITE_TXN_MARKERS, 1, ask)
            assert response.markers[0].topics[0].partitions[0].error_code == code
            await grant(admin, acl_for(CLUSTER, ALTER))


async def test_denied_reassignment_returns_error_per_partition() -> None:
    cls = type(request(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
    rows = [cls.Partition(partition_index=index, replicas=[0]) for index in (3, 4)]
    ask = cls(topics=[cls.Topic(name="none", partitions=rows)])
    async with guarded() as broker, user(broker, "alice") as alice:
        response = await alice.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, ask)
    assert response.error_code == DENIED[CLUSTER]
    assert [(row.name, len(row.partitions)) for row in response.responses] == [("none", 2)]
    assert {row.error_code for row in response.responses[0].partitions} == {DENIED[CLUSTER]}


async def test_missing_group_is_reported_before_denied_topics() -> None:
    cls = type(request(ApiKey.OFFSET_DELETE))
    rows = [cls.Partition(partition_index=0)]
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        for name in ("open", "secret"):
            await create_topic(admin, name)
        await grant(admin, acl_for(TOPIC, ALL, "open"), acl_for(GROUP, ALL))
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
        await admin.ask(ApiKey.FIND_COORDINATOR, 4, find)
        for names in (["secret"], ["open", "secret"]):
            topics = [cls.Topic(name=name, partitions=rows) for name in names]
            ask = cls(group_id="g", topics=topics)
            response = await alice.ask(ApiKey.OFFSET_DELETE, 0, ask)
            assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_denied_join_creates_no_member() -> None:
    cls = type(request(ApiKey.JOIN_GROUP))
    ask = cls(
        group_id="g",
        member_id="me",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[cls.Protocol(name="range", metadata=b"")],
    )
    async with guarded() as broker, user(broker, "alice") as alice:
        response = await alice.ask(ApiKey.JOIN_GROUP, 5, ask)
        assert (response.error_code, response.member_id) == (DENIED[GROUP], "")


async def test_create_topics_returns_configs_only_with_permission() -> None:
    cls = type(request(ApiKey.CREATE_TOPICS))
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        await grant(admin, acl_for(TOPIC, CREATE), acl_for(TOPIC, SEES_CONFIGS, "open"))
        rows = [
            cls.Topic(name=name, num_partitions=1, replication_factor=1)
            for name in ("open", "secret")
        ]
        topics = (await alice.ask(ApiKey.CREATE_TOPICS, 7, cls(topics=rows))).topics
        assert [each.error_code for each in topics] == [0, 0]
        shown, hidden = topics
        assert shown.configs
        assert shown.num_partitions == 1
        assert (hidden.configs, hidden.num_partitions) == ([], -1)
        assert hidden.topic_config_error_code == DENIED[TOPIC]


async def test_acl_change_applies_immediately_to_open_fetch_sessions() -> None:
    """The new ACL applies even to a fetch that already waits in an open session."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        assert (await produce(alice, topic, batch([b"a"]))).error_code == DENIED[TOPIC]
        await grant(admin, acl_for(TOPIC, ALL, "orders"))
        assert (await produce(alice, topic, batch([b"b"]))).error_code == 0
        assert values_of(await fetch(alice, topic)) == [b"b"]
        opened = await alice.ask(ApiKey.FETCH, 12, fetch_request(topic, 1, session_epoch=0))
        assert opened.session_id
        await alice.send(
            ApiKey.FETCH,
            12,
            fetch_request(
                topic,
                1,
                session_id=opened.session_id,
                session_epoch=1,
                max_wait_ms=60_000,
            ),
        )
        await grant(admin, acl_for(TOPIC, READ, "orders", DENY))
        await produce(admin, topic, batch([b"c"]))
        (topic_row,) = (await alice.receive()).responses
        assert topic_row.partitions[0].error_code == DENIED[TOPIC]
        assert not topic_row.partitions[0].records


async def test_denied_topic_does_not_affect_allowed_topics() -> None:
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        for name in ("open", "secret"):
            await create_topic(admin, name)
        await grant(admin, acl_for(TOPIC, ALL, "open"), acl_for(GROUP, ALL, "g"))
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
        await admin.ask(ApiKey.FIND_COORDINATOR, 4, find)
        ask = produce_request(Topic("open"), batch())
        ask.topic_data += produce_request(Topic("secret"), batch()).topic_data
        response = await alice.ask(ApiKey.PRODUCE, 9, ask)
        codes = {row.name: row.partition_responses[0].error_code for row in response.responses}
        assert codes == {"open": 0, "secret": DENIED[TOPIC]}
        cls = type(request(ApiKey.OFFSET_COMMIT))
        rows = [
            cls.Topic(name=name, partitions=[cls.Partition(partition_index=0, committed_offset=1)])
            for name in codes
        ]
        response = await alice.ask(ApiKey.OFFSET_COMMIT, 8, cls(group_id="g", topics=rows))
        assert {row.name: row.partitions[0].error_code for row in response.topics} == codes
        for request_ in (None, [*codes]):
            cls = type(request(ApiKey.OFFSET_FETCH))
            topics = request_ and [cls.Topic(name=name, partition_indexes=[0]) for name in request_]
            response = await alice.ask(ApiKey.OFFSET_FETCH, 7, cls(group_id="g", topics=topics))
            codes_returned = {row.name: row.partitions[0].error_code for row in response.topics}
            assert codes_returned == (codes if request_ else {"open": 0})


async def test_transactional_batch_requires_write_on_its_transactional_id() -> None:
    """Each batch is checked, not only the first one (CVE-2018-17196)."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        await grant(admin, acl_for(TOPIC, ALL))
        ask = produce_request(topic, batch(), acks=-1)
        more = sequenced(5, 0, transactional=True)
        ask.topic_data += produce_request(topic, more).topic_data
        ask.transactional_id = "tx"
        response = await alice.ask(ApiKey.PRODUCE, 9, ask)
        assert set(errors_in(response)) == {DENIED[TRANSACTIONAL_ID]}


async def test_write_on_any_topic_permits_idempotent_producer() -> None:
    ask = request(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000)
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        response = await alice.ask(ApiKey.INIT_PRODUCER_ID, 4, ask)
        assert response.error_code == DENIED[CLUSTER]
        await grant(admin, acl_for(TOPIC, WRITE, "orders"))
        assert (await alice.ask(ApiKey.INIT_PRODUCER_ID, 4, ask)).error_code == 0


async def test_replica_fetch_requires_cluster_action() -> None:
    """A client that claims to be a replica needs CLUSTER_ACTION (CVE-2018-1288)."""
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        await grant(admin, acl_for(TOPIC, ALL))
        ask = fetch_request(topic)
        ask.replica_id = 1
        (row,) = (await alice.ask(ApiKey.FETCH, 12, ask)).responses
        assert row.partitions[0].error_code == DENIED[TOPIC]


async def test_acls_are_listed_and_deleted_by_filters() -> None:
    async with guarded() as broker, user(broker, "admin") as admin:
        one, other = acl_for(TOPIC, READ, "a"), acl_for(TOPIC, WRITE, "a", DENY)
        await grant(admin, one, other, one)
        await grant(admin, one)
        ask = request(
            ApiKey.DESCRIBE_ACLS,
            resource_type_filter=2,
            pattern_type_filter=PatternType.MATCH,
            resource_name_filter="a",
            operation=1,
            permission_type=1,
        )
        for version in load_apis()[ApiKey.DESCRIBE_ACLS].versions:
            (row,) = (await admin.ask(ApiKey.DESCRIBE_ACLS, version, ask)).resources
            assert (row.resource_name, row.pattern_type) == ("a", PatternType.LITERAL)
            assert {(each.operation, each.permission_type) for each in row.acls} == {
                (READ, ALLOW),
                (WRITE, DENY),
            }
        cls = DeleteAclsRequest
        writes = cls.Filter(
            resource_type_filter=1, pattern_type_filter=1, operation=WRITE, permission_type=1
        )
        unknown = cls.Filter(resource_type_filter=0, operation=1, permission_type=1)
        response = await admin.ask(ApiKey.DELETE_ACLS, 3, cls(filters=[writes, unknown]))
        deleted, refused = response.filter_results
        assert [each.operation for each in deleted.matching_acls] == [WRITE]
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert len(broker.node.cluster.acls) == 1


@pytest.mark.parametrize(
    ("acl", "message"),
    [
        (acl_for(AclResourceType.ANY, READ), "Invalid resourceType ANY"),
        (acl_for(TOPIC, AclOperation.ANY), "Invalid operation ANY"),
        (acl_for(TOPIC, READ, permission=AclPermission.ANY), "Invalid permissionType ANY"),
        (acl_for(TOPIC, READ, pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (acl_for(TOPIC, READ, ""), "should not be empty"),
        (acl_for(TOPIC, READ, principal="alice"), "no colon"),
        (acl_for(TOPIC, READ, host=""), "Host pattern cannot be null or empty"),
        (acl_for(TOPIC, READ, host="10.0.0.0/33"), "Invalid CIDR notation '10.0.0.0/33'"),
        (acl_for(TOPIC, READ, host="10.0.0.0/255.0.0.0"), "Invalid CIDR notation"),
        (acl_for(TOPIC, READ, host="example.org/8"), "Invalid CIDR notation"),
        (acl_for(TOPIC, READ, "x" * 1001), "at most 1000 characters"),
    ],
)
async def test_invalid_acls_are_rejected(acl: CreateAclsRequest.Acl, message: str) -> None:
    async with guarded() as broker, user(broker, "admin") as admin:
        ask = CreateAclsRequest(creations=[acl_for(TOPIC, READ, "good"), acl])
        good, bad = (await admin.ask(ApiKey.CREATE_ACLS, 3, ask)).results
        assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_REQUEST)
        assert message in bad.error_message
        assert len(broker.node.cluster.acls) == 1


async def test_many_new_acls_do_not_block_event_loop() -> None:
    """Each ACL is hashed, which takes 7 µs."""
    async with guarded() as broker:
        pattern = Pattern(TOPIC, PatternType.LITERAL, "t")
        acls = [Acl(pattern, f"User:u{n}", "*", READ, AclPermission.ALLOW) for n in range(1_000)]
        taken = 0

        def take() -> Iterator[Acl]:
            nonlocal taken
            for acl in acls:
                taken += 1
                yield acl

        seen = [0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(add_acls, broker.node.cluster, take(), cause="the test"))
            while taken < len(acls):
                await trio.lowlevel.checkpoint()
                seen.append(taken)
        assert max(later - earlier for earlier, later in pairwise(seen)) <= 200
        assert len(broker.node.cluster.acls) == len(acls)


async def test_network_of_acl_needs_metadata_version_of_kafka_4_4() -> None:
    """An older node would take the network for the name of one host."""
    async with guarded() as broker, user(broker, "admin") as admin:
        network = acl_for(TOPIC, READ, host="10.0.0.0/8")
        await grant(admin, network)
        cluster = broker.node.cluster
        older = {**cluster.features, METADATA_VERSION: 31}
        assert await cluster.finalize_features(
            older, revision=cluster.features_revision, cause="test"
        )
        request = CreateAclsRequest(creations=[network])
        (row,) = (await admin.ask(ApiKey.CREATE_ACLS, 3, request)).results
        assert row.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "metadata version 4.4-IV1 or higher" in row.error_message


async def test_acls_survive_restart(tmp_path: Path) -> None:
    """The ACLs need more than one metadata transaction."""
    many = [acl_for(TOPIC, READ, f"t{number}") for number in range(250)]
    async with guarded(data_dir=tmp_path) as broker, user(broker, "admin") as admin:
        await grant(admin, *many)
    async with guarded(data_dir=tmp_path) as broker, user(broker, "alice") as alice:
        assert len(broker.node.cluster.acls) == 250
        (row,) = (await metadata_of(alice, "t7", allow_auto_topic_creation=False)).topics
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_allow_everyone_setting_opens_resources_without_acls() -> None:
    async with (
        guarded("allow.everyone.if.no.acl.found=true") as broker,
        user(broker, "admin") as admin,
        user(broker, "alice") as alice,
    ):
        topic = await create_topic(admin, "orders")
        assert (await produce(alice, topic, batch())).error_code == 0
        await grant(admin, acl_for(TOPIC, WRITE, "orders", principal="User:bob"))
        assert (await produce(alice, topic, batch())).error_code == DENIED[TOPIC]


async def test_denied_request_is_logged_but_hidden_topics_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kbroker.audit")
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        await produce(alice, topic, batch())
        await metadata_of(alice)  # topics that the request does not name are not logged
    messages = [each.getMessage() for each in caplog.records if each.name == "kbroker.audit"]
    attempt = "User:alice at 127.0.0.1, WRITE on topic orders, for Produce 9 of client 'test'"
    assert messages == [f"denied: {attempt} (the resource has no ACL)"]


async def test_denied_acks_0_produce_closes_connection() -> None:
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "alice") as alice:
        topic = await create_topic(admin, "orders")
        await alice.send(ApiKey.PRODUCE, 9, produce_request(topic, batch(), acks=0))
        with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
            await alice.receive()


@pytest.mark.parametrize(
    "name", ["authorizer.class.name", "principal.builder.class", "ssl.engine.factory.class"]
)
def test_unsupported_class_is_rejected_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(options=[f"{name}=com.example.Mine"])
    assert f"com.example.Mine for configuration {name}" in str(caught.value)
