"""A broker with all kinds of data, and everything about it that clients can read.

`Author` writes topics, transactions, groups and settings to a broker. `observe` reads them, and
`continuations` continues what the clients were doing. Both return plain values, so that two brokers
with the same data directory can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import MemberSubscription
from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import Record, encode_batch, iter_headers
from kbroker.protocol.schema import Struct, fields
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.protocol.versioned import encode_versioned

from .admin_calls import of, request
from .raw import RawConnection
from .transaction_calls import BUSY

SETTLE_SECONDS = 30.0
LONG_MS = 600_000
# Newest versions that name topics by name.
PRODUCE_VERSION = FETCH_VERSION = 12
CLUSTER_WIDE = ""
NOT_YET = BUSY | {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
DYNAMIC_SOURCES = {1, 2, 3, 7, 8}
# Settings of both brokers: members stay in their groups, records in their topics, and Kafka writes
# a snapshot of its metadata after some records.
PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    "log.cleaner.backoff.ms": "100",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.streams.max.session.timeout.ms": str(LONG_MS),
    "group.streams.session.timeout.ms": str(LONG_MS),
    "group.share.max.session.timeout.ms": str(LONG_MS),
    "group.share.session.timeout.ms": str(LONG_MS),
    "group.streams.initial.rebalance.delay.ms": "0",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
}
KAFKA_ONLY = {"metadata.log.max.record.bytes.between.snapshots": "3000"}
TOPICS: Mapping[str, tuple[int, dict[str, str]]] = {
    "codecs": (3, {"retention.ms": "-1", "max.decompressed.message.bytes": "5000000"}),
    "compacted": (
        2,
        {
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "1",
        },
    ),
    "money": (2, {"segment.ms": "1", "remote.copy.lag.ms": "0"}),
    "trimmed": (1, {"message.timestamp.type": "LogAppendTime"}),
    "jobs": (2, {}),
    "source": (2, {}),
    "never-written": (1, {"min.insync.replicas": "1"}),
    "dlq.letters": (1, {"errors.deadletterqueue.group.enable": "true"}),
}
SHARE_GROUP, CLASSIC_GROUP, CONSUMER_GROUP, STREAMS_GROUP = "queue", "old", "modern", "flows"
GROUP_CONFIGS: Mapping[str, dict[str, str]] = {
    SHARE_GROUP: {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "3",
        "errors.deadletterqueue.topic.name": "dlq.letters",
        "errors.deadletterqueue.copy.record.enable": "true",
    },
    CONSUMER_GROUP: {"consumer.heartbeat.interval.ms": "6000"},
    STREAMS_GROUP: {"streams.num.standby.replicas": "1"},
    "nobody-yet": {"consumer.session.timeout.ms": "50000"},
}
METRICS_CONFIGS = {"metrics": "org.apache.kafka.", "interval.ms": "60000"}
BROKER_CONFIGS = {"log.cleaner.threads": "2", "message.max.bytes": "2000000"}
START_MS = int(time.time() * 1000) - 100_000
# Kafka returns an empty message where kbroker returns null.
MESSAGES = frozenset({"error_message"})
# Both hash the topics of a group differently, so kbroker assigns the group again once. Only kbroker
# stores topology descriptions.
REASSIGNED = frozenset(
    {
        "member_epoch",
        "active_tasks",
        "standby_tasks",
        "warmup_tasks",
        "topology_description_required",
    }
)
TRANSACTIONS = ("committed", "aborted", "hanging")


@dataclass(slots=True)
class Producer:
    """An idempotent or transactional producer."""

    id: int
    epoch: int
    transactional_id: str | None = None
    # Next sequence number by topic and partition.
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class Members:
    """Knowledge of group members and producers at the time the broker stops."""

    producers: dict[str, Producer] = field(default_factory=dict)
    classic_id: str = ""
    epochs: dict[str, int] = field(default_factory=dict)


class Client:
    """A connection to a broker, which repeats requests while the broker becomes ready."""

    def __init__(self, address: str) -> None:
        self._connection = RawConnection(address)

    def ask(self, key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request and return its first response of a broker that is ready."""
        message = request(key, **values)
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self._connection.ask(key, version, message)
            if not codes_of(answer) & NOT_YET or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def done(self, key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request that must succeed."""
        answer = self.ask(key, version, **values)
        codes = codes_of(answer)
        assert codes <= {0}, f"{key.api_name}: {answer}"
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def topic_ids(self) -> dict[str, UUID]:
        """Return the topic IDs by name."""
        found = self.done(ApiKey.METADATA, 12, topics=None)
        return {row.name: row.topic_id for row in found.topics}

    def append(
        self, topic: str, partition: int, data: bytes, transaction: str | None = None
    ) -> Any:
        """Append a batch and return the row of its partition."""
        key = ApiKey.PRODUCE
        row = of(key, "Partition", index=partition, records=data)
        rows = [of(key, "Topic", name=topic, partition_data=[row])]
        values = {"transactional_id": transaction, "acks": -1, "timeout_ms": 5000}
        answer = self.ask(key, PRODUCE_VERSION, topic_data=rows, **values)
        return answer.responses[0].partition_responses[0]

    def new_producer(self, transaction: str | None = None) -> Producer:
        """Get a producer ID."""
        if transaction is not None:
            self.done(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[transaction])
        values = {"transactional_id": transaction, "producer_id": -1, "producer_epoch": -1}
        key = ApiKey.INIT_PRODUCER_ID
        made = self.done(key, 5, transaction_timeout_ms=LONG_MS, **values)
        return Producer(made.producer_id, made.producer_epoch, transaction)

    def write(self, producer: Producer, topic: str, partition: int, count: int) -> Any:
        """Append the next records of a producer."""
        place = topic, partition
        sequence = producer.sequences.get(place, 0)
        data = batch_of(producer, count, sequence)
        producer.sequences[place] = sequence + count
        return self.append(topic, partition, data, producer.transactional_id)

    def end(self, producer: Producer, *, commit: bool) -> Any:
        """End a transaction; the producer gets its next epoch."""
        values = {"producer_id": producer.id, "producer_epoch": producer.epoch}
        name = producer.transactional_id
        answer = self.ask(ApiKey.END_TXN, 5, transactional_id=name, committed=commit, **values)
        if not answer.error_code:
            producer.id, producer.epoch = answer.producer_id, answer.producer_epoch
            producer.sequences.clear()
        return answer

    def share_fetch(self, member: str, epoch: int, partitions: Iterable[int], source: UUID) -> Any:
        key = ApiKey.SHARE_FETCH
        rows = [of(key, "Partition", partition_index=index) for index in partitions]
        values = {"member_id": member, "share_session_epoch": epoch, "max_wait_ms": 2000}
        limits = {"min_bytes": 1, "max_bytes": 1 << 20, "max_records": 50, "batch_size": 50}
        topics = [of(key, "Topic", topic_id=source, partitions=rows)] if rows else []
        return self.done(key, 2, group_id=SHARE_GROUP, topics=topics, **values, **limits)

    def acknowledge(
        self, member: str, epoch: int, source: UUID, partition: int, first: int, types: list[int]
    ) -> Any:
        key = ApiKey.SHARE_ACKNOWLEDGE
        last = first + len(types) - 1
        batch = {"first_offset": first, "last_offset": last, "acknowledge_types": types}
        batches = [of(key, "AcknowledgementBatch", **batch)]
        row = of(key, "Partition", partition_index=partition, acknowledgement_batches=batches)
        topics = [of(key, "Topic", topic_id=source, partitions=[row])]
        values = {"member_id": member, "share_session_epoch": epoch, "topics": topics}
        return self.done(key, 2, group_id=SHARE_GROUP, **values)


class Author(Client):
    """Writes everything that an import has to preserve.

    Attributes:
        members: What the clients know.
    """

    def __init__(self, address: str, members: Members) -> None:
        super().__init__(address)
        self.members = members

    def create_topics(self) -> None:
        """Create the topics, and delete one of them."""
        key = ApiKey.CREATE_TOPICS
        rows = [
            of(
                key,
                "Topic",
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[of(key, "Config", name=k, value=v) for k, v in configs.items()],
            )
            for name, (partitions, configs) in {**TOPICS, "deleted": (2, {})}.items()
        ]
        self.done(key, 7, topics=rows, timeout_ms=10_000)
        wait_for(lambda: set(TOPICS) <= set(self.topic_ids()))
        self.append("deleted", 0, batch_of(None, 3))
        gone = [of(ApiKey.DELETE_TOPICS, "Topic", name="deleted")]
        self.done(ApiKey.DELETE_TOPICS, 6, topics=gone, timeout_ms=10_000)

    def alter_configs(self) -> None:
        """Set configs of groups, client metrics and brokers, and remove one."""
        for name, configs in GROUP_CONFIGS.items():
            self._set(GROUP, name, configs)
        self._set(GROUP, CONSUMER_GROUP, {"consumer.session.timeout.ms": None})
        self._set(CLIENT_METRICS, "subscription", METRICS_CONFIGS)
        self._set(BROKER, CLUSTER_WIDE, BROKER_CONFIGS)

    def _set(self, kind: int, name: str, configs: Mapping[str, str | None]) -> None:
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        rows = [
            of(key, "Config", name=k, value=v, config_operation=int(v is None))
            for k, v in configs.items()
        ]
        resource = of(key, "Resource", resource_type=kind, resource_name=name, configs=rows)
        self.done(key, 1, resources=[resource])

    def write_records(self) -> None:
        """Write every codec, a compacted topic, and records below a new log start offset."""
        for codec in Codec:
            for partition in range(3):
                self.append("codecs", partition, batch_of(None, 7, codec=codec))
        producer = self.members.producers.setdefault("idempotent", self.new_producer())
        for _ in range(3):
            self.write(producer, "codecs", 0, 2)
        for number in range(40):
            rows = [
                Record(b"k%d" % (number % 7), b"v%d" % number, START_MS + number * 1000),
                Record(b"gone", None, START_MS + number * 1000),
            ]
            self.append("compacted", number % 2, encode_batch(rows))
        for _ in range(10):
            self.append("trimmed", 0, batch_of(None, 5))
        row = of(ApiKey.DELETE_RECORDS, "Partition", partition_index=0, offset=12)
        topic = of(ApiKey.DELETE_RECORDS, "Topic", name="trimmed", partitions=[row])
        self.done(ApiKey.DELETE_RECORDS, 2, topics=[topic], timeout_ms=10_000)

    def wait_until_compacted(self) -> None:
        """Wait until the cleaner has removed records."""
        wait_for(lambda: len(read_all(self, "compacted", 0, committed=False)[0]) < 20)

    def write_transactions(self, *, last: bool) -> None:
        """Commit and abort transactions. The last call leaves one open."""
        self.done(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=[CLASSIC_GROUP])
        for name in TRANSACTIONS[: 3 if last else 2]:
            producers = self.members.producers
            if name not in producers:
                producers[name] = self.new_producer(name)
            producer = producers[name]
            for partition in range(2):
                row = self.write(producer, "money", partition, 3)
                assert not row.error_code, (name, row)
            self._commit_in_transaction(producer)
            if name != "hanging":
                ended = self.end(producer, commit=name == "committed")
                assert not ended.error_code, (name, ended)

    def _commit_in_transaction(self, producer: Producer) -> None:
        key = ApiKey.TXN_OFFSET_COMMIT
        offset = producer.sequences["money", 0]
        row = of(key, "Partition", partition_index=0, committed_offset=offset)
        topics = [of(key, "Topic", name="source", partitions=[row])]
        values = {"producer_id": producer.id, "producer_epoch": producer.epoch, "topics": topics}
        group = f"offsets of {producer.transactional_id}"
        self.done(key, 5, group_id=group, transactional_id=producer.transactional_id, **values)

    def join_groups(self) -> None:
        """Create a group of each type with a member, and commit offsets."""
        commit_offsets(self, "without members", -1, "")
        self._join_classic()
        for kind, key, version in (
            (CONSUMER_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1),
            (SHARE_GROUP, ApiKey.SHARE_GROUP_HEARTBEAT, 1),
            (STREAMS_GROUP, ApiKey.STREAMS_GROUP_HEARTBEAT, 0),
        ):
            values = {"group_id": kind, "member_id": f"member of {kind}", "member_epoch": 0}
            answer = self.done(key, version, **values, **self._first_heartbeat(kind))
            self.members.epochs[kind] = answer.member_epoch
        for group in (CONSUMER_GROUP, STREAMS_GROUP):
            commit_offsets(self, group, self.members.epochs[group], f"member of {group}")

    def _first_heartbeat(self, kind: str) -> dict[str, Any]:
        if kind == SHARE_GROUP:
            return {"subscribed_topic_names": ["source"]}
        if kind == CONSUMER_GROUP:
            return {
                "instance_id": "static",
                "rebalance_timeout_ms": LONG_MS,
                "subscribed_topic_names": ["source", "codecs"],
                "topic_partitions": [],
            }
        key = ApiKey.STREAMS_GROUP_HEARTBEAT
        part = of(key, "Subtopology", subtopology_id="0", source_topics=["source"])
        topology = of(key, "Topology", epoch=1, subtopologies=[part])
        nothing: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        named = {"process_id": "process", "rebalance_timeout_ms": LONG_MS, "client_tags": []}
        return {"topology": topology, **named, **nothing}

    def _join_classic(self) -> None:
        subscription = encode_versioned(MemberSubscription(topics=["source"], user_data=None), 3)
        key = ApiKey.JOIN_GROUP
        values = {
            "group_id": CLASSIC_GROUP,
            "session_timeout_ms": LONG_MS,
            "rebalance_timeout_ms": LONG_MS,
            "group_instance_id": "static",
            "protocol_type": "consumer",
            "protocols": [of(key, "Protocol", name="range", metadata=subscription)],
        }
        joined = self.done(key, 9, **values)
        self.members.classic_id = joined.member_id
        self.members.epochs[CLASSIC_GROUP] = joined.generation_id
        key = ApiKey.SYNC_GROUP
        rows = [of(key, "Assignment", member_id=joined.member_id, assignment=b"")]
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        self.done(key, 5, **classic_member(self.members), **named, assignments=rows)
        commit_offsets(self, CLASSIC_GROUP, joined.generation_id, joined.member_id, "static")

    def share(self) -> None:
        """Acknowledge records in every way; some become dead letters, some stay acquired."""
        source = self.topic_ids()["source"]
        names = [SharePartitionKey(SHARE_GROUP, source, index).name for index in range(2)]
        self.done(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=names)
        for partition in range(2):
            self.append("source", partition, batch_of(None, 12))
        wait_for(lambda: len(list(share_offsets(self))) == 2)
        epoch = acquire(self, "reader", source)[0]
        # Accepted, released, rejected, gaps, and acquired at the end.
        types = [1, 1, 2, 3, 1, 2, 3, 0]
        for partition in range(2):
            self.acknowledge("reader", epoch + partition, source, partition, 0, types)
        self.share_fetch("reader", epoch + 2, (), source)
        wait_for(lambda: len(read_all(self, "dlq.letters", 0, committed=False)[0]) == 4)


def batch_of(
    producer: Producer | None, count: int, sequence: int = -1, codec: int = Codec.NONE
) -> bytes:
    """Return a batch with keys, null values and repeated headers."""
    rows = [
        Record(
            b"key %d" % number if number % 3 else None,
            b"value %d" % number if number % 5 else None,
            START_MS + number,
            [("a", b"1"), ("a", None)] if number % 2 else [],
        )
        for number in range(count)
    ]
    if producer is None:
        return encode_batch(rows, codec=codec)
    return encode_batch(
        rows,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=producer.transactional_id is not None,
    )


def commit_offsets(
    client: Client, group: str, epoch: int, member: str, instance: str | None = None
) -> None:
    key = ApiKey.OFFSET_COMMIT
    rows = [
        of(key, "Partition", partition_index=i, committed_offset=5 + i, committed_metadata="note")
        for i in range(2)
    ]
    topics = [of(key, "Topic", name=name, partitions=rows) for name in ("source", "jobs")]
    values = {"generation_id_or_member_epoch": epoch, "group_instance_id": instance}
    client.done(key, 9, group_id=group, member_id=member, topics=topics, **values)


def share_offsets(client: Client) -> Iterator[Any]:
    """Yield the rows of the partitions that the share group has initialized."""
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    rows = [of(key, "Group", group_id=SHARE_GROUP, topics=None)]
    (found,) = client.done(key, 1, groups=rows).groups
    return (row for topic in found.topics for row in topic.partitions)


def acquire(client: Client, member: str, source: UUID) -> tuple[int, dict[int, Any]]:
    """Open a share session, and acquire all available records of both partitions.

    Returns:
        The next session epoch, and the first acquired ranges by partition.
    """
    found: dict[int, Any] = {}
    for epoch in range(20):
        answer = client.share_fetch(member, epoch, () if epoch else range(2), source)
        rows = [row for topic in answer.responses for row in topic.partitions]
        for row in rows:
            if row.acquired_records:
                found.setdefault(row.partition_index, plain(row.acquired_records))
        if len(found) == 2:
            return epoch + 1, dict(sorted(found.items()))
    raise AssertionError(f"only these records were acquired: {found}")


def classic_member(members: Members) -> dict[str, Any]:
    return {
        "group_id": CLASSIC_GROUP,
        "generation_id": members.epochs[CLASSIC_GROUP],
        "member_id": members.classic_id,
        "group_instance_id": "static",
    }


def codes_of(value: Any) -> set[int]:
    """Return all error codes of a response."""
    if isinstance(value, list):
        return {code for each in value for code in codes_of(each)}
    if not isinstance(value, Struct):
        return set()
    values = {each.name: getattr(value, each.name) for each in fields(type(value))}
    own = {code for name, code in values.items() if name.endswith("error_code")}
    return own | {code for each in values.values() for code in codes_of(each)}


def wait_for(holds: Any) -> None:
    """Wait until a function returns a true value."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, holds
        time.sleep(0.1)


def plain(value: Any, omitted: frozenset[str] = MESSAGES) -> Any:
    """Return a response as plain values, with rows in an order of their own."""
    if isinstance(value, Struct):
        return {
            each.name: plain(getattr(value, each.name), omitted)
            for each in fields(type(value))
            if each.name not in omitted
        }
    if isinstance(value, (list, tuple)):
        rows = [plain(each, omitted) for each in value]
        return sorted(rows, key=repr)
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    return value


def read_all(
    client: Client, topic: str, partition: int, *, committed: bool
) -> tuple[list[Any], list[Any]]:
    """Return the records of a partition with their batches, and its aborted transactions."""
    rows: list[Any] = []
    aborted: list[Any] = []
    key, position = ApiKey.FETCH, 0
    start = _offsets(client, topic, [partition], -2)[0][1]
    position = start
    while True:
        row = of(key, "Partition", partition=partition, fetch_offset=position)
        row.partition_max_bytes = 1 << 20
        topics = [of(key, "Topic", topic=topic, partitions=[row])]
        limits = {"max_bytes": 1 << 22, "isolation_level": int(committed)}
        answer = client.ask(key, FETCH_VERSION, topics=topics, **limits).responses[0].partitions[0]
        assert not answer.error_code, (topic, answer)
        aborted += [
            (each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
        ]
        end = answer.last_stable_offset if committed else answer.high_watermark
        data = memoryview(bytes(answer.records or b""))
        for at, header in iter_headers(data):
            if header.base_offset >= end:
                break
            rows += _records(data[at : at + header.size], header)
            position = header.last_offset + 1
        if position >= end:
            return rows, sorted(set(aborted))


def _records(data: memoryview, header: Any) -> Iterator[Any]:
    batch = (header.producer_id, header.producer_epoch, header.base_sequence, header.attributes)
    for record in batch_records(data, header):
        content = bytes(record.key or b"-"), bytes(record.value or b"-"), list(record.headers)
        yield (record.offset, record.timestamp, *content, header.leader_epoch, *batch)


def _offsets(client: Client, topic: str, partitions: Iterable[int], time_ms: int) -> list[Any]:
    """Return partition, offset, timestamp and leader epoch of a look-up."""
    key = ApiKey.LIST_OFFSETS
    rows = [of(key, "Partition", partition_index=each, timestamp=time_ms) for each in partitions]
    topics = [of(key, "Topic", name=topic, partitions=rows)]
    answer = client.done(key, 8, replica_id=-1, topics=topics)
    found = [row for each in answer.topics for row in each.partitions]
    return sorted((row.partition_index, row.offset, row.timestamp) for row in found)


# -- observing


def observe(address: str) -> dict[str, Any]:
    """Return everything that clients can read, by a name of its part."""
    seen: dict[str, Any] = {}
    with Client(address) as client:
        for part in (_topics, _logs, _producers, _groups, _shares, _security, _configs):
            seen |= part(client)
    return seen


def _topics(client: Client) -> dict[str, Any]:
    wait_for(lambda: not codes_of(client.ask(ApiKey.METADATA, 12, topics=None)) - {0})
    found = client.done(ApiKey.METADATA, 12, topics=None)
    rows = [(row.name, row.topic_id, len(row.partitions), row.is_internal) for row in found.topics]
    return {"topics": sorted(rows), "cluster": found.cluster_id}


def _logs(client: Client) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, topic_id, count, is_internal in _topics(client)["topics"]:
        del topic_id
        indexes = [*range(count)]
        for time_ms in (-1, -2, -3, START_MS + 2):
            if not is_internal or time_ms == -2:
                seen[f"offsets of {name} at {time_ms - START_MS if time_ms > 0 else time_ms}"] = (
                    _offsets(client, name, indexes, time_ms)
                )
        for index in indexes if not is_internal else ():
            for committed in (False, True):
                rows, aborted = read_all(client, name, index, committed=committed)
                seen[f"records of {name}-{index}, committed {committed}"] = rows
                seen[f"aborted in {name}-{index}, committed {committed}"] = aborted
            seen[f"epochs of {name}-{index}"] = _epochs(client, name, index)
    return seen


def _epochs(client: Client, topic: str, partition: int) -> list[Any]:
    """Return the end offsets of the first leader epochs."""
    key, found = ApiKey.OFFSET_FOR_LEADER_EPOCH, []
    for epoch in range(2):
        row = of(key, "Partition", partition=partition, leader_epoch=epoch)
        topics = [of(key, "Topic", topic=topic, partitions=[row])]
        answer = client.done(key, 4, topics=topics).topics[0].partitions[0]
        found.append((answer.leader_epoch, answer.end_offset))
    return found


def _producers(client: Client) -> dict[str, Any]:
    key = ApiKey.DESCRIBE_PRODUCERS
    rows = [of(key, "Topic", name=name, partition_indexes=[0, 1]) for name in ("money", "codecs")]
    names = list(TRANSACTIONS)
    return {
        "producers": plain(client.done(key, 0, topics=rows)),
        "transactions": plain(client.ask(ApiKey.LIST_TRANSACTIONS, 1)),
        **{
            f"transaction {name}": plain(
                client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name])
            )
            for name in names
        },
    }


def _groups(client: Client) -> dict[str, Any]:
    listed = plain(client.done(ApiKey.LIST_GROUPS, 5))
    groups = sorted(row["group_id"] for row in listed["groups"])
    seen = {"groups": listed}
    for group in groups:
        key = ApiKey.OFFSET_FETCH
        rows = [of(key, "Group", group_id=group, topics=None)]
        seen[f"offsets of {group}"] = plain(client.ask(key, 9, groups=rows))
    omitted = MESSAGES | {"client_host"}
    describe = {
        CLASSIC_GROUP: (ApiKey.DESCRIBE_GROUPS, 6, "groups"),
        CONSUMER_GROUP: (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "group_ids"),
        SHARE_GROUP: (ApiKey.SHARE_GROUP_DESCRIBE, 1, "group_ids"),
        STREAMS_GROUP: (ApiKey.STREAMS_GROUP_DESCRIBE, 1, "group_ids"),
    }
    for group, (key, version, name) in describe.items():
        seen[f"description of {group}"] = plain(
            client.done(key, version, **{name: [group]}), omitted
        )
    return seen


def _shares(client: Client) -> dict[str, Any]:
    source = client.topic_ids()["source"]
    key = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
    rows = [of(key, "Partition", partition=index) for index in range(2)]
    topics = [of(key, "Topic", topic_id=source, partitions=rows)]
    summary = client.done(key, 1, group_id=SHARE_GROUP, topics=topics)
    key = ApiKey.READ_SHARE_GROUP_STATE
    epochs = {row.partition: row.leader_epoch for row in summary.results[0].partitions}
    rows = [of(key, "Partition", partition=i, leader_epoch=epochs[i]) for i in range(2)]
    topics = [of(key, "Topic", topic_id=source, partitions=rows)]
    state = client.done(key, 0, group_id=SHARE_GROUP, topics=topics)
    omitted = MESSAGES | {"leader_epoch"}
    return {
        "share state": plain(state),
        "share summary": plain(summary),
        "share offsets": plain([*share_offsets(client)], omitted),
    }


def _security(client: Client) -> dict[str, Any]:
    acls = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
    return {
        "acls": plain(client.done(ApiKey.DESCRIBE_ACLS, 3, permission_type=1, **acls)),
        "quotas": plain(client.done(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=[])),
        "users": plain(client.done(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)),
    }


def _configs(client: Client) -> dict[str, Any]:
    key = ApiKey.LIST_CONFIG_RESOURCES
    listed = client.done(key, 1, resource_types=[TOPIC, CLIENT_METRICS, GROUP]).config_resources
    resources = [(each.resource_type, each.resource_name) for each in listed]
    seen: dict[str, Any] = {"resources": sorted(resources)}
    key = ApiKey.DESCRIBE_CONFIGS
    for kind, name in [*resources, (BROKER, CLUSTER_WIDE), (BROKER, "1")]:
        row = of(key, "Resource", resource_type=kind, resource_name=name)
        (found,) = client.done(key, 4, resources=[row]).results
        own = [
            (each.name, each.value, each.config_source)
            for each in found.configs
            if each.config_source in DYNAMIC_SOURCES
        ]
        seen[f"configs of {kind} {name}"] = sorted(own)
    return seen


# -- continuing


def continuations(address: str, members: Members) -> list[tuple[str, Any]]:
    """Continue everything, and return the responses without generated values."""
    with Client(address) as client:
        return [
            *_members_continue(client, members),
            *_producers_continue(client, members),
            *_share_continues(client),
        ]


def _members_continue(client: Client, members: Members) -> Iterator[tuple[str, Any]]:
    yield "classic", plain(client.ask(ApiKey.HEARTBEAT, 4, **classic_member(members)))
    for kind, key, version in (
        (CONSUMER_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1),
        (SHARE_GROUP, ApiKey.SHARE_GROUP_HEARTBEAT, 1),
        (STREAMS_GROUP, ApiKey.STREAMS_GROUP_HEARTBEAT, 1),
    ):
        values: dict[str, Any] = {"group_id": kind, "member_id": f"member of {kind}"}
        if kind == CONSUMER_GROUP:
            values["instance_id"] = "static"
        answer = client.ask(key, version, member_epoch=members.epochs[kind], **values)
        yield kind, plain(answer, MESSAGES if kind == SHARE_GROUP else REASSIGNED)


def _producers_continue(client: Client, members: Members) -> Iterator[tuple[str, Any]]:
    omitted = MESSAGES | {"log_append_time_ms"}
    idempotent = members.producers["idempotent"]
    sequence = idempotent.sequences["codecs", 0]
    idempotent.sequences["codecs", 0] = sequence - 2
    for what in ("repeated", "next"):
        yield what, plain(client.write(idempotent, "codecs", 0, 2), omitted)
    hanging = members.producers["hanging"]
    yield "hanging: write", plain(client.write(hanging, "money", 0, 1), omitted)
    yield "hanging: commit", plain(client.end(hanging, commit=True))
    wait_for(lambda: _is_stable(client))
    for name in ("committed", "aborted"):
        known = members.producers[name]
        again = client.new_producer(name)
        yield f"{name} again", (again.id == known.id, again.epoch - known.epoch)
    fresh = client.new_producer()
    known_ids = {each.id for each in members.producers.values()}
    yield "fresh producer", (fresh.id > max(known_ids))
    for committed in (False, True):
        yield "money", read_all(client, "money", 0, committed=committed)[1]


def _is_stable(client: Client) -> bool:
    ends = [len(read_all(client, "money", 0, committed=each)[0]) for each in (False, True)]
    return ends[0] == ends[1]


def _share_continues(client: Client) -> Iterator[tuple[str, Any]]:
    """Acquire what is left; the delivery counts go on."""
    source = client.topic_ids()["source"]
    names = [SharePartitionKey(SHARE_GROUP, source, index).name for index in range(2)]
    client.done(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=names)
    for partition, rows in acquire(client, "later", source)[1].items():
        yield f"acquired in {partition}", rows
