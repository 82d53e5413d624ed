"""A producer: batching, partitioning by key, retries and idempotence."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import NamedTuple

import trio

from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import BatchHeader, Record, encode_batch, read_header

from .cluster import RETRY_BACKOFF_SECONDS, ClusterClient
from .errors import CannotConnect, NoSuchPartition, NotReachable, TimedOut, error_code
from .partitioner import partition_of
from .topics import Partition

# Maximum batch size; below the default `message.max.bytes`.
BATCH_BYTES_MAX = 512 * 1024
# Maximum size of a Produce request; far below the default `socket.request.max.bytes`.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
# Upper bound of a record's size apart from its key, value and headers, in bytes.
RECORD_OVERHEAD = 64
REQUEST_TIMEOUT_MS = 30_000
# How long retriable errors are retried: longer than the failover of a dead leader takes.
RETRY_TIMEOUT_SECONDS = 10
# How long to retry while the cluster is unreachable, for example during a restart.
AWAY_SECONDS = 30
# Last Produce version that identifies topics by name.
TOPIC_BY_NAME = 12
ANY_PARTITION = -1
# acks value that waits for all in-sync replicas.
ALL_IN_SYNC = -1
SEQUENCE_MASK = 0x7FFFFFFF


class Written(NamedTuple):
    """A written batch; `base_offset` is -1 with acks=0 and for a duplicate batch."""

    partition: Partition
    records: list[Record]
    base_offset: int
    header: BatchHeader

    @property
    def placed(self) -> list[Record]:
        """The records with their offsets, or -1 if the offsets are unknown."""
        first = self.base_offset
        offsets = count(first) if first >= 0 else repeat(-1)
        return [
            record._replace(offset=at) for record, at in zip(self.records, offsets, strict=False)
        ]


@dataclass(slots=True)
class Identity:
    """Producer ID, epoch and sequence numbers of an idempotent producer (KIP-98).

    Attributes:
        sequences: Next sequence number by partition; 0 if missing.
    """

    producer_id: int
    epoch: int
    sequences: dict[Partition, int] = field(default_factory=dict)

    def take(self, partition: Partition, number: int) -> int:
        """Reserve sequence numbers for `number` records and return the first one."""
        first = self.sequences.get(partition, 0)
        self.sequences[partition] = (first + number) & SEQUENCE_MASK
        return first


async def new_identity(cluster: ClusterClient) -> Identity:
    """Request a producer ID for an idempotent producer. Raises KafkaError or ClientError."""
    deadline = trio.current_time() + AWAY_SECONDS
    while True:
        answer = await (await cluster.any()).ask(InitProducerIdRequest(), newest=5)
        code = error_code(answer.error_code)
        if not code:
            return Identity(answer.producer_id, answer.producer_epoch)
        if not code.retriable or trio.current_time() > deadline:
            raise KafkaError(code)
        await trio.sleep(RETRY_BACKOFF_SECONDS)


class _Batch(NamedTuple):
    """A batch to send; `data` is its encoded form."""

    partition: Partition
    records: list[Record]
    data: bytes


_Responses = list[tuple[_Batch, ProduceResponse.Partition]]


class Producer:
    """A producer.

    Without an `identity`, delivery is at least once and a lost response raises an error. With an
    `identity`, delivery is exactly once if `write` returns: lost responses and short broker outages
    are retried without duplicates. After an error, the sequence numbers of the identity may be ahead
    of those in the log.

    Args:
        cluster: The cluster to write to.
        acks: -1, 0 or 1 as in Kafka; must be -1 with an identity.
        codec: Compression of each batch.
        identity: Identity of an idempotent producer, or None.
        patience_seconds: How long retriable errors of a batch are retried.

    Attributes:
        written_before_error: Batches that the last call of `write` wrote before it failed.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        acks: int = ALL_IN_SYNC,
        codec: Codec = Codec.NONE,
        identity: Identity | None = None,
        patience_seconds: float = RETRY_TIMEOUT_SECONDS,
    ) -> None:
        if identity is not None and acks != ALL_IN_SYNC:
            raise ValueError("an idempotent producer requires acks=-1")
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._identity = identity
        self._patience_seconds = patience_seconds
        self._leaders: dict[str, list[int]] = {}
        self.written_before_error: Sequence[Written] = ()

    async def place(self, topic: str, record: Record, partition: int = ANY_PARTITION) -> Partition:
        """Return the partition of a record: the given one, else that of its key, else a random one.

        Raises:
            NoSuchTopic: The topic does not exist.
            NoSuchPartition: The topic has fewer partitions.
        """
        partition_count = len(await self._leaders_of(topic))
        if partition >= partition_count:
            raise NoSuchPartition(topic, partition, partition_count)
        if partition >= 0:
            return topic, partition
        if record.key is not None:
            return topic, partition_of(record.key, partition_count)
        return topic, random.randrange(partition_count)

    async def _leaders_of(self, topic: str) -> list[int]:
        """Return the leader of each partition of a topic, -1 for partitions without a leader."""
        if topic not in self._leaders:
            (row,) = await self._cluster.topics([topic])
            leaders = {part.partition_index: part.leader_id for part in row.partitions}
            self._leaders[topic] = [leaders[index] for index in sorted(leaders)]
        return self._leaders[topic]

    async def write(self, records: Mapping[Partition, Sequence[Record]]) -> list[Written]:
        """Write records, in order within each partition.

        Args:
            records: Records by partition.

        Returns:
            The written batches.

        Raises:
            KafkaError: A leader rejects a batch.
            ClientError: A topic does not exist, or the cluster is unreachable.
        """
        queues = {partition: deque(_batches(listed)) for partition, listed in records.items()}
        written: list[Written] = []
        self.written_before_error = ()
        try:
            while any(queues.values()):
                wave = [
                    self._encode(partition, queue.popleft())
                    for partition, queue in queues.items()
                    if queue
                ]
                await self._write_wave(wave, written)
        except BaseException:
            self.written_before_error = written
            raise
        return written

    def _encode(self, partition: Partition, records: list[Record]) -> _Batch:
        if self._identity is None:
            return _Batch(partition, records, encode_batch(records, codec=self._codec))
        data = encode_batch(
            records,
            codec=self._codec,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=self._identity.take(partition, len(records)),
        )
        return _Batch(partition, records, data)

    async def _write_wave(self, batches: list[_Batch], written: list[Written]) -> None:
        """Write at most one batch per partition; retry rejected batches until the deadline.

        Args:
            batches: The batches.
            written: Gets each batch that was written, even if another one fails.

        Raises:
            KafkaError: A leader rejects a batch.
            ClientError: A topic does not exist, or the cluster is unreachable.
        """
        deadline = trio.current_time() + self._patience_seconds
        while True:
            rejected: list[_Batch] = []
            failures: list[KafkaError] = []
            for batch, row in await self._send_all(batches):
                code = error_code(row.error_code)
                if not code or code in _ALREADY_WRITTEN:
                    offset = -1 if code else row.base_offset
                    header = read_header(batch.data)
                    written.append(Written(batch.partition, batch.records, offset, header))
                elif self._may_retry(code) and trio.current_time() < deadline:
                    rejected.append(batch)
                else:
                    failures.append(KafkaError(code, _error_text(row)))
            if failures:
                raise failures[0]
            if not rejected:
                return
            await trio.sleep(RETRY_BACKOFF_SECONDS)
            self._leaders.clear()
            batches = rejected

    def _may_retry(self, code: ErrorCode) -> bool:
        """Return True if a retry may succeed and cannot write a record twice."""
        return code in _NOT_WRITTEN or (self._identity is not None and code.retriable)

    async def _send_all(self, batches: Sequence[_Batch]) -> _Responses:
        """Send each batch to its partition's leader; return the responses in arbitrary order."""
        responses: _Responses = []
        requests: dict[tuple[int, int], list[_Batch]] = {}
        sizes: dict[int, int] = {}
        try:
            for batch in batches:
                topic, index = batch.partition
                leader = (await self._leaders_of(topic))[index]
                sizes[leader] = sizes.get(leader, 0) + len(batch.data)
                requests.setdefault((leader, sizes[leader] // REQUEST_BYTES_MAX), []).append(batch)
        except _UNREACHABLE as error:
            return self._unreachable(batches, error)
        for (leader, _), listed in requests.items():
            if leader < 0:
                responses += _rejections(listed, ErrorCode.LEADER_NOT_AVAILABLE)
                continue
            try:
                responses += await self._send(leader, listed)
            except _UNREACHABLE as error:
                responses += self._unreachable(listed, error)
        return responses

    def _unreachable(self, batches: Sequence[_Batch], error: Exception) -> _Responses:
        """Raise the error, or treat it as retriable for an idempotent producer."""
        if self._identity is None:
            raise error
        return _rejections(batches, ErrorCode.NETWORK_EXCEPTION, str(error))

    async def _send(self, leader: int, batches: list[_Batch]) -> _Responses:
        rows: dict[str, list[ProduceRequest.Partition]] = {}
        for (topic, index), _, data in batches:
            rows.setdefault(topic, []).append(ProduceRequest.Partition(index=index, records=data))
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topic_data=[ProduceRequest.Topic(name=k, partition_data=v) for k, v in rows.items()],
        )
        connection = await self._cluster.node(leader)
        if self._acks == 0:
            await connection.send_without_response(request, newest=TOPIC_BY_NAME)
            unknown = ProduceResponse.Partition(base_offset=-1)
            return [(batch, unknown) for batch in batches]
        answer = await connection.ask(request, oldest=3, newest=TOPIC_BY_NAME)
        found = {
            (topic.name, row.index): row
            for topic in answer.responses
            for row in topic.partition_responses
        }
        return [(batch, found[batch.partition]) for batch in batches]


# Errors that mean that the cluster or a broker is unreachable.
_UNREACHABLE = (OSError, CannotConnect, NotReachable, TimedOut)
# Retriable errors after which the batch is certainly not written.
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_ALREADY_WRITTEN = frozenset({ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


def _rejections(
    batches: Sequence[_Batch], code: ErrorCode, message: str | None = None
) -> _Responses:
    row = ProduceResponse.Partition(error_code=code, error_message=message)
    return [(batch, row) for batch in batches]


def _error_text(row: ProduceResponse.Partition) -> str | None:
    """Return the broker's error message for a batch or its first invalid record."""
    messages = [each.batch_index_error_message for each in row.record_errors[:1]]
    return next((word for word in (*messages, row.error_message) if word), None)


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Split records into batches of at most `BATCH_BYTES_MAX`, unless one record is larger."""
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
