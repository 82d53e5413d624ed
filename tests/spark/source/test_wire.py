"""Ranges are read exactly, and lost records are reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.spark.source import arrow, wire
from kbroker.spark.source.client import Settings, create_client
from kbroker.spark.source.loss import DataLoss
from kbroker.spark.source.offsets import OffsetRange, split
from kbroker.spark.source.options import SourceOptions
from kbroker.spark.source.partitions import SourceError, WirePartitions
from kbroker.testing import LocalBroker

from .topics import Transaction, delete_before, produce


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalBroker]:
    """A broker for all tests that create their own topics."""
    with LocalBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SHORT_SECONDS", 0.2)


def options(broker: LocalBroker, **given: str) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "any"}
    return SourceOptions.parse(servers | named)


def offsets(broker: LocalBroker, topic: str, start: int, end: int, **given: str) -> list[int]:
    """Return the offsets that a task reads."""
    wanted = OffsetRange(topic, 0, start, end)
    batches = list(wire.read_range(wanted, options(broker, **given)))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_range_within_partition_is_read_exactly(shared: LocalBroker) -> None:
    shared.create_topic("middle")
    produce(shared, "middle", [str(number) for number in range(100)])
    assert offsets(shared, "middle", 20, 70) == list(range(20, 70))


@pytest.mark.parametrize("error", ["FENCED_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"])
def test_request_is_retried_after_leader_change(shared: LocalBroker, error: str) -> None:
    shared.create_topic(error)
    produce(shared, error, ["a", "b"])
    cluster = WirePartitions(options(shared))
    assert cluster.latest([(error, 0)], {}) == {(error, 0): 2}
    fault = shared.fault("ListOffsets", error=error, topic=error).times(2)
    assert cluster.latest([(error, 0)], {}) == {(error, 0): 2}
    assert fault.hits == 2


def test_request_waits_for_unknown_leader(shared: LocalBroker) -> None:
    """After a broker's start, librdkafka finds no leaders in the metadata and sends no request."""
    shared.create_topic("leaderless")
    produce(shared, "leaderless", ["a"])

    @shared.on("Metadata", topic="leaderless", at="after")
    def hide(response: MetadataResponse, request: Any) -> MetadataResponse:
        if hits[:3] != [1, 1, 1]:
            hits.append(1)
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.leader_id = -1
                    partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        return response

    hits: list[int] = []
    cluster = WirePartitions(options(shared))
    assert cluster.latest([("leaderless", 0)], {}) == {("leaderless", 0): 1}
    assert hits


def test_task_ends_despite_trailing_control_and_aborted_records(shared: LocalBroker) -> None:
    shared.create_topic("aborted")
    produce(shared, "aborted", ["a", "b"])
    Transaction(shared, "aborted", ["c", "d"]).abort()

    began = time.monotonic()
    assert offsets(shared, "aborted", 0, 5) == [0, 1, 2, 3]
    assert offsets(shared, "aborted", 0, 5, kafka__isolation__level="read_committed") == [0, 1]
    assert offsets(shared, "aborted", 4, 5) == []
    assert time.monotonic() - began < 60


def test_open_transaction_in_range_is_an_error(shared: LocalBroker) -> None:
    shared.create_topic("open")
    produce(shared, "open", ["a"])
    transaction = Transaction(shared, "open", ["b"])

    assert offsets(shared, "open", 0, 2) == [0, 1]
    with pytest.raises(SourceError, match="a transaction is open at offset 1"):
        offsets(shared, "open", 0, 2, kafka__isolation__level="read_committed")

    transaction.commit()
    assert offsets(shared, "open", 0, 2, kafka__isolation__level="read_committed") == [0, 1]


def test_deleted_offsets_are_data_loss(shared: LocalBroker) -> None:
    shared.create_topic("trimmed")
    produce(shared, "trimmed", ["a", "b", "c", "d"])
    delete_before(shared, "trimmed", 2)

    with pytest.raises(DataLoss, match=r"offset \[0, 4\) for topic partition trimmed-0.*is 2"):
        offsets(shared, "trimmed", 0, 4)
    assert offsets(shared, "trimmed", 0, 4, failOnDataLoss="false") == [2, 3]
    assert offsets(shared, "trimmed", 0, 1, failOnDataLoss="false") == []


def test_range_from_earliest_skips_records_deleted_since_planning(shared: LocalBroker) -> None:
    shared.create_topic("retained")
    produce(shared, "retained", ["a", "b", "c", "d"])
    delete_before(shared, "retained", 2)
    wanted = OffsetRange("retained", 0, 0, 4, from_earliest=True)
    pieces = [wanted, *split([wanted], least=4)]
    read = [
        [
            offset
            for batch in wire.read_range(each, options(shared))
            for offset in batch.column("offset").to_pylist()
        ]
        for each in pieces
    ]
    assert read == [[2, 3], [], [], [2], [3]]


def test_partition_shorter_than_range_is_data_loss(shared: LocalBroker) -> None:
    shared.create_topic("shorter")
    produce(shared, "shorter", ["a", "b"])

    with pytest.raises(DataLoss, match="the partition ends at 2"):
        offsets(shared, "shorter", 0, 9)
    assert offsets(shared, "shorter", 0, 9, failOnDataLoss="false") == [0, 1]
    assert offsets(shared, "shorter", 5, 9, failOnDataLoss="false") == []


class PausingConsumer:
    """A consumer whose first call returns all records and the partition's end; the second, nothing."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._calls = 0

    def consume(self, count: int, timeout: float) -> list[Message]:
        self._calls += 1
        if self._calls == 2:
            return []
        found: list[Message] = []
        while not found or (self._calls == 1 and not found[-1].error()):
            found += self._consumer.consume(count, timeout)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_time_that_spark_takes_for_batch_is_no_waiting_time(
    shared: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the partition was seen before; it has moved while Spark processed the batch."""
    shared.create_topic("busy")
    produce(shared, "busy", ["a", "b"])

    def create(kind: type[Consumer], chosen: Settings) -> PausingConsumer:
        return PausingConsumer(create_client(kind, chosen))

    monkeypatch.setattr(wire, "create_client", create)
    wanted = options(shared, kafkaConsumer__pollTimeoutMs="1000")
    found = []
    for each in wire.read_range(OffsetRange("busy", 0, 0, 3), wanted):
        found += each.column("offset").to_pylist()
        if len(found) == 2:
            produce(shared, "busy", ["c"])
            time.sleep(1.1)
    assert found == [0, 1, 2]


def test_unresponsive_broker_ends_task() -> None:
    with LocalBroker(topics=["away"]) as broker:
        broker.stop()
        with pytest.raises(
            SourceError, match=r"no records arrived within .* kafkaConsumer.pollTimeoutMs"
        ):
            offsets(broker, "away", 0, 1, kafkaConsumer__pollTimeoutMs="300")


def test_batches_are_bounded_by_rows_and_by_bytes(
    shared: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "BATCH_BYTES", 3000)
    monkeypatch.setattr(arrow, "BATCH_ROWS", 40)
    shared.create_topic("bounded")
    produce(shared, "bounded", ["x"] * 100 + ["y" * 1000] * 10 + ["z" * 9000])

    batches = list(wire.read_range(OffsetRange("bounded", 0, 0, 111), options(shared)))

    assert sum(batch.num_rows for batch in batches) == 111
    assert max(batch.num_rows for batch in batches) <= 40
    assert max(batch.nbytes for batch in batches if batch.num_rows > 1) <= 3000
    assert [batch.num_rows for batch in batches][-1] == 1
