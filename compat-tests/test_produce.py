"""Produce and fetch cases that the other files do not cover."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from harness.brokers import Broker
from harness.clients import ClientProcess, Library, eventually

Unique = Callable[[str], str]
LONG_WAIT_MS = 20_000
SOON_SECONDS = 15.0


@pytest.fixture
def worker(client: Library, workers: Callable[[str], ClientProcess]) -> ClientProcess:
    return workers(client.name)


@pytest.mark.needs("producer_options")
@pytest.mark.everyone
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_are_written_with_each_acks_setting(
    worker: ClientProcess, unique: Unique, acks: int | str
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    worker("produce", topic=topic, records=[{"value": str(i)} for i in range(20)], acks=acks)
    eventually(
        lambda: worker("offsets", topic=topic, at="latest"), lambda seen: seen == {"0": 20}, "all"
    )
    rows = worker("read", topic=topic, count=20)
    assert [row["value"] for row in rows] == [str(i) for i in range(20)]


@pytest.mark.needs("producer_options")
@pytest.mark.everyone
def test_missing_topic_is_created(
    client: Library, broker: Broker, worker: ClientProcess, unique: Unique
) -> None:
    topic = unique("topic")
    # kafka-go requires the application to retry while Kafka creates the topic.
    (answer,) = eventually(
        lambda: worker("produce", topic=topic, records=[{"value": "x"}]),
        lambda seen: "error" not in seen[0],
        "created",
        broker.settle_seconds,
    )
    assert answer == {"partition": 0, "offset": 0}
    eventually(
        lambda: worker.admin("topics"), lambda seen: topic in seen, "listed", client.cache_seconds
    )


@pytest.mark.needs("producer_options")
@pytest.mark.everyone
def test_records_with_same_key_go_to_same_partition_in_order(
    broker: Broker, worker: ClientProcess, unique: Unique
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic, partitions=5)
    time.sleep(min(broker.settle_seconds, 0.5))
    records = [{"key": f"key {i % 20}", "value": str(i)} for i in range(200)]
    answers = worker("produce", topic=topic, records=records)
    places: dict[str, set[int]] = {}
    for record, answer in zip(records, answers, strict=True):
        places.setdefault(record["key"], set()).add(answer["partition"])
    assert all(len(place) == 1 for place in places.values())
    assert len({min(place) for place in places.values()}) > 1
    rows = worker("read", topic=topic, count=200)
    for key in places:
        values = [int(row["value"]) for row in rows if row["key"] == key]
        assert values == sorted(values)


@pytest.mark.needs("append_time")
@pytest.mark.needs("configs")
def test_log_append_time_replaces_record_timestamps(worker: ClientProcess, unique: Unique) -> None:
    topic, before = unique("topic"), int(time.time() * 1000)
    worker.admin("create_topic", name=topic, configs={"message.timestamp.type": "LogAppendTime"})
    old = [{"value": "x", "timestamp": 1_000_000_000_000, "partition": 0} for _ in range(3)]
    worker("produce", topic=topic, records=old, codec="gzip")
    rows = worker("read", topic=topic, count=3)
    assert len(rows) == 3
    for row in rows:
        assert before - 1_000 <= row["timestamp"] <= int(time.time() * 1000) + 1_000


def test_record_larger_than_fetch_limit_is_read(worker: ClientProcess, unique: Unique) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    records = [{"value": str(i) * 200_000, "partition": 0} for i in range(4)]
    worker("produce", topic=topic, records=records)
    rows = worker("read", topic=topic, count=4, partition_bytes=10_000)
    assert [row["value"] for row in rows] == [record["value"] for record in records]


def test_pending_fetch_returns_new_record_immediately(
    client: Library, worker: ClientProcess, unique: Unique, spawn: Callable[..., ClientProcess]
) -> None:
    """A consumer with a wait of twenty seconds gets a new record immediately."""
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    worker("produce", topic=topic, records=[{"value": "old", "partition": 0}])
    reader = spawn(client)
    reader.send("read", topic=topic, count=2, seconds=30.0, fetch_wait_ms=LONG_WAIT_MS)
    time.sleep(2.0)
    began = time.monotonic()
    worker("produce", topic=topic, records=[{"value": "new", "partition": 0}])
    rows = reader.receive("read")
    assert [row["value"] for row in rows] == ["old", "new"]
    assert time.monotonic() - began < SOON_SECONDS


@pytest.mark.needs("isolation")
def test_read_committed_returns_plain_records(worker: ClientProcess, unique: Unique) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    worker("produce", topic=topic, records=[{"value": str(i), "partition": 0} for i in range(10)])
    rows = worker("read", topic=topic, count=10, isolation="read_committed")
    assert [row["value"] for row in rows] == [str(i) for i in range(10)]
    offsets = worker("offsets", topic=topic, at="latest", isolation="read_committed")
    assert offsets == {"0": 10}
