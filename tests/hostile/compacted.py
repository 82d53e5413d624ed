"""Batches that expand on decompression, in a compacted topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import Record, encode_batch, read_header, with_payload

from ..wire import Topic, Wire, connected, create_topic

if TYPE_CHECKING:
    from kbroker.broker import Broker

COMPACTED = Topic("compacted")
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
TOPIC_RESOURCE = 2
NOT_YET = {"cleanup.policy": "delete"}
PAUSE_SECONDS = 0.05
EXPANDED_BYTES = 64 * 1024 * 1024 - 64
PARTITIONS = 3


def _record(delta: int, key: bytes, value: bytes, headers: bytes = b"\0") -> bytes:
    body = b"\0\0" + write_varint(delta)
    for each in (key, value):
        body += write_varint(len(each)) + each
    body += headers
    return write_varint(len(body)) + body


def _batch(compressed: bytes, count: int, codec: Codec) -> bytes:
    """Return a batch with the current time, so that the previous segment exceeds `segment.ms`."""
    header = read_header(encode_batch([Record(None, None, int(time.time() * 1000))]))._replace(
        attributes=int(codec), last_offset_delta=count - 1, record_count=count
    )
    return with_payload(header, compressed)[0]


def _stored_batches() -> list[bytes]:
    """Return batches that exceed the current limits of Produce."""
    tiny = _record(0, b"k", b"")
    many = 500_000
    count = EXPANDED_BYTES // 2 - 32
    headers = write_varint(count) + b"\0\1" * count
    contents = [
        (tiny * many, many),
        (_record(0, b"k", b"", headers), 1),
        (_record(0, b"k", bytes(EXPANDED_BYTES - 64)), 1),
    ]
    return [_batch(compress(Codec.ZSTD, content), n, Codec.ZSTD) for content, n in contents]


async def plant(broker: Broker, wire: Wire) -> None:
    """Store batches in a topic that is not compacted yet."""
    batches = _stored_batches()
    await create_topic(wire, COMPACTED.name, PARTITIONS, NOT_YET)
    for index, batch in enumerate(batches):
        replica = broker.node.partitions.named_replica(COMPACTED.name, index)
        for _ in range(2):
            replica.append(memoryview(batch), read_header(batch), broker.node.clock.log_ms())


async def compaction_of_large_batches(bootstrap: tuple[str, int]) -> None:
    """Enable compaction, and produce until the size on disk decreases.

    Each produced batch starts a new segment, so the previous one can be compacted.
    """
    async with connected(bootstrap) as wire:
        cls = IncrementalAlterConfigsRequest
        configs = [cls.Config(name=name, value=value) for name, value in SETTINGS.items()]
        resource = cls.Resource(
            resource_type=TOPIC_RESOURCE, resource_name=COMPACTED.name, configs=configs
        )
        await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, cls(resources=[resource]))
        largest = 0
        while (size := await _size(wire)) >= largest:
            largest = size
            await wire.ask(ApiKey.PRODUCE, 9, _produce())
            await trio.sleep(PAUSE_SECONDS)


def _produce() -> ProduceRequest:
    batch = memoryview(_batch(_record(0, b"k", b""), 1, Codec.NONE))
    rows = [ProduceRequest.Partition(index=index, records=batch) for index in range(PARTITIONS)]
    topic = ProduceRequest.Topic(name=COMPACTED.name, partition_data=rows)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


async def _size(wire: Wire) -> int:
    """Return the bytes on disk of all partitions of the topic."""
    cls = DescribeLogDirsRequest
    partitions = [*range(PARTITIONS)]
    request = cls(topics=[cls.Topic(topic=COMPACTED.name, partitions=partitions)])
    response = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, 1, request)
    rows = (
        row
        for directory in response.results
        for topic in directory.topics
        for row in topic.partitions
    )
    return sum(int(row.partition_size) for row in rows)
