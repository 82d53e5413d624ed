"""Write records: to the partition that their key belongs to, in batches, acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import trio

from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.records import BatchHeader, Record, encode_batch, read_header

from .cluster import ClusterClient
from .errors import NoSuchPartition, error_code
from .partitioner import partition_of
from .topics import Partition

BATCH_BYTES_MAX = 512 * 1024
"""Below the `message.max.bytes` of every cluster with the default."""
RECORD_OVERHEAD = 64
"""More than a record needs beside its key, value and headers."""
REQUEST_TIMEOUT_MS = 30_000
RETRY_SECONDS = 10
RETRY_PAUSE_SECONDS = 0.1
TOPIC_BY_NAME = 12
"""The last version of Produce that names topics."""
ANY_PARTITION = -1


class Written(NamedTuple):
    """Where a batch went; offsets of its records are -1 with acks=0."""

    partition: Partition
    records: list[Record]
    header: BatchHeader


class Producer:
    """Writes records to a cluster. Delivery is at least once: a lost answer is an error.

    Parameters: `acks` is -1, 0 or 1 as in Kafka; `codec` compresses each batch.
    """

    def __init__(
        self, cluster: ClusterClient, *, acks: int = -1, codec: Codec = Codec.NONE
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._leaders: dict[str, list[int]] = {}

    async def place(self, topic: str, record: Record, partition: int = ANY_PARTITION) -> Partition:
        """The partition that a record goes to: the one named, else that of its key, else any.

        Raises NoSuchTopic and NoSuchPartition.
        """
        count = len(await self._leaders_of(topic))
        if partition >= count:
            raise NoSuchPartition(topic, partition, count)
        if partition >= 0:
            return topic, partition
        if record.key is not None:
            return topic, partition_of(record.key, count)
        return topic, random.randrange(count)

    async def _leaders_of(self, topic: str) -> list[int]:
        """The leader of each partition of a topic, -1 where there is none now."""
        if topic not in self._leaders:
            (row,) = await self._cluster.topics([topic])
            leaders = {part.partition_index: part.leader_id for part in row.partitions}
            self._leaders[topic] = [leaders[index] for index in sorted(leaders)]
        return self._leaders[topic]

    async def write(self, records: Mapping[Partition, Sequence[Record]]) -> list[Written]:
        """Write records, in their order within each partition. Raises KafkaError or ClientError."""
        written = []
        for partition, listed in records.items():
            for batch in _batches(listed):
                written.append(await self._write_batch(partition, batch))
        return written

    async def _write_batch(self, partition: Partition, records: list[Record]) -> Written:
        batch = encode_batch(records, codec=self._codec)
        deadline = trio.current_time() + RETRY_SECONDS
        while True:
            row = await self._send(partition, batch)
            code = error_code(row.error_code)
            if not code:
                return _written(partition, records, batch, row.base_offset)
            if code not in _NOT_WRITTEN or trio.current_time() > deadline:
                raise KafkaError(code, _why(row))
            await trio.sleep(RETRY_PAUSE_SECONDS)
            del self._leaders[partition[0]]

    async def _send(self, partition: Partition, batch: bytes) -> ProduceResponse.Partition:
        topic, index = partition
        leader = (await self._leaders_of(topic))[index]
        if leader < 0:
            return ProduceResponse.Partition(error_code=ErrorCode.LEADER_NOT_AVAILABLE)
        rows = [ProduceRequest.Partition(index=index, records=batch)]
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topic_data=[ProduceRequest.Topic(name=topic, partition_data=rows)],
        )
        connection = await self._cluster.node(leader)
        if self._acks == 0:
            await connection.tell(request, newest=TOPIC_BY_NAME)
            return ProduceResponse.Partition(index=index, base_offset=-1)
        answer = await connection.ask(request, oldest=3, newest=TOPIC_BY_NAME)
        row: ProduceResponse.Partition = answer.responses[0].partition_responses[0]
        return row


_NOT_WRITTEN = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Refusals after which nothing was written, and which pass by themselves."""


def _written(
    partition: Partition, records: list[Record], batch: bytes, base_offset: int
) -> Written:
    offsets = range(base_offset, base_offset + len(records)) if base_offset >= 0 else repeat(-1)
    placed = [record._replace(offset=at) for record, at in zip(records, offsets, strict=False)]
    return Written(partition, placed, read_header(batch))


def _why(row: ProduceResponse.Partition) -> str | None:
    """The broker's words about a batch or its first bad record."""
    words = [each.batch_index_error_message for each in row.record_errors[:1]]
    return next((word for word in (*words, row.error_message) if word), None)


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Cut records into batches of a size that every broker takes."""
    batch: list[Record] = []
    size = 0
    for record in records:
        grown = size + _size(record)
        if batch and grown > BATCH_BYTES_MAX:
            yield batch
            batch, grown = [], _size(record)
        batch.append(record)
        size = grown
    if batch:
        yield batch


def _size(record: Record) -> int:
    headers = sum(len(key) + len(value or b"") + 16 for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD
