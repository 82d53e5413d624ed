"""Users and ACLs, and a request builder for every API.

An allowed request either changes nothing, or has the same effect on both brokers: it names an
unknown member, an unknown producer ID, or a missing group. So any user may send it any number of
times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch
from kbroker.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)
from kbroker.security.rights import VALID_OPERATIONS

from .admin_calls import NODE, NOWHERE, STARTED_MS, World, of, request

# Names of topics, groups and transactional IDs. Some are prefixes of others, for prefixed ACLs.
NAMES = ("orders", "orders-eu", "order", "billing", "bills")
# Transactional ID with an open transaction that contains one partition of each topic.
OPEN = "orders-open"
# User with ALLOW ALL on all resources. Only DENY ACLs for all users restrict it.
OPERATOR = "operator-all"
# Principal of the ACLs that requests create and delete.
NOBODY = "User:nobody"
Build = Callable[["RequestContext", random.Random, int], Any]
# Request builder of each API.
BUILDERS: dict[ApiKey, Build] = {}


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Values for a request: the state of one broker, and the number of the request."""

    world: World
    number: int

    def topic(self, rng: random.Random) -> str:
        return rng.choice((*NAMES, "nowhere"))

    def topics(self, rng: random.Random) -> list[str]:
        """Return one to three different topic names."""
        return rng.sample((*NAMES, "nowhere"), rng.randint(1, 3))

    def id_of(self, topic: str) -> Any:
        return self.world.topic_ids.get(topic, NOWHERE)


# --- users and ACLs


def users(count: int) -> list[str]:
    """Return the names of `count` users."""
    return [f"user-{number}" for number in range(count)]


def operators() -> list[Acl]:
    """Return the ACLs of users with one cluster operation each, and of one with all operations.

    Few others get cluster operations, so that many random requests are denied.
    """
    cluster = Pattern(AclResourceType.CLUSTER, PatternType.LITERAL, CLUSTER_NAME)
    rows = [
        (cluster, operation.name.lower(), operation)
        for operation in sorted(VALID_OPERATIONS[AclResourceType.CLUSTER])
    ]
    for kind in VALID_OPERATIONS:
        is_cluster = kind is AclResourceType.CLUSTER
        pattern = cluster if is_cluster else Pattern(kind, PatternType.LITERAL, WILDCARD)
        rows.append((pattern, "all", AclOperation.ALL))
    return [
        Acl(pattern, f"User:operator-{name}", WILDCARD, operation, AclPermission.ALLOW)
        for pattern, name, operation in rows
    ]


def acls(rng: random.Random, principals: Sequence[str], count: int) -> list[Acl]:
    """Return `count` different ACLs, about a fifth of which deny."""
    made: set[Acl] = set()
    while len(made) < count:
        made.add(_acl(rng, principals))
    return sorted(made)


def _acl(rng: random.Random, principals: Sequence[str]) -> Acl:
    denies = rng.random() < 0.2
    kind = rng.choice(_KINDS)
    pattern = _pattern(rng, kind, denies)
    operations = sorted(VALID_OPERATIONS[kind])
    who = rng.choice(principals)
    if rng.random() < 0.2 and kind not in (AclResourceType.CLUSTER, AclResourceType.USER):
        who = WILDCARD  # without ALL, which would decide every request
    else:
        operations += [AclOperation.ALL] * 3
    return Acl(
        pattern,
        f"User:{who}",
        rng.choice((WILDCARD, WILDCARD, "127.0.0.1", "10.0.0.1")),
        rng.choice(operations),
        AclPermission.DENY if denies else AclPermission.ALLOW,
    )


_KINDS = (
    *(AclResourceType.TOPIC, AclResourceType.TOPIC, AclResourceType.TOPIC),
    *(AclResourceType.GROUP, AclResourceType.GROUP, AclResourceType.CLUSTER),
    *(AclResourceType.TRANSACTIONAL_ID, AclResourceType.USER),
)


def _pattern(rng: random.Random, kind: AclResourceType, denies: bool) -> Pattern:
    """Return a resource pattern. A pattern of a DENY ACL never matches everything."""
    if kind is AclResourceType.CLUSTER:
        return Pattern(kind, PatternType.LITERAL, CLUSTER_NAME)
    drawn, before = rng.random(), "User:" if kind is AclResourceType.USER else ""
    if drawn < 0.2 and not denies:
        return Pattern(kind, PatternType.LITERAL, WILDCARD)
    if drawn < 0.6:
        prefix = rng.choice(("b", "bill", "order", "orders-", "new", "nowhere"))
        return Pattern(kind, PatternType.PREFIXED, before + prefix)
    return Pattern(kind, PatternType.LITERAL, before + rng.choice((*NAMES, "nowhere")))


def creation_of(acl: Acl) -> Any:
    """Return the row of CreateAcls for an ACL."""
    return of(
        ApiKey.CREATE_ACLS,
        "Acl",
        resource_type=acl.pattern.resource_type,
        resource_name=acl.pattern.name,
        resource_pattern_type=acl.pattern.type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


# --- requests


def builds(key: ApiKey) -> Callable[[Build], Build]:
    """Return a decorator that registers the request builder of an API."""

    def register(build: Build) -> Build:
        BUILDERS[key] = build
        return build

    return register


@builds(ApiKey.PRODUCE)
def _produce(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.PRODUCE
    transactional = rng.random() < 0.3
    producer = {"producer_id": 10**6, "producer_epoch": 0, "base_sequence": 0}
    batch = encode_batch(
        [Record(None, b"%d" % at.number, STARTED_MS)],
        transactional=transactional,
        **(producer if transactional or rng.random() < 0.2 else {}),
    )
    rows = [
        of(
            key,
            "Topic",
            name=name,
            topic_id=at.id_of(name),
            partition_data=[of(key, "Partition", index=0, records=batch)],
        )
        for name in at.topics(rng)
    ]
    return request(
        key,
        acks=-1,
        timeout_ms=5000,
        transactional_id=rng.choice(NAMES) if transactional else None,
        topic_data=rows,
    )


@builds(ApiKey.FETCH)
def _fetch(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.FETCH
    rows = [
        of(
            key,
            "Topic",
            topic=name,
            topic_id=at.id_of(name),
            partitions=[
                of(key, "Partition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            ],
        )
        for name in at.topics(rng)
    ]
    return request(key, max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=rows)


@builds(ApiKey.LIST_OFFSETS)
def _list_offsets(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.LIST_OFFSETS
    row = of(key, "Partition", partition_index=0, timestamp=rng.choice((-1, -2)))
    topics = [of(key, "Topic", name=name, partitions=[row]) for name in at.topics(rng)]
    return request(key, replica_id=-1, topics=topics)


@builds(ApiKey.METADATA)
def _metadata(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.METADATA
    named = [of(key, "Topic", name=name) for name in at.topics(rng)]
    if version >= 12 and rng.random() < 0.4:
        named = [of(key, "Topic", name=None, topic_id=at.id_of(name)) for name in at.topics(rng)]
    everything = rng.random() < 0.3
    return request(
        key,
        topics=([] if version == 0 else None) if everything else named,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


@builds(ApiKey.OFFSET_COMMIT)
def _offset_commit(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.OFFSET_COMMIT
    row = of(key, "Partition", partition_index=0, committed_offset=3, committed_metadata="m")
    topics = [
        of(key, "Topic", name=name, topic_id=at.id_of(name), partitions=[row])
        for name in at.topics(rng)
    ]
    return request(key, group_id=rng.choice(NAMES), topics=topics)


@builds(ApiKey.OFFSET_FETCH)
def _offset_fetch(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.OFFSET_FETCH
    wanted = at.topics(rng)
    topics = [
        of(key, "Topic", name=name, topic_id=at.id_of(name), partition_indexes=[0])
        for name in wanted
    ]
    everything = version >= 2 and rng.random() < 0.3
    names = rng.sample(NAMES, rng.randint(1, 3))
    groups = [
        of(key, "Group", group_id=name, topics=None if everything else topics) for name in names
    ]
    return request(key, group_id=names[0], topics=None if everything else topics, groups=groups)


@builds(ApiKey.FIND_COORDINATOR)
def _find_coordinator(at: RequestContext, rng: random.Random, version: int) -> Any:
    names = rng.sample(NAMES, 2)
    kind = rng.randrange(2) if version else 0
    return request(ApiKey.FIND_COORDINATOR, key=names[0], key_type=kind, coordinator_keys=names)


@builds(ApiKey.JOIN_GROUP)
def _join_group(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.JOIN_GROUP
    return request(
        key,
        group_id=rng.choice(NAMES),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="nobody",
        protocol_type="consumer",
        protocols=[of(key, "Protocol", name="range", metadata=b"")],
    )


@builds(ApiKey.HEARTBEAT)
def _heartbeat(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.HEARTBEAT, group_id=rng.choice(NAMES), generation_id=1, member_id="nobody"
    )


@builds(ApiKey.LEAVE_GROUP)
def _leave_group(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.LEAVE_GROUP
    members = [of(key, "Member", member_id="nobody")]
    return request(key, group_id=rng.choice(NAMES), member_id="nobody", members=members)


@builds(ApiKey.SYNC_GROUP)
def _sync_group(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.SYNC_GROUP,
        group_id=rng.choice(NAMES),
        generation_id=1,
        member_id="nobody",
        protocol_type="consumer",
        protocol_name="range",
    )


@builds(ApiKey.DESCRIBE_GROUPS)
def _describe_groups(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.DESCRIBE_GROUPS,
        groups=rng.sample(NAMES, rng.randint(1, 3)),
        include_authorized_operations=True,
    )


@builds(ApiKey.CREATE_TOPICS)
def _create_topics(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Create two existing topics, and a new one that no other request uses."""
    key = ApiKey.CREATE_TOPICS
    names = [*rng.sample(NAMES, 2), f"new-{at.number}"]
    rows = [of(key, "Topic", name=each, num_partitions=1, replication_factor=1) for each in names]
    return request(key, topics=rows, timeout_ms=10_000)


@builds(ApiKey.DELETE_TOPICS)
def _delete_topics(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Delete only topics that do not exist."""
    key = ApiKey.DELETE_TOPICS
    names = ["nowhere", "order-nowhere", "bill"]
    rows = [of(key, "Topic", name=each) for each in names]
    if rng.random() < 0.3:
        rows = [of(key, "Topic", name=None, topic_id=NOWHERE)]
    return request(key, topics=rows, topic_names=names, timeout_ms=10_000)


@builds(ApiKey.DELETE_RECORDS)
def _delete_records(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DELETE_RECORDS
    row = of(key, "Partition", partition_index=0, offset=0)
    topics = [of(key, "Topic", name=name, partitions=[row]) for name in at.topics(rng)]
    return request(key, topics=topics, timeout_ms=10_000)


@builds(ApiKey.INIT_PRODUCER_ID)
def _init_producer_id(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.INIT_PRODUCER_ID,
        transactional_id=rng.choice((None, *NAMES)),
        transaction_timeout_ms=60_000,
    )


@builds(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def _offset_for_leader_epoch(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    row = of(key, "Partition", partition=0, leader_epoch=0)
    topics = [of(key, "Topic", topic=name, partitions=[row]) for name in at.topics(rng)]
    return request(key, replica_id=-1, topics=topics)


@builds(ApiKey.ADD_PARTITIONS_TO_TXN)
def _add_partitions_to_txn(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    names = at.topics(rng)
    producer = {"producer_id": 10**6, "producer_epoch": 0}
    name = rng.choice(NAMES)
    transaction = of(
        key,
        "Transaction",
        transactional_id=name,
        verify_only=False,
        topics=[of(key, "Topic", name=each, partitions=[0]) for each in names],
        **producer,
    )
    old = {f"v3_and_below_{each}": value for each, value in producer.items()}
    return request(
        key,
        transactions=[transaction],
        v3_and_below_transactional_id=name,
        v3_and_below_topics=[of(key, "Topic", name=each, partitions=[0]) for each in names],
        **old,
    )


@builds(ApiKey.ADD_OFFSETS_TO_TXN)
def _add_offsets_to_txn(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.ADD_OFFSETS_TO_TXN,
        transactional_id=rng.choice(NAMES),
        producer_id=10**6,
        producer_epoch=0,
        group_id=rng.choice(NAMES),
    )


@builds(ApiKey.END_TXN)
def _end_txn(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.END_TXN,
        transactional_id=rng.choice(NAMES),
        producer_id=10**6,
        producer_epoch=0,
        committed=True,
    )


@builds(ApiKey.WRITE_TXN_MARKERS)
def _write_txn_markers(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.WRITE_TXN_MARKERS
    marker = of(
        key,
        "Marker",
        producer_id=10**6,
        producer_epoch=0,
        transaction_result=True,
        topics=[of(key, "Topic", name="nowhere", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    return request(key, markers=[marker])


@builds(ApiKey.TXN_OFFSET_COMMIT)
def _txn_offset_commit(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.TXN_OFFSET_COMMIT
    row = of(key, "Partition", partition_index=0, committed_offset=3, committed_metadata="m")
    topics = [
        of(key, "Topic", name=name, topic_id=at.id_of(name), partitions=[row])
        for name in at.topics(rng)
    ]
    return request(
        key,
        transactional_id=rng.choice(NAMES),
        group_id=rng.choice(NAMES),
        producer_id=10**6,
        producer_epoch=0,
        member_id="nobody" if version >= 3 else "",
        generation_id_or_member_epoch=1 if version >= 3 else -1,
        topics=topics,
    )


@builds(ApiKey.DESCRIBE_ACLS)
def _describe_acls(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.DESCRIBE_ACLS,
        resource_type_filter=rng.choice((1, 2, 3)),
        resource_name_filter=rng.choice((None, *NAMES)),
        pattern_type_filter=rng.choice((1, 2, 3)),
        operation=1,
        permission_type=1,
    )


@builds(ApiKey.CREATE_ACLS)
def _create_acls(at: RequestContext, rng: random.Random, version: int) -> Any:
    pattern = Pattern(AclResourceType.TOPIC, PatternType.LITERAL, "nobody")
    acl = Acl(pattern, NOBODY, WILDCARD, AclOperation.READ, AclPermission.ALLOW)
    return request(ApiKey.CREATE_ACLS, creations=[creation_of(acl)])


@builds(ApiKey.DELETE_ACLS)
def _delete_acls(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DELETE_ACLS
    row = of(
        key,
        "Filter",
        resource_type_filter=1,
        pattern_type_filter=1,
        principal_filter=f"{NOBODY}-else",
        operation=1,
        permission_type=1,
    )
    return request(key, filters=[row])


# Types of resources that have settings.
_TOPIC, _BROKER, _GROUP = 2, 4, 32
_SETTINGS = {
    _TOPIC: ("retention.ms", "100000"),
    _BROKER: ("background.threads", "10"),
    _GROUP: ("consumer.session.timeout.ms", "50000"),
}


def _configured(at: RequestContext, rng: random.Random) -> list[tuple[int, str]]:
    """Return resources that have settings."""
    found = [(_TOPIC, name) for name in at.topics(rng)]
    return [*found, (_BROKER, str(NODE))] if rng.random() < 0.5 else found


@builds(ApiKey.DESCRIBE_CONFIGS)
def _describe_configs(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_CONFIGS
    rows = [
        of(
            key,
            "Resource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=[_SETTINGS[kind][0]],
        )
        for kind, name in _configured(at, rng)
    ]
    return request(key, resources=rows)


@builds(ApiKey.ALTER_CONFIGS)
def _alter_configs(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ALTER_CONFIGS
    return request(key, resources=_changed(key, _configured(at, rng)), validate_only=True)


@builds(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def _incremental_alter_configs(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    wanted = [*_configured(at, rng), (_GROUP, rng.choice(NAMES))]
    return request(key, resources=_changed(key, wanted), validate_only=True)


def _changed(key: ApiKey, resources: list[tuple[int, str]]) -> list[Any]:
    rows = []
    for kind, name in resources:
        setting, value = _SETTINGS[kind]
        config = of(key, "Config", name=setting, value=value)
        rows.append(of(key, "Resource", resource_type=kind, resource_name=name, configs=[config]))
    return rows


@builds(ApiKey.ALTER_REPLICA_LOG_DIRS)
def _alter_replica_log_dirs(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ALTER_REPLICA_LOG_DIRS
    topics = [of(key, "Topic", name=name, partitions=[0]) for name in at.topics(rng)]
    return request(key, dirs=[of(key, "Dir", path="/nowhere", topics=topics)])


@builds(ApiKey.DESCRIBE_LOG_DIRS)
def _describe_log_dirs(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_LOG_DIRS
    return request(key, topics=[of(key, "Topic", topic="nowhere", partitions=[0])])


@builds(ApiKey.CREATE_PARTITIONS)
def _create_partitions(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.CREATE_PARTITIONS
    rows = [of(key, "Topic", name=name, count=5, assignments=None) for name in at.topics(rng)]
    return request(key, topics=rows, timeout_ms=10_000, validate_only=True)


@builds(ApiKey.DELETE_GROUPS)
def _delete_groups(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.DELETE_GROUPS, groups_names=["nowhere", "bill", "order-nowhere"])


@builds(ApiKey.ELECT_LEADERS)
def _elect_leaders(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ELECT_LEADERS
    topics = [of(key, "Topic", topic=name, partitions=[0]) for name in at.topics(rng)]
    return request(key, topic_partitions=topics, timeout_ms=10_000)


@builds(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def _alter_partition_reassignments(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    row = of(key, "Partition", partition_index=0, replicas=[NODE])
    return request(
        key, topics=[of(key, "Topic", name="nowhere", partitions=[row])], timeout_ms=10_000
    )


@builds(ApiKey.LIST_PARTITION_REASSIGNMENTS)
def _list_partition_reassignments(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None, timeout_ms=10_000)


@builds(ApiKey.OFFSET_DELETE)
def _offset_delete(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.OFFSET_DELETE
    row = of(key, "Partition", partition_index=7)
    topics = [of(key, "Topic", name=name, partitions=[row]) for name in at.topics(rng)]
    return request(key, group_id=rng.choice(NAMES), topics=topics)


@builds(ApiKey.DESCRIBE_CLIENT_QUOTAS)
def _describe_quotas(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    row = of(key, "Component", entity_type="user", match_type=0, match="nobody")
    return request(key, components=[row], strict=True)


@builds(ApiKey.ALTER_CLIENT_QUOTAS)
def _alter_quotas(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ALTER_CLIENT_QUOTAS
    entity = of(key, "Entity", entity_type="user", entity_name="nobody")
    op = of(key, "Op", key="producer_byte_rate", value=1e9, remove=False)
    rows = [of(key, "Entry", entity=[entity], ops=[op])]
    return request(key, entries=rows, validate_only=True)


@builds(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
def _describe_users(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    return request(key, users=[of(key, "User", name="nobody")])


@builds(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
def _alter_users(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    return request(key, deletions=[of(key, "Deletion", name="nobody", mechanism=1)])


@builds(ApiKey.DESCRIBE_QUORUM)
def _describe_quorum(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_QUORUM
    row = of(key, "Partition", partition_index=0)
    return request(key, topics=[of(key, "Topic", topic_name="nowhere", partitions=[row])])


@builds(ApiKey.UPDATE_FEATURES)
def _update_features(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.UPDATE_FEATURES
    row = of(key, "Feature", feature="nothing", max_version_level=1, upgrade_type=1)
    return request(key, feature_updates=[row], timeout_ms=10_000, validate_only=True)


@builds(ApiKey.DESCRIBE_CLUSTER)
def _describe_cluster(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=1
    )


@builds(ApiKey.DESCRIBE_PRODUCERS)
def _describe_producers(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_PRODUCERS
    rows = [of(key, "Topic", name=name, partition_indexes=[7]) for name in at.topics(rng)]
    return request(key, topics=rows)


@builds(ApiKey.UNREGISTER_BROKER)
def _unregister_broker(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.UNREGISTER_BROKER, broker_id=77)


@builds(ApiKey.DESCRIBE_TRANSACTIONS)
def _describe_transactions(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.DESCRIBE_TRANSACTIONS,
        transactional_ids=[OPEN, *rng.sample(NAMES, rng.randint(0, 2))],
    )


@builds(ApiKey.ADD_RAFT_VOTER)
def _add_raft_voter(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.ADD_RAFT_VOTER
    listener = of(key, "Listener", name="CONTROLLER", host="localhost", port=1)
    return request(
        key, voter_id=77, voter_directory_id=NOWHERE, timeout_ms=1000, listeners=[listener]
    )


@builds(ApiKey.REMOVE_RAFT_VOTER)
def _remove_raft_voter(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.REMOVE_RAFT_VOTER, voter_id=77, voter_directory_id=NOWHERE)


@builds(ApiKey.UNREGISTER_CONTROLLER)
def _unregister_controller(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.UNREGISTER_CONTROLLER, controller_id=77)


@builds(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
def _describe_topic_partitions(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    everything = rng.random() < 0.3
    rows = [] if everything else [of(key, "Topic", name=name) for name in at.topics(rng)]
    return request(key, topics=rows, response_partition_limit=1000, cursor=None)


@builds(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def _consumer_group_heartbeat(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        group_id=rng.choice(NAMES),
        member_id="nobody",
        member_epoch=7,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=at.topics(rng),
        topic_partitions=[],
    )


@builds(ApiKey.CONSUMER_GROUP_DESCRIBE)
def _consumer_group_describe(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        group_ids=rng.sample(NAMES, rng.randint(1, 3)),
        include_authorized_operations=True,
    )


@builds(ApiKey.STREAMS_GROUP_HEARTBEAT)
def _streams_group_heartbeat(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Send a heartbeat of a member that is unknown or cannot join."""
    key = ApiKey.STREAMS_GROUP_HEARTBEAT
    part = of(key, "Subtopology", subtopology_id="0", source_topics=at.topics(rng))
    topology = of(key, "Topology", subtopologies=[part])
    epoch = rng.choice((0, 7))
    return request(
        key,
        group_id=rng.choice(NAMES),
        member_id="nobody",
        member_epoch=epoch,
        topology=None if epoch else topology,
    )


@builds(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
def _streams_group_topology_description_update(
    at: RequestContext, rng: random.Random, version: int
) -> Any:
    key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    return request(key, group_id=rng.choice(NAMES), member_id="nobody")


@builds(ApiKey.STREAMS_GROUP_DESCRIBE)
def _streams_group_describe(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        group_ids=rng.sample(NAMES, rng.randint(1, 3)),
        include_authorized_operations=True,
    )


@builds(ApiKey.SHARE_GROUP_HEARTBEAT)
def _share_group_heartbeat(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        group_id=rng.choice(NAMES),
        member_id="nobody",
        member_epoch=7,
        subscribed_topic_names=at.topics(rng),
    )


@builds(ApiKey.SHARE_GROUP_DESCRIBE)
def _share_group_describe(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(
        ApiKey.SHARE_GROUP_DESCRIBE,
        group_ids=rng.sample(NAMES, rng.randint(1, 3)),
        include_authorized_operations=True,
    )


@builds(ApiKey.SHARE_FETCH)
def _share_fetch(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Fetch in a share session that does not exist, like the acknowledgements below."""
    return _without_session(ApiKey.SHARE_FETCH, rng)


@builds(ApiKey.SHARE_ACKNOWLEDGE)
def _share_acknowledge(at: RequestContext, rng: random.Random, version: int) -> Any:
    return _without_session(ApiKey.SHARE_ACKNOWLEDGE, rng)


def _without_session(key: ApiKey, rng: random.Random) -> Any:
    return request(key, group_id=rng.choice(NAMES), member_id="nobody", share_session_epoch=7)


@builds(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
def _describe_share_group_offsets(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    topics = [of(key, "Topic", topic_name=name, partitions=[0]) for name in at.topics(rng)]
    rows = rng.choice((None, topics))
    groups = [of(key, "Group", group_id=name, topics=rows) for name in rng.sample(NAMES, 2)]
    return request(key, groups=groups)


@builds(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
def _alter_share_group_offsets(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Alter offsets of a topic that does not exist.

    For an unknown partition of an existing topic, Kafka would create the group.
    """
    key = ApiKey.ALTER_SHARE_GROUP_OFFSETS
    rows = [of(key, "Partition", partition_index=77, start_offset=0)]
    topics = [of(key, "Topic", topic_name="nowhere", partitions=rows)]
    return request(key, group_id=rng.choice(NAMES), topics=topics)


@builds(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
def _delete_share_group_offsets(at: RequestContext, rng: random.Random, version: int) -> Any:
    key = ApiKey.DELETE_SHARE_GROUP_OFFSETS
    topics = [of(key, "Topic", topic_name=name) for name in at.topics(rng)]
    return request(key, group_id=rng.choice(NAMES), topics=topics)


@builds(ApiKey.CREATE_DELEGATION_TOKEN)
def _create_delegation_token(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Request a token that is always rejected, because its renewer is not a user."""
    key = ApiKey.CREATE_DELEGATION_TOKEN
    renewer = of(key, "Renewer", principal_type="Group", principal_name="nobody")
    owner = {"owner_principal_type": "User", "owner_principal_name": rng.choice(NAMES)}
    return request(key, renewers=[renewer], max_lifetime_ms=60_000, **owner)


@builds(ApiKey.RENEW_DELEGATION_TOKEN)
def _renew_delegation_token(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.RENEW_DELEGATION_TOKEN, hmac=b"nothing", renew_period_ms=1000)


@builds(ApiKey.EXPIRE_DELEGATION_TOKEN)
def _expire_delegation_token(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=b"nothing", expiry_time_period_ms=1000)


@builds(ApiKey.DESCRIBE_DELEGATION_TOKEN)
def _describe_delegation_token(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)


@builds(ApiKey.API_VERSIONS)
def _api_versions(at: RequestContext, rng: random.Random, version: int) -> Any:
    hello = {"client_software_name": "access", "client_software_version": "1.0"}
    return request(ApiKey.API_VERSIONS, **hello)


@builds(ApiKey.LIST_GROUPS)
def _list_groups(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.LIST_GROUPS)


@builds(ApiKey.LIST_TRANSACTIONS)
def _list_transactions(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.LIST_TRANSACTIONS)


@builds(ApiKey.LIST_CONFIG_RESOURCES)
def _list_config_resources(at: RequestContext, rng: random.Random, version: int) -> Any:
    return request(ApiKey.LIST_CONFIG_RESOURCES)


@builds(ApiKey.INITIALIZE_SHARE_GROUP_STATE)
def _initialize_share_group_state(at: RequestContext, rng: random.Random, version: int) -> Any:
    """Use an unknown topic, like all requests about share-group state."""
    return _share_state(ApiKey.INITIALIZE_SHARE_GROUP_STATE, rng)


@builds(ApiKey.READ_SHARE_GROUP_STATE)
def _read_share_group_state(at: RequestContext, rng: random.Random, version: int) -> Any:
    return _share_state(ApiKey.READ_SHARE_GROUP_STATE, rng)


@builds(ApiKey.WRITE_SHARE_GROUP_STATE)
def _write_share_group_state(at: RequestContext, rng: random.Random, version: int) -> Any:
    return _share_state(ApiKey.WRITE_SHARE_GROUP_STATE, rng)


@builds(ApiKey.DELETE_SHARE_GROUP_STATE)
def _delete_share_group_state(at: RequestContext, rng: random.Random, version: int) -> Any:
    return _share_state(ApiKey.DELETE_SHARE_GROUP_STATE, rng)


@builds(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)
def _read_share_group_state_summary(at: RequestContext, rng: random.Random, version: int) -> Any:
    return _share_state(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, rng)


def _share_state(key: ApiKey, rng: random.Random) -> Any:
    topic = of(key, "Topic", topic_id=NOWHERE, partitions=[of(key, "Partition", partition=0)])
    return request(key, group_id=rng.choice(NAMES), topics=[topic])


# APIs that clients use before they are authenticated.
LOGIN_APIS = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
