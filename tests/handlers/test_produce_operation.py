"""Tests of Produce requests with batches that are validated over several event-loop iterations."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kbroker.cluster import Topic
from kbroker.handlers.produce_operation import (
    EFFORT_AT_ONCE,
    LIGHT_COMPRESSED_BYTES_MAX,
    ProduceOperation,
)
from kbroker.partitions.partitions import Partitions
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.records import HEADER_SIZE, read_header, with_payload

from ..brokers import started
from ..wire import Topic as CreatedTopic
from ..wire import Wire, batch, connected, create_topic, fetch, produce_request, values_of


async def produce_all(wire: Wire, topic: CreatedTopic, batches: list[bytes]) -> list[int]:
    """Produce a batch to each partition in one request and return the error codes."""
    ask = produce_request(topic, None)
    ask.topic_data[0].partition_data = [
        ProduceRequest.Partition(index=index, records=each) for index, each in enumerate(batches)
    ]
    response = await wire.ask(ApiKey.PRODUCE, 9, ask)
    return [row.error_code for row in response.responses[0].partition_responses]


async def test_batch_after_leadership_loss_is_stored_in_its_own_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leadership of partition 0 is lost during the validation of its batch."""
    value = Random(1).randbytes(2 * LIGHT_COMPRESSED_BYTES_MAX)
    find, calls = Partitions.replica, Counter[int]()

    def lose_leadership(partitions: Partitions, topic: Topic, index: int) -> Replica:
        calls[index] += 1
        if (index, calls[index]) == (0, 2):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return find(partitions, topic, index)

    long = batch([b"long"] * 2 * EFFORT_AT_ONCE)
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        with monkeypatch.context() as patched:
            patched.setattr(Partitions, "replica", lose_leadership)
            codes = await produce_all(wire, topic, [long, batch([value], codec=Codec.GZIP)])
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
        row = await fetch(wire, topic, partitions=[1])
        assert values_of(row) == [value]


async def test_rejected_batches_count_as_work_of_event_loop_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After enough records, the validation continues in time slices."""
    count, records = 30, EFFORT_AT_ONCE * 3 // 4
    prepare, in_slices = ProduceOperation._prepare_and_append, 0

    async def counting_prepare(
        work: ProduceOperation, topic: ProduceRequest.Topic, partition: ProduceRequest.Partition
    ) -> ProduceResponse.Partition:
        nonlocal in_slices
        in_slices += 1
        return await prepare(work, topic, partition)

    monkeypatch.setattr(ProduceOperation, "_prepare_and_append", counting_prepare)
    good = batch([b"x"] * records)
    cut = with_payload(read_header(good), good[HEADER_SIZE:-1])[0]
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", count)
        assert await produce_all(wire, topic, [cut] * count) == [ErrorCode.INVALID_RECORD] * count
    assert in_slices > 0
