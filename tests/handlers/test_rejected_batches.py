"""Tests of the order of pipelined idempotent batches after a rejected one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from kbroker.broker import Broker
from kbroker.handlers.rejected_batches import KEPT_MAX, KEPT_SECONDS, RejectedBatches
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import read_header
from kbroker.storage.producer_state import ProducerStates, sequence_distance

from ..brokers import started
from ..wire import Topic, Wire, connected, create_topic, produce, sequenced

PRODUCER = 4000
LAST_SEQUENCE = 2**31 - 1
# Errors after which a producer retries the batch.
RETRIABLE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]
NONE, OUT_OF_ORDER = ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started() as broker:
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with connected(broker.endpoint) as wire:
        yield wire


async def produce_all(
    wire: Wire, topic: Topic, sequences: Sequence[int], epoch: int = 0
) -> list[int]:
    rows = [
        await produce(wire, topic, sequenced(PRODUCER, each, epoch=epoch)) for each in sequences
    ]
    return [row.error_code for row in rows]


def reject_once(monkeypatch: pytest.MonkeyPatch, code: ErrorCode, sequences: Sequence[int]) -> None:
    """Make the first attempt to append each of these batches fail."""
    append, left = Replica.append_produced, set(sequences)

    def append_or_reject(  # type: ignore[no-untyped-def]
        replica: Replica, batch: memoryview, header: object, *rest: object, **more: bool
    ):
        sequence = read_header(batch).base_sequence
        if sequence in left:
            left.remove(sequence)
            raise KafkaError(code)
        return append(replica, batch, header, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Replica, "append_produced", append_or_reject)


@pytest.mark.parametrize("begins_at", [0, 7, LAST_SEQUENCE - 1])
@pytest.mark.parametrize("code", RETRIABLE)
async def test_later_batches_get_same_error_until_rejected_batch_is_retried(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, begins_at: int
) -> None:
    topic = await create_topic(wire, "t")
    s = [(begins_at + each) & LAST_SEQUENCE for each in range(6)]
    reject_once(monkeypatch, code, [s[1]])
    assert await produce_all(wire, topic, s[:4]) == [NONE, code, code, code]
    assert await produce_all(wire, topic, [s[0]]) == [NONE], "a duplicate of a stored batch"
    assert await produce_all(wire, topic, [s[1], s[4], s[2], s[3], s[4], s[5]]) == [
        NONE,
        code,
        NONE,
        NONE,
        NONE,
        NONE,
    ]
    assert await produce_all(wire, topic, [s[5] + 3 & LAST_SEQUENCE]) == [OUT_OF_ORDER]


async def test_first_batches_of_producer_keep_order_after_rejection(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, code = await create_topic(wire, "t"), ErrorCode.NOT_LEADER_OR_FOLLOWER
    reject_once(monkeypatch, code, [0])
    assert await produce_all(wire, topic, [0, 1, 2]) == [code] * 3
    assert await produce_all(wire, topic, [0, 1, 2]) == [NONE] * 3


async def test_batches_keep_order_if_topic_is_created_between_them(
    wire: Wire,
) -> None:
    missing = Topic("t")
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    sent = [sequenced(PRODUCER, each) for each in range(2)]
    assert (await produce(wire, missing, sent[0], version=9)).error_code == code
    await create_topic(wire, "t")
    assert (await produce(wire, missing, sent[1], version=9)).error_code == code
    assert [(await produce(wire, missing, each, version=9)).error_code for each in sent] == [0, 0]


async def test_sequence_gaps_without_rejected_batch_are_out_of_order(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, code = await create_topic(wire, "t"), ErrorCode.NOT_LEADER_OR_FOLLOWER
    reject_once(monkeypatch, code, [1])
    assert await produce_all(wire, topic, [0, 1]) == [NONE, code]
    assert await produce_all(wire, topic, [0, 5], epoch=1) == [NONE, OUT_OF_ORDER], "another epoch"
    async with connected(broker.endpoint) as other:
        assert await produce_all(other, topic, [2], epoch=1) == [OUT_OF_ORDER], "another connection"


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE])
async def test_batches_after_invalid_batch_are_out_of_order(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    topic = await create_topic(wire, "t")
    reject_once(monkeypatch, code, [1])
    assert await produce_all(wire, topic, [0, 1, 2]) == [NONE, code, OUT_OF_ORDER]


def test_rejected_batches_are_bounded_and_expire() -> None:
    rejected, states = RejectedBatches(), ProducerStates()
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    for index in range(KEPT_MAX + 1):
        rejected.remember("t", index, memoryview(sequenced(PRODUCER, 0)), code, 0.0)
    header = read_header(sequenced(PRODUCER, 1))
    rejected.check("t", 0, header, states, 1.0)  # the oldest one was evicted
    with pytest.raises(KafkaError):
        rejected.check("t", 1, header, states, 1.0)
    rejected.check("t", 1, header, states, KEPT_SECONDS + 1)


def test_rejected_batches_without_producer_are_not_recorded() -> None:
    rejected, code = RejectedBatches(), ErrorCode.NOT_LEADER_OR_FOLLOWER
    for records in (None, b"", b"x" * 100, sequenced(-1, -1), sequenced(PRODUCER, -1)):
        rejected.remember("t", 0, records and memoryview(records), code, 0.0)  # type: ignore[arg-type]
    assert not rejected


@pytest.mark.parametrize("sequence", [0, 1, 1000, LAST_SEQUENCE])
def test_sequence_distance_wraps(sequence: int) -> None:
    for step in (0, 1, 5, 100_000):
        later = (sequence + step) & LAST_SEQUENCE
        assert sequence_distance(later, sequence) == step
        assert sequence_distance(sequence, later) == -step
