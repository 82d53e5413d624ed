"""State of share groups on kbroker and on Apache Kafka 4.4, compared field by field (KIP-932).

The records in `__share_group_state` are compared too.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from harness.admin_calls import of, request
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.raw import RawConnection
from harness.tools import Tools

from kbroker.coordinator.share.state_batches import PersisterStateBatch, PersisterStateBatches
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.schema import Struct, fields
from kbroker.protocol.share_state_log import (
    SNAPSHOT_KIND,
    SharePartitionKey,
    decode_key,
    decode_value,
)
from kbroker.protocol.versioned import version_of

CLIENT = "share state"
TOPIC, GROUP, PARTITIONS = "orders", "queue", 3
STATE_TOPIC = "__share_group_state"
REQUESTS = 1000
# Kafka's default number of updates per snapshot.
UPDATES_MAX = 500
SHARE_KEY = 2
SETTLE_SECONDS = 20
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
NOT_YET = {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR}
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
INITIALIZE, READ = ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE
WRITE, DELETE = ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE
SUMMARY = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY


@dataclass(slots=True)
class Side:
    """One of the two brokers."""

    connection: RawConnection
    topic_id: UUID
    directory: Path
    group: str = GROUP

    def ask(self, key: ApiKey, version: int, partition: int, known: bool, **row: Any) -> Any:
        """Return the row of one share partition, of an unknown topic if `known` is false."""
        topic_id = self.topic_id if known else UUID(int=7)
        topic = of(key, "Topic", topic_id=topic_id, partitions=[of(key, "Partition", **row)])
        topic.partitions[0].partition = partition
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self.connection.ask(
                key, version, request(key, group_id=self.group, topics=[topic])
            )
            (found,) = answer.results[0].partitions
            if found.error_code not in NOT_YET or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def records(self) -> list[Any]:
        """Return the decoded records of `__share_group_state` without times."""
        key = ApiKey.FETCH
        partition = of(key, "Partition", partition=0, partition_max_bytes=1 << 24)
        topic = of(key, "Topic", topic=STATE_TOPIC, partitions=[partition])
        message = request(key, topics=[topic], max_wait_ms=100, max_bytes=1 << 24)
        answer = self.connection.ask(key, 12, message)
        data = memoryview(bytes(answer.responses[0].partitions[0].records))
        return [
            row
            for position, header in iter_headers(data)
            for record in read_records(data[position : position + header.size])
            if (row := shown(record.key, record.value))[0] == self.group
        ]


def shown(key: Any, value: Any) -> tuple[Any, ...]:
    decoded = decode_key(key)
    assert decoded is not None
    kind = version_of(key)
    if value is None:
        return decoded.group_id, kind, decoded.partition, None
    found = decode_value(decoded, value)
    assert isinstance(found, Struct)
    return decoded.group_id, kind, decoded.partition, plain(found)


def plain(value: Struct) -> dict[str, Any]:
    """Return the fields without times, with one entry per offset: Kafka may split ranges."""
    row = {each.name: getattr(value, each.name) for each in fields(type(value))}
    for name in ("create_timestamp", "write_timestamp"):
        row.pop(name, None)
    if "state_batches" in row:
        row["state_batches"] = list(
            PersisterStateBatches(
                PersisterStateBatch(
                    b.first_offset, b.last_offset, b.delivery_state, b.delivery_count
                )
                for b in row["state_batches"]
            )
        )
    return row


def side(broker: Broker) -> Side:
    connection = RawConnection(broker.address)
    key = ApiKey.CREATE_TOPICS
    row = of(key, "Topic", name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    (made,) = connection.ask(key, 7, request(key, topics=[row], timeout_ms=10_000)).topics
    assert not made.error_code, made
    name = SharePartitionKey(GROUP, made.topic_id, 0).name
    find = request(ApiKey.FIND_COORDINATOR, key_type=SHARE_KEY, coordinator_keys=[name])
    deadline = time.monotonic() + SETTLE_SECONDS
    while connection.ask(ApiKey.FIND_COORDINATOR, 6, find).coordinators[0].error_code:
        assert time.monotonic() < deadline, "no coordinator"
        time.sleep(0.1)
    return Side(connection, made.topic_id, broker.data_dir / f"{STATE_TOPIC}-0")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    brokers = [
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES),
    ]
    try:
        for broker in brokers:
            broker.start()
        ours, theirs = map(side, brokers)
        yield ours, theirs
        ours.connection.close()
        theirs.connection.close()
    finally:
        for broker in brokers:
            broker.kill()


def change(rng: random.Random) -> tuple[ApiKey, int, dict[str, Any]]:
    """Return a random request: API, version and fields."""
    epochs = {"state_epoch": rng.choice((-1, 0, 1, 2)), "leader_epoch": rng.choice((-1, 0, 1, 2))}
    choice = rng.randrange(20)
    if choice == 0:
        start = rng.choice((-1, 0, 30))
        return INITIALIZE, 0, {"state_epoch": epochs["state_epoch"], "start_offset": start}
    if choice == 1:
        return DELETE, 0, {}
    if choice < 5:
        return READ, 0, {"leader_epoch": epochs["leader_epoch"]}
    if choice < 8:
        return SUMMARY, rng.randrange(2), {"leader_epoch": epochs["leader_epoch"]}
    rows = []
    for _ in range(rng.randrange(4)):
        first = rng.randrange(100)
        rows.append(
            of(
                WRITE,
                "StateBatch",
                first_offset=first,
                last_offset=first + rng.randrange(10),
                delivery_state=rng.choice((0, 2, 4)),
                delivery_count=rng.randrange(1, 4),
            )
        )
    version = rng.randrange(2)
    fields = epochs | {"start_offset": rng.choice((-1, -1, 0, 10, 40)), "state_batches": rows}
    if version:
        fields["delivery_complete_count"] = rng.choice((-1, 0, 5))
    return WRITE, version, fields


def test_random_requests_have_same_responses_and_records(sides: tuple[Side, Side]) -> None:
    rng = random.Random(1)
    codes = set()
    for partition in range(PARTITIONS):
        for each in sides:
            each.ask(INITIALIZE, 0, partition, True, start_offset=0)
    for number in range(REQUESTS):
        key, version, row = change(rng)
        partition = rng.choice((*range(PARTITIONS), *range(PARTITIONS), PARTITIONS, -1))
        known = rng.random() < 0.95
        ours, theirs = (plain(each.ask(key, version, partition, known, **row)) for each in sides)
        assert ours == theirs, f"{number}: {key.api_name} v{version} {partition} {row}"
        codes.add(ours["error_code"])
    assert codes == {0, 3, 42, 74, 124}, "some error codes did not occur"
    ours, theirs = (each.records() for each in sides)
    assert len(ours) > REQUESTS / 10
    assert ours == theirs


def test_snapshot_is_written_after_maximum_updates(sides: tuple[Side, Side]) -> None:
    for each in sides:
        each.group = "long"
        each.ask(INITIALIZE, 0, 0, True, start_offset=0)
        for number in range(UPDATES_MAX + 10):
            row = of(
                WRITE,
                "StateBatch",
                first_offset=number * 7 % 100,
                last_offset=number * 7 % 100,
                delivery_state=2,
                delivery_count=1 + number % 3,
            )
            start = number // 10 if number % 10 == 0 else -1
            each.ask(WRITE, 1, 0, True, start_offset=start, state_batches=[row])
    ours, theirs = (each.records() for each in sides)
    assert [kind for _, kind, *_ in ours].count(SNAPSHOT_KIND) == 2
    assert ours == theirs


def test_dump_tool_decodes_share_state(sides: tuple[Side, Side], tools: Tools) -> None:
    dumps = []
    for each in sides:
        each.group = "read"
        each.ask(INITIALIZE, 0, 0, True, state_epoch=3, start_offset=7)
        each.ask(WRITE, 1, 0, True, state_epoch=3, start_offset=9, delivery_complete_count=2)
        names = ",".join(map(str, each.directory.glob("*.log")))
        lines = tools.run(
            "kafka-dump-log", "--share-group-state-decoder", "--files", names
        ).stdout.splitlines()
        found = [line.partition("key: ")[2] for line in lines if '"groupId":"read"' in line]
        times = re.compile(r'"(create|write)Timestamp":\d+')
        topic = SharePartitionKey("", each.topic_id, 0).name.split(":")[1]
        dumps.append([times.sub("", line).replace(topic, "topic") for line in found])
    assert dumps[0] == dumps[1]
    assert len(dumps[0]) == 2


@pytest.mark.parametrize(
    "key",
    [
        "",
        "queue",
        "queue:0",
        "queue:nothing:0",
        "queue:{id}:-1",
        "queue:{id}:x",
        ":{id}:0",
        "a:b:{id}:0",
    ],
)
def test_invalid_share_partition_keys_are_rejected(sides: tuple[Side, Side], key: str) -> None:
    codes = []
    for each in sides:
        name = key.replace("{id}", SharePartitionKey("", each.topic_id, 0).name.split(":")[1])
        find = request(ApiKey.FIND_COORDINATOR, key_type=SHARE_KEY, coordinator_keys=[name])
        (row,) = each.connection.ask(ApiKey.FIND_COORDINATOR, 6, find).coordinators
        codes.append(row.error_code)
    assert codes[0] == codes[1]
