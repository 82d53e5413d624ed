"""ShareFetch and ShareAcknowledge (KIP-932) on kbroker and Apache Kafka 4.4.

All fields of the responses are compared. The states at the share coordinator are compared too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from harness.admin_calls import of, request
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.raw import RawConnection

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch, iter_headers
from kbroker.protocol.schema import Struct, fields
from kbroker.protocol.share_state_log import SharePartitionKey

TOPIC, GROUP, PARTITIONS = "orders", "queue", 3
MEMBERS = ("a", "b", "c")
STEPS = int(os.environ.get("KBROKER_COMPAT_GROUP_CALLS", "400"))
SETTLE_SECONDS = 20
# Seconds until locks of LOCK_MS have expired and the new record states are stored.
LOCK_SECONDS = 2.5
LOCK_MS = 2000
# Seconds until records that a closing session released can be acquired again.
RELEASED_SECONDS = 0.15
SETTLE_CONFIG_SECONDS = 1
# Maximum wait of a fetch. With a shorter one, Kafka may respond before it has read.
WAIT_MS = 30
# Timestamp of all records. Records older than the markers would be in a segment of their own.
NOW_MS = int(time.time() * 1000)
NOT_YET = {14, 15, 16}
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.share.max.size": "6",
    "group.share.max.share.sessions": "6",
    "group.share.partition.max.record.locks": "100",
    "group.share.min.partition.max.record.locks": "100",
    "group.share.min.record.lock.duration.ms": "1000",
    # No lock expires during a long random run: the brokers would notice at different times.
    "group.share.max.record.lock.duration.ms": "3600000",
    "group.share.record.lock.duration.ms": "3600000",
}
FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
INITIALIZE, READ = ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE
SUMMARY = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
UNKNOWN_ID = UUID(int=7)

# Acknowledgement of records: first offset, last offset, types.
Row: TypeAlias = tuple[int, int, list[int]]
# Acknowledgements by partition.
Acknowledgements: TypeAlias = dict[int, list[Row]]
# Stored state: start offset and number of completed records after it (from the summary), state
# epoch, start offset (from the read), and offset, state and delivery count of each record.
State: TypeAlias = tuple[int, int, int, int, list[tuple[int, int, int]]]
# Record states: acknowledged, archived.
FINAL_STATES = {2, 4}


@dataclass(slots=True)
class Side:
    """One of the two brokers, with a connection per member."""

    broker: Broker
    topic_id: UUID
    connection: RawConnection
    members: dict[str, RawConnection] = field(default_factory=dict)
    transaction: tuple[str, int, int] = ("", -1, -1)

    def connection_of(self, name: str) -> RawConnection:
        if name not in self.members:
            self.members[name] = RawConnection(self.broker.address)
        return self.members[name]

    def drop(self, name: str) -> None:
        """Close a member's connection, which ends its session and releases its records."""
        if name in self.members:
            self.members.pop(name).close()

    def begin_transaction(self, name: str) -> None:
        key = ApiKey.FIND_COORDINATOR
        find = request(key, key_type=1, coordinator_keys=[name])
        init = request(
            ApiKey.INIT_PRODUCER_ID,
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            self.connection.ask(key, 4, find)
            made = self.connection.ask(ApiKey.INIT_PRODUCER_ID, 5, init)
            if not made.error_code or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert not made.error_code, made
        self.transaction = name, made.producer_id, made.producer_epoch

    def produce_in_transaction(self, batch: Any) -> None:
        """Write a batch of 4 records, which adds the partition to the transaction."""
        name, producer_id, epoch = self.transaction
        data = batch(
            4, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True
        )
        key = ApiKey.PRODUCE
        row = of(key, "Partition", index=0, records=data)
        topic = of(key, "Topic", name=TOPIC, partition_data=[row])
        message = request(key, transactional_id=name, acks=-1, timeout_ms=5000, topic_data=[topic])
        answer = self.connection.ask(key, 12, message)
        assert not answer.responses[0].partition_responses[0].error_code, answer

    def end_transaction(self, commit: bool) -> None:
        name, producer_id, epoch = self.transaction
        message = request(
            ApiKey.END_TXN,
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        assert not self.connection.ask(ApiKey.END_TXN, 5, message).error_code

    def state(self, key: ApiKey, partition: int, group: str = GROUP, **row: Any) -> Any:
        topic = of(key, "Topic", topic_id=self.topic_id, partitions=[of(key, "Partition", **row)])
        topic.partitions[0].partition = partition
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            message = request(key, group_id=group, topics=[topic])
            answer = self.connection.ask(key, 1 if key == SUMMARY else 0, message)
            (found,) = answer.results[0].partitions
            if found.error_code not in NOT_YET or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def comparable(value: Any, topic_id: UUID) -> Any:
    """Return the fields of a response in comparable form. Kafka returns rows in any order."""
    if isinstance(value, Struct):
        return {
            each.name: comparable(getattr(value, each.name), topic_id)
            for each in fields(type(value))
        }
    if isinstance(value, list):
        rows = [comparable(each, topic_id) for each in value]
        return (
            sorted(rows, key=lambda row: (row.get("topic_id", ""), row.get("partition_index", 0)))
            if rows
            and isinstance(rows[0], dict)
            and ("partition_index" in rows[0] or "topic_id" in rows[0])
            else rows
        )
    if isinstance(value, UUID):
        return "topic" if value == topic_id else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)  # Kafka may append a partial batch
        return [
            (header.base_offset, header.last_offset)  # skip the times of markers
            if header.is_control
            else data[position : position + header.size]
            for position, header in iter_headers(data)
        ]
    return value


def brief(answer: Any) -> str:
    """Return a response without its record bytes."""
    text = repr(
        [
            {name: value for name, value in answer.items() if name != "responses"},
            *(
                {k: len(v) if k == "records" else v for k, v in row.items() if v}
                for topic in answer["responses"]
                for row in topic["partitions"]
            ),
        ]
    )
    return text.replace("}, {", "},\n  {")


def batches_of(cls: Any, acknowledgements: list[Row]) -> list[Any]:
    return [
        cls.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in acknowledgements
    ]


class Pair:
    """Sends the same requests to both brokers and compares the responses."""

    def __init__(self, sides: tuple[Side, Side], group: str = GROUP) -> None:
        self.sides = sides
        self.group = group
        self.epochs: dict[str, int] = {}
        self.history: list[str] = []
        self.seed = 0

    def produce(self, partition: int, batch: bytes) -> None:
        key = ApiKey.PRODUCE
        row = of(key, "Partition", index=partition, records=batch)
        topic = of(key, "Topic", name=TOPIC, partition_data=[row])
        message = request(key, acks=-1, timeout_ms=5000, topic_data=[topic])
        for side in self.sides:
            answer = side.connection.ask(key, 9, message)
            assert not answer.responses[0].partition_responses[0].error_code

    def fetch(
        self,
        member: str,
        partitions: list[int],
        acknowledgements: Acknowledgements | None = None,
        forget: Sequence[int] = (),
        known: bool = True,
        version: int = 2,
        **more: Any,
    ) -> Any:
        epoch = more.pop("share_session_epoch", self.epochs.get(member, 0))
        answers = []
        for side in self.sides:
            cls: Any = type(request(FETCH))
            topic_id = side.topic_id if known else UNKNOWN_ID
            rows = [
                cls.Partition(
                    partition_index=index,
                    acknowledgement_batches=batches_of(
                        cls, (acknowledgements or {}).get(index, [])
                    ),
                )
                for index in dict.fromkeys([*partitions, *(acknowledgements or {})])
            ]
            defaults: dict[str, Any] = {
                "group_id": self.group,
                "member_id": member,
                "share_session_epoch": epoch,
                "max_wait_ms": WAIT_MS,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "max_records": 20,
                "batch_size": 20,
                "topics": [cls.Topic(topic_id=topic_id, partitions=rows)] if rows else [],
                "forgotten_topics_data": [
                    cls.ForgottenTopic(topic_id=side.topic_id, partitions=list(forget))
                ]
                if forget
                else [],
            }
            message = request(FETCH, **defaults | more)
            answers.append((side, side.connection_of(member).ask(FETCH, version, message)))
        return self._same(
            f"fetch {member} {epoch} {partitions} {acknowledgements} {forget} {version} {more}",
            answers,
            member,
            epoch,
        )

    def acknowledge(
        self,
        member: str,
        acknowledgements: Acknowledgements,
        version: int = 2,
        known: bool = True,
        **more: Any,
    ) -> Any:
        epoch = more.pop("share_session_epoch", self.epochs.get(member, 0))
        answers = []
        for side in self.sides:
            cls: Any = type(request(ACKNOWLEDGE))
            rows = [
                cls.Partition(partition_index=index, acknowledgement_batches=batches_of(cls, some))
                for index, some in acknowledgements.items()
            ]
            topic_id = side.topic_id if known else UNKNOWN_ID
            message = request(
                ACKNOWLEDGE,
                **{
                    "group_id": self.group,
                    "member_id": member,
                    "share_session_epoch": epoch,
                    "topics": [cls.Topic(topic_id=topic_id, partitions=rows)],
                }
                | more,
            )
            answers.append((side, side.connection_of(member).ask(ACKNOWLEDGE, version, message)))
        return self._same(
            f"acknowledge {member} {epoch} {acknowledgements} {version} {more}",
            answers,
            member,
            epoch,
        )

    def _same(self, what: str, answers: list[tuple[Side, Any]], member: str, epoch: int) -> Any:
        self.history.append(what)
        ours, theirs = (comparable(answer, side.topic_id) for side, answer in answers)
        assert ours == theirs, "\n".join(
            [*self.history[-12:], "ours", brief(ours), "theirs", brief(theirs)]
        )
        answer = answers[0][1]
        if not answer.error_code:
            if epoch == -1:
                self.epochs.pop(member, None)
                self.same_states()
                time.sleep(RELEASED_SECONDS)
            else:
                self.epochs[member] = epoch + 1
        return answer

    def configure(self, name: str, value: str) -> None:
        """Set a config of the group."""
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        row = of(key, "Config", name=name, config_operation=0, value=value)
        resource = of(key, "Resource", resource_type=32, resource_name=self.group, configs=[row])
        for side in self.sides:
            (answer,) = side.connection.ask(key, 1, request(key, resources=[resource])).responses
            assert not answer.error_code, answer
        time.sleep(SETTLE_CONFIG_SECONDS)

    def begin(self, member: str, partitions: list[int], *, records_max: int = 0) -> None:
        """Open a session with a long wait, because a group's first fetch reads its state."""
        self.epochs.pop(member, None)
        for side in self.sides:
            cls: Any = type(request(FETCH))
            rows = [cls.Partition(partition_index=index) for index in partitions]
            message = request(
                FETCH,
                group_id=self.group,
                member_id=member,
                max_wait_ms=1000,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=records_max,
                batch_size=1,
                topics=[cls.Topic(topic_id=side.topic_id, partitions=rows)],
            )
            assert not side.connection_of(member).ask(FETCH, 2, message).error_code
        self.epochs[member] = 1

    def same_states(self, seen: Callable[[State], State] = lambda state: state) -> None:
        """Wait until both brokers have stored the same states. Some writes are asynchronous."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while different := self._different(seen):
            assert time.monotonic() < deadline, "\n".join(different + self.history[-12:])
            time.sleep(0.1)

    def _different(self, seen: Callable[[State], State]) -> list[str]:
        return [
            f"{partition}: {ours}, but Apache {theirs}"
            for partition in range(PARTITIONS)
            for ours, theirs in [[self._state(each, partition) for each in self.sides]]
            if seen(ours) != seen(theirs)
        ]

    def _state(self, side: Side, partition: int) -> State:
        summary = side.state(SUMMARY, partition, self.group)
        read = side.state(READ, partition, self.group, leader_epoch=summary.leader_epoch)
        assert (summary.error_code, read.error_code) == (0, 0), (summary, read)
        return (
            summary.start_offset,
            summary.delivery_complete_count,
            summary.state_epoch,
            read.start_offset,
            [
                (offset, b.delivery_state, b.delivery_count)
                for b in read.state_batches
                for offset in range(b.first_offset, b.last_offset + 1)
            ],
        )


def in_effect(state: State) -> State:
    """Return the state as a new leader reads it: completed records at the start are skipped.

    Kafka stores each expired lock separately. It is random whether the start offset advances before
    Kafka stores the next lock that expired in the same millisecond.
    """
    start, done_count, epoch, read_start, records = state
    done = {offset for offset, became, _ in records if became in FINAL_STATES}
    while start in done:
        start, done_count = start + 1, done_count - 1
    return start, done_count, epoch, max(start, read_start), [r for r in records if r[0] >= start]


def side(broker: Broker) -> Side:
    connection = RawConnection(broker.address)
    key = ApiKey.CREATE_TOPICS
    row = of(key, "Topic", name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    (made,) = connection.ask(key, 7, request(key, topics=[row], timeout_ms=10_000)).topics
    assert not made.error_code, made
    name = SharePartitionKey(GROUP, made.topic_id, 0).name
    find = request(ApiKey.FIND_COORDINATOR, key_type=2, coordinator_keys=[name])
    deadline = time.monotonic() + SETTLE_SECONDS
    while connection.ask(ApiKey.FIND_COORDINATOR, 6, find).coordinators[0].error_code:
        assert time.monotonic() < deadline, "no coordinator"
        time.sleep(0.1)
    return Side(broker, made.topic_id, connection)


@contextmanager
def started_sides(
    tmp_path_factory: pytest.TempPathFactory, properties: Mapping[str, str]
) -> Iterator[tuple[Side, Side]]:
    """Start kbroker and Apache Kafka with the same properties, and stop both at the end."""
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), properties),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), properties),
    ]
    try:
        for broker in brokers:
            broker.start()
        ours, theirs = map(side, brokers)
        yield ours, theirs
        for each in (ours, theirs):
            each.connection.close()
            for member in each.members.values():
                member.close()
    finally:
        for broker in brokers:
            broker.kill()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    with started_sides(tmp_path_factory, PROPERTIES) as both:
        yield both


def group_of(sides: tuple[Side, Side], group: str, start: int | None = None) -> Pair:
    pair = Pair(sides, group)
    for each in sides:
        for partition in range(PARTITIONS):
            offset = end_of(each, partition) if start is None else start
            assert not each.state(INITIALIZE, partition, group, start_offset=offset).error_code
    return pair


def has_marker(side: Side) -> None:
    """Wait until a transaction has completed: Kafka writes markers asynchronously."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while end_of(side, 0, isolation_level=1) < end_of(side, 0):
        assert time.monotonic() < deadline, "no transaction marker"
        time.sleep(0.05)


def end_of(side: Side, partition: int, **more: Any) -> int:
    key = ApiKey.LIST_OFFSETS
    row = of(key, "Partition", partition_index=partition, timestamp=-1)
    message = request(
        key, replica_id=-1, topics=[of(key, "Topic", name=TOPIC, partitions=[row])], **more
    )
    return int(side.connection.ask(key, 7, message).topics[0].partitions[0].offset)


def rows_of(answer: Any) -> list[Any]:
    return [row for topic in answer.responses for row in topic.partitions]


def acquired(answer: Any, became: int) -> list[Row]:
    """Return the acquired records of a fetch as acknowledgements of one type."""
    return [
        (each.first_offset, each.last_offset, [became])
        for row in rows_of(answer)
        for each in row.acquired_records
    ]


def random_batch(rng: random.Random) -> bytes:
    count = rng.choice((1, 1, 2, 3, 5, 8, 15))
    return encode_batch([Record(b"k", b"%d" % rng.randrange(1000), NOW_MS) for _ in range(count)])


class Walk:
    """Members of one group with random requests.

    Limits apply only with one partition. With several, Kafka's order depends on hashed topic ids.
    """

    def __init__(self, sides: tuple[Side, Side], seed: int) -> None:
        self.sides = sides
        self.random = random.Random(seed)
        self.pair = group_of(sides, f"group {seed}")
        self.partitions = range(PARTITIONS if seed % 3 == 2 else 1)
        self.acknowledges_with_fetches = seed >= 3
        if self.acknowledges_with_fetches:  # the start offset advances at random times
            self.pair.configure("share.partition.max.record.locks", "4000")
        self.held: dict[tuple[str, int], set[int]] = {}
        self.ends = [end_of(sides[0], partition) for partition in range(PARTITIONS)]
        self.codes: set[int] = set()

    def make_acknowledgements(
        self, member: str, types: tuple[int, ...] = (1, 1, 2, 2, 3, 0)
    ) -> Acknowledgements:
        """Return acknowledgements of records that a member holds, or does not hold."""
        rng = self.random
        count = min(len(self.partitions), rng.choice((1, 1, 2)))
        found: Acknowledgements = {}
        for partition in rng.sample(self.partitions, count):
            mine = sorted(self.held.get((member, partition), ()))
            if mine and rng.random() < 0.9:
                found[partition] = self._of(mine, types)
            else:
                found[partition] = self._nonsense(partition)
        return found

    def _of(self, mine: list[int], types: tuple[int, ...]) -> list[Row]:
        rng = self.random
        rows: list[Row] = []
        last = -1
        for _ in range(rng.randrange(1, 4)):
            rest = [offset for offset in mine if offset > last]
            if not rest:
                break
            first = last = rng.choice(rest[: max(1, len(rest) // 2)])
            while last + 1 in rest and rng.random() < 0.8:
                last += 1
            count = 1 if rng.random() < 0.5 else last - first + 1
            rows.append((first, last, rng.choices(types, k=count)))
            if rng.random() < 0.05:
                last += rng.randrange(3)
        return rows

    def _nonsense(self, partition: int) -> list[Row]:
        rng = self.random
        end = self.ends[partition]
        first = max(0, rng.choice((end - rng.randrange(40), rng.randrange(max(end, 1)))))
        return [(first, first + rng.choice((0, 0, 1, 3, -1)), [rng.choice((1, 3, 4, 5, -1))])]

    def forget(self, member: str, acknowledgements: Acknowledgements) -> None:
        for partition, rows in acknowledgements.items():
            for first, last, _ in rows:
                mine = self.held.setdefault((member, partition), set())
                mine.difference_update(range(first, last + 1))

    def produce(self, member: str) -> None:
        partition = self.random.choice(self.partitions)
        for _ in range(self.random.randrange(1, 4)):
            self.pair.produce(partition, random_batch(self.random))
        self.ends[partition] = end_of(self.sides[0], partition)

    def fetch(self, member: str) -> None:
        rng = self.random
        if member not in self.pair.epochs:
            self.pair.begin(member, list(self.partitions))
            return
        acknowledges = self.acknowledges_with_fetches and rng.random() < 0.4
        acknowledgements = self.make_acknowledgements(member, (0, 1, 3)) if acknowledges else None
        is_one = len(self.partitions) == 1
        answer = self.pair.fetch(
            member,
            [],
            acknowledgements,
            max_records=rng.choice((1, 3, 10, 20, 100)) if is_one else 1000,
            batch_size=rng.choice((1, 5, 20, 500)),
            share_acquire_mode=rng.choice((0, 0, 1)),
            max_bytes=rng.choice((1 << 20, 1 << 20, 300)) if is_one else 1 << 20,
        )
        self.forget(member, acknowledgements or {})
        for row in rows_of(answer):
            self.codes.add(row.acknowledge_error_code)
            for each in row.acquired_records:
                mine = self.held.setdefault((member, row.partition_index), set())
                mine.update(range(each.first_offset, each.last_offset + 1))

    def acknowledge(self, member: str) -> None:
        if member in self.pair.epochs:
            acknowledgements = self.make_acknowledgements(member)
            answer = self.pair.acknowledge(member, acknowledgements)
            self.forget(member, acknowledgements)
            self.codes.update(row.error_code for row in rows_of(answer))

    def guess_epoch(self, member: str) -> None:
        epoch = self.random.choice((0, 1, 5, -1, -2))
        if epoch == -1 and member not in self.pair.epochs:
            return
        answer = self.pair.acknowledge(member, {0: []}, share_session_epoch=epoch)
        if epoch == -1 and not answer.error_code:
            for partition in self.partitions:
                self.held.pop((member, partition), None)

    def compare_states(self, member: str) -> None:
        self.pair.same_states()

    def step(self) -> None:
        do = self.random.choices(
            (self.produce, self.fetch, self.acknowledge, self.guess_epoch, self.compare_states),
            (25, 35, 30, 5, 5),
        )[0]
        do(self.random.choice(MEMBERS))


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_have_same_responses_and_states(
    sides: tuple[Side, Side], seed: int
) -> None:
    for each in sides:
        for name in MEMBERS:
            each.drop(name)
    walk = Walk(sides, seed)
    for member in MEMBERS:
        walk.pair.begin(member, list(walk.partitions), records_max=1)  # there are no records yet
    for _ in range(STEPS):
        walk.step()
    walk.compare_states(MEMBERS[0])
    assert {0, 42, 121} <= walk.codes


def records(count: int, **more: Any) -> bytes:
    return encode_batch([Record(b"k", b"v", NOW_MS)] * count, **more)


def test_share_session_epochs_are_checked(sides: tuple[Side, Side]) -> None:
    for each in sides:
        for name in (*MEMBERS, "d", "e", "f", "g"):
            each.drop(name)
    pair = group_of(sides, "sessions")
    for epoch in (1, -1, -2, 5):
        pair.fetch("a", [0], share_session_epoch=epoch)
        pair.acknowledge("a", {0: []}, share_session_epoch=epoch)
    pair.acknowledge("a", {0: []}, share_session_epoch=0)
    pair.fetch("a", [0], {0: [(0, 0, [1])]}, share_session_epoch=0)
    pair.begin("a", [0, 1], records_max=1)
    pair.fetch("a", [])
    for epoch in (1, 7, -2):
        pair.fetch("a", [0], share_session_epoch=epoch)
        pair.acknowledge("a", {0: []}, share_session_epoch=epoch)
    pair.fetch("a", [2], max_wait_ms=1000)
    pair.fetch("a", [2], forget=[0])
    pair.fetch("a", [0, 99], max_records=0)
    pair.fetch("a", [])
    pair.fetch("a", [], forget=[99, 2])
    pair.fetch("a", [], version=1)
    for wrong in (
        {"group_id": None},
        {"member_id": None},
        {"member_id": ""},
        {"member_id": "x" * 37},
        {"member_id": "x" * 36, "share_session_epoch": 3},
    ):
        pair.fetch("a", [0], **wrong)
        pair.acknowledge("a", {0: []}, **wrong)
    for name in ("b", "c", "d", "e", "f"):
        pair.begin(name, [0])
    pair.fetch("g", [0], max_wait_ms=50)
    pair.fetch("b", [], share_session_epoch=-1)
    pair.fetch("g", [0])
    pair.acknowledge("g", {0: []}, share_session_epoch=-1)
    pair.fetch("g", [])
    for each in sides:
        for name in (*MEMBERS, "d", "e", "f", "g"):
            each.drop(name)


def test_invalid_acknowledgements_are_rejected(sides: tuple[Side, Side]) -> None:
    pair = group_of(sides, "refused")
    pair.begin("a", [0, 1], records_max=1)
    pair.produce(0, records(10))
    pair.produce(1, records(3))
    pair.fetch("a", [], max_records=0)
    pair.fetch("a", [], max_bytes=0)
    (begin,) = {
        each.first_offset
        for topic in pair.fetch("a", []).responses
        for row in topic.partitions
        if row.partition_index == 0
        for each in row.acquired_records
    }
    rows: list[list[Row]] = [
        [(1, 0, [1])],
        [(5, 5, [1]), (4, 4, [1])],
        [(0, 0, [])],
        [(0, 3, [1, 1])],
        [(0, 0, [1, 1])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 0, [4])],
        [(-5, 0, [1])],
        [(0, 20, [1])],
        [(20, 25, [1])],
        [(0, 1, [1]), (1, 2, [1])],
        [(0, 1, [1]), (0, 20, [1])],
        [(2, 5, [1, 2, 3, 0]), (6, 6, [3])],
        [(2, 2, [1])],
        [(0, 9, [1])],
        [(1, 1, [2]), (1, 1, [2])],
        [],
    ]
    for some in rows:
        acknowledgements = [(first + begin, last + begin, types) for first, last, types in some]
        for version in (1, 2):
            pair.acknowledge("a", {0: acknowledgements}, version)
    pair.acknowledge("a", {0: [(begin, begin, [1])], 1: [], 99: [(0, 0, [1])], 98: []})
    pair.acknowledge("a", {0: []})
    pair.acknowledge("a", {0: [(begin, begin, [1])]}, known=False)
    pair.acknowledge("a", {2: [(0, 0, [1])]})
    pair.fetch("a", [], {0: [(begin + 7, begin + 7, [1])], 1: [], 99: [(0, 0, [1])]})
    pair.begin("b", [0])
    pair.acknowledge("b", {0: [(begin + 8, begin + 8, [1])]})
    pair.acknowledge("b", {0: [(begin + 8, begin + 9, [1, 2])]})
    pair.same_states()
    pair.fetch("a", [], share_acquire_mode=2)


def test_renewals_extend_locks(sides: tuple[Side, Side]) -> None:
    pair = group_of(sides, "renewals")
    pair.begin("a", [0], records_max=1)
    pair.produce(0, records(10))
    answer = pair.fetch("a", [])
    first = answer.responses[0].partitions[0].acquired_records[0].first_offset
    none = {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait_ms": 0}
    renew = [(first, first + 4, [4])]
    pair.acknowledge("a", {0: renew})
    pair.acknowledge("a", {0: renew}, is_renew_ack=True)
    pair.acknowledge("a", {0: [(first, first + 2, [4, 1, 2])]}, is_renew_ack=True)
    pair.fetch("a", [], {0: renew}, is_renew_ack=True)
    pair.fetch("a", [], {0: renew}, is_renew_ack=True, **none)
    pair.fetch("a", [], {0: [(first + 5, first + 9, [4])]}, is_renew_ack=True, **none)
    pair.fetch("a", [], {0: [(first + 5, first + 9, [4])]}, **none)
    for name in none:
        pair.fetch("a", [], is_renew_ack=True, **(none | {name: 1}))
    pair.configure("share.renew.acknowledge.enable", "false")
    pair.acknowledge("a", {0: [(first + 5, first + 9, [4])]}, is_renew_ack=True)
    pair.acknowledge("a", {0: [(first + 5, first + 9, [1])]}, is_renew_ack=True)
    pair.same_states()


def test_failing_records_are_archived_at_delivery_limit(sides: tuple[Side, Side]) -> None:
    """Fewer records are delivered each time, until all are archived."""
    for each in sides:
        each.drop("a")
    pair = group_of(sides, "failing")
    pair.configure("share.delivery.count.limit", "5")
    pair.begin("a", [0], records_max=1)
    pair.produce(0, records(20))
    pair.produce(0, records(20))
    for mode in (0, 1):
        given = 0
        while True:
            answer = pair.fetch("a", [], max_records=30, share_acquire_mode=mode)
            taken = acquired(answer, 2)
            if not taken:
                break
            given += 1
            assert given < 40 * 5, "a record was delivered more than five times"
            pair.acknowledge("a", {0: taken})
        assert given > 5, "the batch size did not decrease"
        pair.same_states()
        pair.produce(0, records(40))


def test_read_committed_group_skips_aborted_records(sides: tuple[Side, Side]) -> None:
    pair = group_of(sides, "committed")
    pair.configure("share.isolation.level", "read_committed")
    pair.begin("a", [0], records_max=1)
    pair.produce(0, records(3))
    for number, commit in enumerate((False, True, False)):
        for each in sides:
            each.begin_transaction(f"writer {number}")
            each.produce_in_transaction(records)
        pair.fetch("a", [])
        for each in sides:
            each.end_transaction(commit)
            has_marker(each)
        pair.produce(0, records(2))
        answer = pair.fetch("a", [])
        pair.acknowledge("a", {0: acquired(answer, 1)})
        pair.same_states()


def test_deleted_records_are_skipped(sides: tuple[Side, Side]) -> None:
    pair = group_of(sides, "deleted")
    pair.begin("a", [0], records_max=1)
    for _ in range(4):
        pair.produce(0, records(5))
    first = end_of(sides[0], 0) - 20
    pair.fetch("a", [], max_records=5)
    pair.acknowledge("a", {0: [(first + 3, first + 4, [2])]})
    key = ApiKey.DELETE_RECORDS
    for each in sides:
        row = of(key, "Partition", partition_index=0, offset=first + 12)
        topic = of(key, "Topic", name=TOPIC, partitions=[row])
        answer = each.connection.ask(key, 2, request(key, topics=[topic], timeout_ms=5000))
        assert not answer.topics[0].partitions[0].error_code
    taken: list[list[tuple[int, int, int]]] = []
    for each in sides:  # Kafka's first response has no records
        mine: list[tuple[int, int, int]] = []
        epoch = pair.epochs["a"]
        for _ in range(4):
            message = request(
                FETCH,
                group_id=pair.group,
                member_id="a",
                share_session_epoch=epoch,
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=100,
                batch_size=100,
            )
            epoch += 1
            answer = each.connection_of("a").ask(FETCH, 2, message)
            mine += [
                (r.first_offset, r.last_offset, r.delivery_count)
                for topic in answer.responses
                for row in topic.partitions
                for r in row.acquired_records
            ]
        taken.append(mine)
    pair.epochs["a"] = epoch
    assert taken[0] == taken[1] == [(first + 10, first + 19, 1)]
    pair.acknowledge("a", {0: [(first, first, [1])]})
    pair.acknowledge("a", {0: [(first + 10, first + 15, [1])]})
    pair.acknowledge("a", {0: [(first + 12, first + 15, [1])]})
    pair.same_states()


def test_expired_locks_release_records(sides: tuple[Side, Side]) -> None:
    for each in sides:
        each.drop("a")
        each.drop("b")
    pair = group_of(sides, "slow")
    pair.configure("share.record.lock.duration.ms", f"{LOCK_MS}")
    pair.configure("share.delivery.count.limit", "2")
    for name in ("a", "b"):
        pair.begin(name, [0], records_max=1)
    pair.produce(0, records(10))
    pair.produce(0, records(5))
    (row,) = rows_of(pair.fetch("a", [], max_records=10, share_acquire_mode=1))
    first = row.acquired_records[0].first_offset
    pair.acknowledge("a", {0: [(first, first, [1]), (first + 2, first + 4, [3])]})
    time.sleep(LOCK_SECONDS)
    pair.same_states(in_effect)
    pair.acknowledge("a", {0: [(first + 1, first + 1, [1])]})
    pair.fetch("b", [])
    pair.fetch("b", [])
    time.sleep(LOCK_SECONDS)
    pair.same_states(in_effect)
    pair.fetch("b", [])
    time.sleep(LOCK_SECONDS)
    pair.same_states(in_effect)


def test_comparison_ignores_start_offset_advanced_between_writes() -> None:
    at_once: State = (50, 9, 0, 50, [(offset, 4, 2) for offset in range(50, 59)])
    one_by_one: State = (54, 5, 0, 54, [(offset, 4, 2) for offset in range(54, 59)])
    assert in_effect(at_once) == in_effect(one_by_one) == (59, 0, 0, 59, [])
    waiting: State = (50, 1, 0, 50, [(50, 4, 2), (51, 0, 1), (52, 4, 2)])
    assert in_effect(waiting) == (51, 0, 0, 51, [(51, 0, 1), (52, 4, 2)])


@pytest.mark.parametrize("begins", ["earliest", "latest", "by_duration:PT1H"])
def test_group_starts_at_configured_offset(sides: tuple[Side, Side], begins: str) -> None:
    for each in sides:
        each.drop("a")
    group = f"from {begins[:6]}"
    pair = Pair(sides, group)
    pair.configure("share.auto.offset.reset", begins)
    pair.produce(1, records(3))
    group_of(sides, group, -1)
    pair.begin("a", [1])
    for _ in range(2):  # the first fetch reads the state
        pair.fetch("a", [], max_wait_ms=1000, min_bytes=1 << 19, max_records=1)
    pair.produce(1, records(2))
    answer = pair.fetch("a", [], max_records=1000)
    pair.acknowledge("a", {1: acquired(answer, 1)})
    pair.same_states()
