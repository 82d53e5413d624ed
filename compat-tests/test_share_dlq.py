"""Dead-letter queues of share groups (KIP-1191) on kbroker and Apache Kafka.

The records of the queue, the states at the share coordinator, created topics, and the views of
command line and test kit are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from harness.admin_calls import of, request
from harness.raw import RawConnection
from test_share_fetch import (
    NOW_MS,
    PARTITIONS,
    PROPERTIES,
    SETTLE_SECONDS,
    Pair,
    Side,
    acquired,
    group_of,
    in_effect,
    started_sides,
)

from kbroker.client.cluster import open_cluster
from kbroker.client.dead_letters import DeadLetterQueue, dead_letter_queue
from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.record_stream import records_of
from kbroker.protocol.records import Record, encode_batch
from kbroker.testing import ExternalKafka

QUEUE_PARTITIONS = 2
# Maximum wait of a fetch. It ends when there are records.
WAIT_MS = 5000
ACCEPT, RELEASE, REJECT = 1, 2, 3
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
# Partition, key, value and headers of a record.
Letter = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    properties = PROPERTIES | {
        "errors.deadletterqueue.auto.create.topics.enable": "true",
        "num.partitions": str(QUEUE_PARTITIONS),
    }
    with started_sides(tmp_path_factory, properties) as both:
        yield both


def create_queue(sides: tuple[Side, Side], name: str, configs: dict[str, str]) -> None:
    key = ApiKey.CREATE_TOPICS
    rows = [of(key, "Config", name=n, value=v) for n, v in configs.items()]
    topic = of(
        key,
        "Topic",
        name=name,
        num_partitions=QUEUE_PARTITIONS,
        replication_factor=1,
        configs=rows,
    )
    for each in sides:
        (made,) = each.connection.ask(
            key, 7, request(key, topics=[topic], timeout_ms=10_000)
        ).topics
        assert not made.error_code, made


def group_with_queue(sides: tuple[Side, Side], name: str, queue: str, *, copies: bool) -> Pair:
    pair = group_of(sides, name)
    pair.configure("errors.deadletterqueue.topic.name", queue)
    pair.configure("errors.deadletterqueue.copy.record.enable", "true" if copies else "false")
    return pair


def records(codec: int = Codec.NONE) -> bytes:
    rows = [
        Record(b"k%d" % n, b"v%d" % n if n % 4 else None, NOW_MS, [("a", b"%d" % n), ("a", None)])
        for n in range(8)
    ]
    return encode_batch(rows, codec=codec)


def letters_of(each: Side, queue: str) -> list[Letter]:
    """Return the records of a dead-letter queue, in the order of their sources."""
    found: list[Letter] = []
    key = ApiKey.FETCH
    with_connection = RawConnection(each.broker.address)
    for partition in range(QUEUE_PARTITIONS):
        row = of(key, "Partition", partition=partition, partition_max_bytes=1 << 20)
        topic = of(key, "Topic", topic=queue, partitions=[row])
        answer = with_connection.ask(key, 12, request(key, max_bytes=1 << 20, topics=[topic]))
        data = answer.responses[0].partitions[0].records or b""
        found += [
            (partition, record.key, record.value, _added(list(record.headers)))
            for record in records_of(data)
        ]
    with_connection.close()

    def source(letter: Letter) -> Any:
        headers = dict(letter[3])
        return tuple(headers[f"__dlq.errors.{name}"] for name in ("partition", "offset"))

    return sorted(found, key=source)


def _added(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers without those of the source record, which Kafka 4.4.0 does not copy."""
    return [each for each in headers if each[0].startswith("__dlq.")]


def same_letters(pair: Pair, queue: str, count: int) -> list[Letter]:
    """Wait until both queues have a number of records, and return them if they are equal."""
    pair.same_states(in_effect)
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        ours, theirs = (letters_of(each, queue) for each in pair.sides)
        if (len(ours) == len(theirs) == count) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert ours == theirs
    assert len(ours) == count
    return ours


@pytest.mark.parametrize("copies", [False, True])
def test_rejected_records_are_equal(sides: tuple[Side, Side], copies: bool) -> None:
    queue = f"dlq.rejected.{copies}"
    create_queue(sides, queue, ENABLED)
    pair = group_with_queue(sides, f"rejects {copies}", queue, copies=copies)
    pair.begin("a", [*range(PARTITIONS)])
    for partition in range(PARTITIONS):
        pair.produce(partition, records())
        pair.produce(partition, records(Codec.GZIP))
        answer = pair.fetch("a", [partition], max_wait_ms=WAIT_MS)
        (row,) = acquired(answer, REJECT)
        first = row[0]
        types = [REJECT, ACCEPT, 0, REJECT, *[REJECT] * 4, *[ACCEPT, REJECT] * 4]
        pair.acknowledge("a", {partition: [(first, first + 15, types)]})
    found = same_letters(pair, queue, PARTITIONS * 10)
    assert {letter[0] for letter in found} == {0, 1}
    ours, theirs = (read_by_test_kit(each, f"rejects {copies}", len(found)) for each in sides)
    assert ours == theirs


def read_by_test_kit(each: Side, group: str, count: int) -> list[tuple[Any, ...]]:
    """Return the dead letters that the test kit reads, in the order of their sources."""
    kafka = ExternalKafka(each.broker.address)
    letters = kafka.wait_for_dead_letters(group, count)
    kafka.close()
    return sorted(
        (one.topic, one.partition, one.offset, one.delivery_count, one.reason, one.key, one.value)
        for one in letters
    )


def test_records_at_delivery_limit_are_equal(sides: tuple[Side, Side]) -> None:
    queue = "dlq.limit"
    create_queue(sides, queue, ENABLED)
    pair = group_with_queue(sides, "limit", queue, copies=True)
    pair.configure("share.delivery.count.limit", "2")
    pair.begin("a", [0])
    pair.produce(0, records())
    for _ in range(2):
        rows = acquired(pair.fetch("a", [0], max_wait_ms=WAIT_MS), RELEASE)
        pair.acknowledge("a", {0: rows})
        pair.same_states(in_effect)
    same_letters(pair, queue, 8)


def test_created_topics_are_equal(sides: tuple[Side, Side]) -> None:
    queue = "dlq.created"
    pair = group_with_queue(sides, "creates", queue, copies=False)
    pair.begin("a", [0])
    pair.produce(0, records())
    pair.acknowledge("a", {0: acquired(pair.fetch("a", [0], max_wait_ms=WAIT_MS), REJECT)})
    pair.same_states(in_effect)
    same_letters(pair, queue, 8)
    ours, theirs = (own_configs(each, queue) for each in sides)
    assert ours == theirs == ENABLED | {"message.timestamp.type": "CreateTime"}


def own_configs(each: Side, topic: str) -> dict[str, str]:
    key = ApiKey.DESCRIBE_CONFIGS
    resource = of(key, "Resource", resource_type=2, resource_name=topic)
    (answer,) = each.connection.ask(key, 4, request(key, resources=[resource])).results
    topic_source = 1
    return {row.name: row.value for row in answer.configs if row.config_source == topic_source}


@pytest.mark.parametrize("configs", [{}, ENABLED | {"cleanup.policy": "compact"}])
def test_unusable_queue_loses_records_but_not_delivery(
    sides: tuple[Side, Side], configs: dict[str, str]
) -> None:
    queue = f"dlq.unusable.{len(configs)}"
    create_queue(sides, queue, configs)
    pair = group_with_queue(sides, f"loses {len(configs)}", queue, copies=False)
    pair.begin("a", [0])
    pair.produce(0, records())
    pair.acknowledge("a", {0: acquired(pair.fetch("a", [0], max_wait_ms=WAIT_MS), REJECT)})
    same_letters(pair, queue, 0)
    pair.produce(0, records())
    assert acquired(pair.fetch("a", [0], max_wait_ms=WAIT_MS), ACCEPT)


async def described_queue(each: Side, group: str) -> DeadLetterQueue | None:
    """Return the dead-letter queue that `kbroker group describe` shows."""
    async with open_cluster([Endpoint.parse(each.broker.address)]) as cluster:
        return await dead_letter_queue(cluster, group)


@pytest.mark.parametrize(
    ("name", "configs", "problem"),
    [
        ("dlq.described", ENABLED, None),
        ("dlq.described-missing", None, None),  # the broker creates it
        ("dlq.described-disabled", {}, "is not enabled as a dead-letter queue"),
        ("dlq.described-compacted", ENABLED | {"cleanup.policy": "compact"}, "is compacted"),
        ("described-without-prefix", ENABLED, "does not start with dlq."),
    ],
)
def test_described_queues_are_equal(
    sides: tuple[Side, Side], name: str, configs: dict[str, str] | None, problem: str | None
) -> None:
    if configs is not None:
        create_queue(sides, name, configs)
    group_with_queue(sides, f"describes {name}", name, copies=False)
    ours, theirs = (trio.run(described_queue, each, f"describes {name}") for each in sides)
    assert ours == theirs
    assert ours is not None
    assert (ours.topic, ours.copies_records) == (name, False)
    assert (ours.problem is None) == (problem is None)
    assert problem is None or problem in (ours.problem or "")
