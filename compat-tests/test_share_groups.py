"""Share groups on kbroker and on Apache Kafka 4.4, compared field by field (KIP-932).

Heartbeats, descriptions and start offsets are compared. Each broker may assign other partitions to
several members, so only the numbers of assigned partitions are compared.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from harness.admin_calls import of, request
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.raw import RawConnection

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.schema import ZERO_UUID, Struct, fields
from kbroker.protocol.share_group_metadata import decode_key, decode_value

CLIENT = "share groups"
# Partition counts that one to four members can share equally.
TOPICS = {"t": 12, "u": 12, "one": 1}
STEPS = int(os.environ.get("KBROKER_COMPAT_GROUP_CALLS", "400"))
SEEDS = int(os.environ.get("KBROKER_COMPAT_GROUP_SEEDS", "1"))
SETTLE_SECONDS = 30
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
NOT_YET = {14, 15, 16}
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.share.assignment.interval.ms": "0",
    "group.share.max.size": "4",
}
BEAT, DESCRIBE = ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE
OFFSETS = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
ALTER, DELETE = ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS


@dataclass(slots=True)
class Side:
    """One of the two brokers."""

    connection: RawConnection
    topics: dict[UUID, str] = field(default_factory=dict)

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self.connection.ask(key, version, message)
            if not NOT_YET & codes_of(answer) or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def create(self, name: str, partitions: int) -> None:
        key = ApiKey.CREATE_TOPICS
        row = of(key, "Topic", name=name, num_partitions=partitions, replication_factor=1)
        (made,) = self.ask(key, 7, request(key, topics=[row], timeout_ms=10_000)).topics
        assert not made.error_code, made
        self.topics[made.topic_id] = name

    def shown(self, value: Any, *, counts: bool) -> Any:
        """Return a struct as plain values, with names instead of ids and without error messages."""
        if isinstance(value, UUID):
            return self.topics.get(value, "none" if value == ZERO_UUID else "gone")
        if isinstance(value, list):
            rows = [self.shown(each, counts=counts) for each in value]
            return sorted(rows, key=str) if rows and not isinstance(rows[0], int) else rows
        if not isinstance(value, Struct):
            return value
        row = {each.name: getattr(value, each.name) for each in fields(type(value))}
        for name in ("topic_partitions", "assigned_partitions") if counts else ():
            if name in row:
                row[name] = sum(len(each.partitions) for each in row[name])
        row.pop("error_message", None)
        return {name: self.shown(part, counts=counts) for name, part in row.items()}

    def states(self, group: str) -> Counter[str]:
        """Return the number of partitions with a stored state per topic."""
        row = of(OFFSETS, "Group", group_id=group, topics=None)
        (found,) = self.ask(OFFSETS, 1, request(OFFSETS, groups=[row])).groups
        return Counter({topic.topic_name: len(topic.partitions) for topic in found.topics})

    def records(self, group: str) -> list[Any]:
        """Return the group's records in `__consumer_offsets` without times, hashes and ids."""
        key = ApiKey.FETCH
        partition = of(key, "Partition", partition=0, partition_max_bytes=1 << 24)
        topic = of(key, "Topic", topic="__consumer_offsets", partitions=[partition])
        message = request(key, topics=[topic], max_wait_ms=100, max_bytes=1 << 24)
        data = memoryview(bytes(self.ask(key, 12, message).responses[0].partitions[0].records))
        return [
            row
            for position, header in iter_headers(data)
            for record in read_records(data[position : position + header.size])
            if (row := self._record(record, group)) is not None
        ]

    def _record(self, record: Any, group: str) -> Any:
        key = None if record.key is None else decode_key(record.key)
        if key is None or key.group_id != group:
            return None
        if record.value is None:
            return self.shown(key, counts=False), None
        value = decode_value(key, record.value)
        row = self.shown(value, counts=True)
        for name in ("metadata_hash", "assignment_timestamp"):
            row.pop(name, None)
        return self.shown(key, counts=False), row


def codes_of(value: Any) -> set[int]:
    """Return all error codes of a response."""
    if isinstance(value, list):
        return {code for each in value for code in codes_of(each)}
    if not isinstance(value, Struct):
        return set()
    found = {code for each in fields(type(value)) for code in codes_of(getattr(value, each.name))}
    return found | {getattr(value, "error_code", 0)}


@dataclass(slots=True)
class Both:
    """Both brokers, which receive the same requests."""

    ours: Side
    theirs: Side
    codes: set[int] = field(default_factory=set)
    # Last assignment in a heartbeat response by group and member, as numbers of partitions.
    assigned: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Side]:
        return iter((self.ours, self.theirs))

    def ask(
        self,
        key: ApiKey,
        version: int,
        message: Any,
        *,
        counts: bool = False,
        seen: Callable[[Any], Any] = lambda shown: shown,
    ) -> Any:
        """Send a request to both brokers, compare the responses and return kbroker's.

        `seen` returns the part of a response that must be equal.
        """
        answers = [each.ask(key, version, message) for each in self]
        ours, theirs = (
            seen(each.shown(answer, counts=counts))
            for each, answer in zip(self, answers, strict=True)
        )
        assert ours == theirs, f"{key.api_name} v{version} {message}"
        self.codes |= codes_of(answers[0])
        return answers[0]

    def beat(self, group: str, member: str, epoch: int, **values: Any) -> Any:
        known = self.assigned.get((group, member))

        def without_known(shown: Any) -> Any:
            """Leave out an assignment with as many partitions as before.

            The brokers may move other partitions, so only one of them may have to send it.
            """
            if shown["assignment"] == known:
                return shown | {"assignment": None}
            self.assigned[group, member] = shown["assignment"] or known
            return shown

        ask = request(BEAT, group_id=group, member_id=member, member_epoch=epoch, **values)
        return self.ask(BEAT, 1, ask, counts=True, seen=without_known)

    def describe(self, group: str) -> Any:
        ask = request(DESCRIBE, group_ids=[group], include_authorized_operations=True)
        return self.ask(DESCRIBE, 1, ask, counts=True).groups[0]

    def offsets(self, group: str, topics: dict[str, list[int]] | None, version: int = 1) -> Any:
        rows = None
        if topics is not None:
            rows = [
                of(OFFSETS, "Topic", topic_name=name, partitions=indexes)
                for name, indexes in topics.items()
            ]
        row = of(OFFSETS, "Group", group_id=group, topics=rows)
        return self.ask(OFFSETS, version, request(OFFSETS, groups=[row])).groups[0]

    def alter(self, group: str, topics: dict[str, dict[int, int]]) -> Any:
        rows = [
            of(
                ALTER,
                "Topic",
                topic_name=name,
                partitions=[
                    of(ALTER, "Partition", partition_index=index, start_offset=offset)
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in topics.items()
        ]
        return self.ask(ALTER, 0, request(ALTER, group_id=group, topics=rows))

    def forget(self, group: str, *names: str) -> Any:
        rows = [of(DELETE, "Topic", topic_name=name) for name in names]
        return self.ask(DELETE, 0, request(DELETE, group_id=group, topics=rows))

    def delete(self, group: str) -> int:
        ask = request(ApiKey.DELETE_GROUPS, groups_names=[group])
        return int(self.ask(ApiKey.DELETE_GROUPS, 2, ask).results[0].error_code)

    def settle(self, group: str, wanted: dict[str, int]) -> None:
        """Wait until share coordinators have initialized this many states of each topic."""
        for each in self:
            deadline = time.monotonic() + SETTLE_SECONDS
            while (found := each.states(group)) != Counter(wanted):
                assert time.monotonic() < deadline, f"states are {found}, expected {wanted}"
                time.sleep(0.05)


def side(broker: Broker) -> Side:
    found = Side(RawConnection(broker.address))
    for name, partitions in TOPICS.items():
        found.create(name, partitions)
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    deadline = time.monotonic() + SETTLE_SECONDS
    while found.connection.ask(ApiKey.FIND_COORDINATOR, 6, find).coordinators[0].error_code:
        assert time.monotonic() < deadline, "no coordinator"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES),
    ]
    try:
        for broker in brokers:
            broker.start()
        found = Both(*map(side, brokers))
        yield found
        for each in found:
            each.connection.close()
    finally:
        for broker in brokers:
            broker.kill()


def test_group_lifecycle_has_same_responses(both: Both) -> None:
    group = "life"
    assert both.beat(group, "a", 0, subscribed_topic_names=["t", "none"]).member_epoch == 2
    both.settle(group, {"t": 12})
    answer = both.beat(group, "a", 2)
    assert (answer.member_epoch, len(answer.assignment.topic_partitions[0].partitions)) == (3, 12)
    both.beat(group, "a", 3)
    both.beat(group, "a", 2)
    both.beat(group, "a", 1)
    both.beat(group, "a", 3, subscribed_topic_names=["t", "u"], rack_id="r")
    both.settle(group, {"t": 12, "u": 12})
    both.beat(group, "a", 4)
    both.describe(group)
    assert both.beat(group, "b", 0, subscribed_topic_names=["t", "u"]).member_epoch == 6
    both.beat(group, "a", 5)
    both.describe(group)
    both.offsets(group, None)
    both.beat(group, "a", -1)
    both.beat(group, "a", -1)
    both.beat(group, "b", 6)
    both.beat(group, "b", 0, subscribed_topic_names=["t"])
    both.describe(group)
    both.beat(group, "b", -1)
    both.describe(group)
    both.beat(group, "b", 0, subscribed_topic_names=["t", "u"])
    both.describe(group)
    both.beat(group, "b", -1)
    ours, theirs = (each.records(group) for each in both)
    assert len(ours) > 20
    assert ours == theirs
    assert both.delete(group) == 0
    both.describe(group)


WRONG: dict[str, dict[str, Any]] = {
    "no group": {"group_id": ""},
    "no member": {"member_id": ""},
    "a long member": {"member_id": "m" * 37},
    "no rack": {"rack_id": ""},
    "no topics": {"subscribed_topic_names": []},
    "null for topics": {"subscribed_topic_names": None},
    "an epoch below": {"member_epoch": -2},
    "nobody": {"member_epoch": 3},
    "nobody leaves": {"member_epoch": -1},
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_heartbeat_is_rejected(both: Both, name: str) -> None:
    values: dict[str, Any] = {"group_id": "wrong", "member_id": "m", "member_epoch": 0}
    values |= {"subscribed_topic_names": ["t"]} | WRONG[name]
    assert both.ask(BEAT, 1, request(BEAT, **values)).error_code


def test_requests_of_other_group_types_are_rejected(both: Both) -> None:
    key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    both.beat("kind", "a", 0, subscribed_topic_names=["one"])
    both.settle("kind", {"one": 1})
    values = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    for epoch in (0, 1, -1):
        both.ask(key, 1, request(key, group_id="kind", member_id="x", member_epoch=epoch, **values))
    assert not both.ours.ask(
        key, 1, request(key, group_id="new", member_id="x", **values)
    ).error_code
    assert not both.theirs.ask(
        key, 1, request(key, group_id="new", member_id="x", **values)
    ).error_code
    for group in ("kind", "new", "nothing"):
        for key in (ApiKey.CONSUMER_GROUP_DESCRIBE, DESCRIBE):
            if (group, key) != ("new", ApiKey.CONSUMER_GROUP_DESCRIBE):
                both.ask(key, 1, request(key, group_ids=[group]), counts=True)
        for version in (5, 6):
            ask = request(ApiKey.DESCRIBE_GROUPS, groups=[group])
            both.ask(ApiKey.DESCRIBE_GROUPS, version, ask)
    both.beat("new", "b", 0, subscribed_topic_names=["t"])
    both.beat("new", "b", 1)
    both.beat("new", "b", -1)
    both.alter("new", {"t": {0: 0}})
    both.forget("new", "t")
    for members in (True, False):
        _classic_requests(both, members)
        if members:
            both.beat("kind", "a", -1)
    both.describe("kind")


def _classic_requests(both: Both, members: bool) -> None:
    """Send the requests of classic members and of committing clients to a share group."""
    group = "kind"
    key = ApiKey.JOIN_GROUP
    protocol = of(key, "Protocol", name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")
    for member in ("", "a"):
        ask = request(
            key,
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[protocol],
        )
        both.ask(key, 9, ask)
    identity = {"group_id": group, "generation_id": 1, "member_id": "a"}
    both.ask(ApiKey.HEARTBEAT, 4, request(ApiKey.HEARTBEAT, **identity))
    both.ask(
        ApiKey.SYNC_GROUP,
        5,
        request(ApiKey.SYNC_GROUP, protocol_type="consumer", protocol_name="range", **identity),
    )
    key = ApiKey.LEAVE_GROUP
    both.ask(key, 5, request(key, group_id=group, members=[of(key, "Member", member_id="a")]))
    key = ApiKey.OFFSET_COMMIT
    row = of(key, "Partition", partition_index=0, committed_offset=1)
    topic = of(key, "Topic", name="t", partitions=[row])
    for version in (8, 9):
        for epoch in (-1, 3):
            values = {"group_id": group, "member_id": "a", "generation_id_or_member_epoch": epoch}
            both.ask(key, version, request(key, topics=[topic], **values))
    key = ApiKey.OFFSET_FETCH
    for version in (8, 9):
        for topics in (None, [of(key, "Topic", name="t", partition_indexes=[0])]):
            both.ask(
                key,
                version,
                request(key, groups=[of(key, "Group", group_id=group, topics=topics)]),
            )
    key = ApiKey.OFFSET_DELETE
    row = of(key, "Topic", name="t", partitions=[of(key, "Partition", partition_index=0)])
    both.ask(key, 0, request(key, group_id=group, topics=[row]))
    for states in ([], ["Stable"], ["empty"]):
        for types in (["share"], ["Share", "classic"]):
            ask = request(ApiKey.LIST_GROUPS, states_filter=states, types_filter=types)
            both.ask(ApiKey.LIST_GROUPS, 5, ask)
    if members:
        assert both.delete(group) == 68, "expected NON_EMPTY_GROUP"


def test_start_offsets_are_altered_and_deleted(both: Both) -> None:
    group = "begin"
    for version in (0, 1):
        for topics in (None, {}, {"t": [0, 1], "none": [0]}):
            both.offsets("nothing", topics, version)
    both.forget("nothing", "t")
    both.alter(group, {"none": {0: 0}})
    both.describe(group)
    both.alter(group, {"t": {0: 5, 3: 7, 12: 1}, "one": {0: 0}, "none": {0: 0}})
    both.settle(group, {"t": 2, "one": 1})
    both.describe(group)
    for version in (0, 1):
        both.offsets(group, None, version)
        both.offsets(group, {"t": [0, 1], "none": [0], "u": [0]}, version)
    both.alter(group, {"t": {0: 1}})
    both.offsets(group, None)
    both.beat(group, "a", 0, subscribed_topic_names=["t"])
    both.settle(group, {"t": 12, "one": 1})
    both.beat(group, "a", 2)
    both.describe(group)
    both.alter(group, {"t": {0: 1}})
    both.forget(group, "t")
    both.beat(group, "a", -1)
    both.alter(group, {"t": {1: 4}})
    both.offsets(group, None)
    both.forget(group, "t", "u", "none")
    both.settle(group, {"one": 1})
    both.forget(group, "t")
    both.beat(group, "a", 0, subscribed_topic_names=["t", "one"])
    both.settle(group, {"t": 12, "one": 1})
    both.offsets(group, None)
    both.beat(group, "a", -1)
    assert both.delete(group) == 0
    both.offsets(group, {"t": [0, 1]})
    assert both.delete(group) == 69, "expected GROUP_ID_NOT_FOUND"


def test_group_follows_created_grown_and_deleted_topics(both: Both) -> None:
    group = "topics"
    both.beat(group, "a", 0, subscribed_topic_names=["later"])
    both.beat(group, "a", 2)
    for each in both:
        each.create("later", 2)
    time.sleep(1)
    both.beat(group, "a", 2)
    both.settle(group, {"later": 2})
    both.beat(group, "a", 3)
    key = ApiKey.CREATE_PARTITIONS
    row = of(key, "Topic", name="later", count=3, assignments=None)
    for each in both:
        answer = each.ask(key, 3, request(key, topics=[row], timeout_ms=10_000))
        assert not answer.results[0].error_code
    time.sleep(1)
    both.beat(group, "a", 4)
    both.settle(group, {"later": 3})
    both.beat(group, "a", 5)
    both.describe(group)
    key = ApiKey.DELETE_TOPICS
    for each in both:
        answer = each.ask(key, 5, request(key, topic_names=["later"], timeout_ms=10_000))
        assert not answer.responses[0].error_code
    both.settle(group, {})
    time.sleep(1)
    both.beat(group, "a", 6)
    both.describe(group)
    both.beat(group, "a", -1)
    assert both.delete(group) == 0


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_random_heartbeats_have_same_responses(both: Both, seed: int) -> None:
    rng = random.Random(seed)
    group = f"random {seed}"
    epochs: dict[str, int] = {}
    states: dict[str, int] = {}
    both.codes.clear()
    both.beat(group, "member-0", 5)
    for _ in range(STEPS):
        member = f"member-{rng.randrange(6)}"
        topic = rng.choice((*TOPICS, "none"))
        known = epochs.get(member, 0)
        epoch = rng.choice((known, known, known, known, known - 1, 0, -1, 99))
        says = epoch == 0 or rng.random() < 0.2
        answer = both.beat(group, member, epoch, subscribed_topic_names=[topic] if says else None)
        if epoch == -1:
            epochs.pop(member, None)
        elif not answer.error_code:
            epochs[member] = answer.member_epoch
            if says and topic in TOPICS and topic not in states:
                states[topic] = TOPICS[topic]
        if states:
            both.settle(group, states)
        if rng.random() < 0.1:
            both.describe(group)
    assert both.codes == {0, 25, 69, 81, 110}, "some error codes did not occur"
