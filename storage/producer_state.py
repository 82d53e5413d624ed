"""Producer state of one partition for idempotence and transactions (KIP-98, KIP-360, KIP-890).

For each producer ID a partition keeps the epoch and the last five batches. A batch with the first
and last sequence of a kept batch is a retry: the response has the original offsets. Any other batch
must continue after the last one. Sequences wrap from 2147483647 to 0.

Open transactions are tracked too: the first one limits what read_committed consumers may read.

The state can be rebuilt from the batches of the log. To avoid a full scan, it is saved in
`<offset>.snapshot`, which holds the state before that offset::

    version int16 (1)   crc-32c uint32 of the rest   count int32, and for each producer
    producer id int64, epoch int16, last sequence int32, last offset int64, offset delta int32,
    timestamp int64, coordinator epoch int32, first offset of the open transaction int64 (or -1)

Without a sequence, the last offset is that of the last marker, and the sequence is -1.

This part is Kafka's format. It holds one batch per producer, so after a restart of Kafka a retry of
an earlier batch is out of order. The second part holds the earlier batches, oldest first for each
producer. The checksum covers it, and Kafka ignores it::

    version int16 (1)   and for each batch
    producer id int64, last sequence int32, last offset int64, offset delta int32, timestamp int64

If a snapshot lacks the second part, the earlier batches are read from the log
(`add_earlier_batches`).
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import NamedTuple

from kbroker.protocol.checksum import crc32c
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import TRANSACTIONAL_BIT, BatchHeader, Marker

# Batches kept for each producer.
BATCHES_KEPT = 5
# Maximum number of producers of one partition (1.1 to 1.7 kB each). The event loop writes them to a
# snapshot in one step when a segment rolls, about 2 µs each. Beyond the limit, idle producers are
# evicted.
PRODUCERS_MAX = 10_000
# Number of producers to evict at once.
_EVICTED_AT_ONCE = PRODUCERS_MAX // 10
_SEQUENCE_MASK = 0x7FFFFFFF
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6
_EARLIER_HEAD = (1).to_bytes(2, "big")
_EARLIER_BATCH = struct.Struct(">qiqiq")


def sequence_distance(sequence: int, other: int) -> int:
    """Return how far `sequence` is after `other`, negative if it is before; sequences wrap."""
    half = (_SEQUENCE_MASK + 1) // 2
    return ((sequence - other + half) & _SEQUENCE_MASK) - half


class Batch(NamedTuple):
    """A kept batch: sequences, offsets, and maximum timestamp (ms)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int

    @classmethod
    def ending(cls, last_sequence: int, last_offset: int, delta: int, timestamp: int) -> Batch:
        """Return a batch from its last record; `delta` is the offset distance to the first one."""
        first_sequence = (last_sequence - delta) & _SEQUENCE_MASK
        return cls(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)


class CompletedTransaction(NamedTuple):
    """A transaction that was ended by a marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Producer:
    """State of one producer ID in one partition.

    Attributes:
        seen_ms: Time of the last append or load (log clock). Expiration uses it, because record
            timestamps would make producers of old events expire at once.
        marker_offset: Offset of the last marker of a producer without sequences.
        markers: Number of transactions that ended since the state was built.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "marker_offset",
        "markers",
        "next_sequence",
        "seen_ms",
        "timestamp",
        "transaction_start",
    )

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.batches: deque[Batch] = deque(maxlen=BATCHES_KEPT)
        self.next_sequence = 0
        self.seen_ms = seen_ms
        self.timestamp = -1
        self.coordinator_epoch = -1
        self.marker_offset = -1
        self.markers = 0
        self.transaction_start = -1

    def find(self, first_sequence: int, last_sequence: int) -> Batch | None:
        """Return the kept batch with exactly these sequences, or None."""
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None


class ProducerStates:
    """The states of all producers of one partition."""

    __slots__ = ("_producers", "_transactions", "ended", "has_newest_batches_only")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._transactions: dict[int, int] = {}  # producer ID -> first offset, oldest first
        # Ended transactions whose marker is not before the high watermark: first offset -> marker
        # offset.
        self.ended: dict[int, int] = {}
        # True if loaded from a snapshot that holds only the newest batch of each producer.
        self.has_newest_batches_only = False

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the oldest open transaction, or None."""
        return next(iter(self._transactions.values()), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction whose marker consumers cannot read, or None."""
        if not self.ended:
            return self.first_open_offset if self._transactions else None
        return min((*self.ended, *self._transactions.values()))

    def oldest_open_idle(self, now_ms: int) -> tuple[int, int] | None:
        """Return the producer ID of the oldest open transaction and the ms since its last write."""
        if not self._transactions:
            return None
        producer_id = next(iter(self._transactions))
        producer = self._producers.get(producer_id)
        return None if producer is None else (producer_id, max(now_ms - producer.seen_ms, 0))

    def forget_ended(self, high_watermark: int) -> None:
        """Drop ended transactions whose marker is before `high_watermark`."""
        self.ended = {first: at for first, at in self.ended.items() if at >= high_watermark}

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return True if this producer has an open transaction in this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_start >= 0 and producer.epoch == epoch

    def ended_transactions(self, producer_id: int) -> int:
        """Return the number of transactions of a producer that ended since the state was built."""
        producer = self._producers.get(producer_id)
        return producer.markers if producer is not None else 0

    def check(self, header: BatchHeader) -> Batch | None:
        """Validate a data batch of a producer before it is appended.

        An unknown producer may start with any sequence: its state may have been evicted.

        Args:
            header: Header of a batch with a producer ID.

        Returns:
            None if the batch is to be appended, or the kept batch if it is a retry.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH for an older epoch, which is checked before retries.
                OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, a batch older than the kept ones, or a new
                epoch that does not start at 0. INVALID_TXN_STATE for a batch outside of the
                producer's open transaction.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        first = header.base_sequence
        epoch = header.producer_epoch
        if epoch == producer.epoch:
            # Coordinators write without sequences; only the epoch fences them.
            if first != producer.next_sequence and first >= 0:
                batch = producer.find(first, header.last_sequence)
                if batch is None:
                    raise _out_of_order(header, producer.next_sequence)
                return batch
        elif epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, but the batch has epoch "
                f"{epoch}",
            )
        elif first > 0:
            raise _out_of_order(header, 0)
        if producer.transaction_start >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, but the batch is not "
                "transactional",
            )
        return None

    def check_begins_at_zero(self, header: BatchHeader) -> None:
        """Reject a transaction of an unknown producer that does not start at sequence 0.

        Only for transactions V2 (KIP-890), where every transaction starts at sequence 0.

        Args:
            header: Header of the batch.

        Raises:
            KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if header.base_sequence > 0 and header.producer_id not in self._producers:
            raise _out_of_order(header, 0)

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record a data batch that was appended at `base_offset`."""
        producer_id = header.producer_id
        epoch = header.producer_epoch
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch, now_ms)
        elif epoch != producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
            producer.next_sequence = 0
        producer.seen_ms = now_ms
        producer.timestamp = header.max_timestamp
        first = header.base_sequence
        if first >= 0:
            delta = header.last_offset_delta
            last = (first + delta) & _SEQUENCE_MASK
            producer.next_sequence = (last + 1) & _SEQUENCE_MASK
            producer.batches.append(
                Batch(first, last, base_offset, base_offset + delta, header.max_timestamp)
            )
        if header.attributes & TRANSACTIONAL_BIT and producer.transaction_start < 0:
            producer.transaction_start = base_offset
            self._transactions[producer_id] = base_offset

    def add_earlier_batches(self, headers: Iterable[BatchHeader]) -> None:
        """Add batches that precede the newest one of each producer.

        Args:
            headers: Headers of batches in the log, in offset order.
        """
        earlier: dict[int, deque[Batch]] = defaultdict(lambda: deque(maxlen=BATCHES_KEPT - 1))
        for header in headers:
            producer = self._producers.get(header.producer_id)
            if (
                producer is not None
                and header.producer_epoch == producer.epoch
                and header.base_sequence >= 0
                and producer.batches
                and header.base_offset < producer.batches[0].base_offset
            ):
                earlier[header.producer_id].append(
                    Batch.ending(
                        header.last_sequence,
                        header.last_offset,
                        header.last_offset_delta,
                        header.max_timestamp,
                    )
                )
        for producer_id, batches in earlier.items():
            self._producers[producer_id].batches.extendleft(reversed(batches))
        self.has_newest_batches_only = False

    def fence(self, producer_id: int) -> None:
        """Reject later batches of a producer, as if another instance had bumped the epoch.

        An unknown producer ID is ignored.
        """
        producer = self._producers.get(producer_id)
        if producer is not None:
            producer.epoch += 1
            producer.batches.clear()
            producer.next_sequence = 0

    def check_bumped_marker(self, header: BatchHeader) -> None:
        """Reject a late marker of transactions V2, which would end a newer transaction.

        In V2 each marker has a newer epoch than its transaction (KIP-890, KIP-1228). A marker with
        the current epoch is valid only as a retry, while no transaction is open.

        Args:
            header: Header of the marker batch.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH.
        """
        if self.has_open_transaction(header.producer_id, header.producer_epoch):
            raise _stale_marker(header, header.producer_epoch)

    def check_marker(self, header: BatchHeader, marker: Marker) -> None:
        """Reject a transaction marker of a fenced producer or coordinator.

        Args:
            header: Header of the marker batch.
            marker: The marker.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise _stale_marker(header, producer.epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the marker has coordinator epoch {marker.coordinator_epoch}, the partition has "
                f"{producer.coordinator_epoch}",
            )

    def end_transaction(
        self, header: BatchHeader, marker: Marker, base_offset: int, now_ms: int
    ) -> CompletedTransaction | None:
        """Record a marker that was appended at `base_offset`.

        Args:
            header: Header of the marker batch.
            marker: The marker.
            base_offset: Offset of the marker.
            now_ms: Current time of the log clock in ms.

        Returns:
            The transaction that the marker ended, or None if the producer had no open transaction.
        """
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, header.producer_epoch, now_ms)
        elif header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
            producer.next_sequence = 0
        producer.seen_ms = now_ms
        producer.timestamp = header.max_timestamp
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.markers += 1
        if not producer.batches:
            producer.marker_offset = base_offset
        start = producer.transaction_start
        if start < 0:
            return None
        producer.transaction_start = -1
        del self._transactions[producer_id]
        self.ended[start] = base_offset
        return CompletedTransaction(producer_id, start, base_offset, not marker.commit)

    def _add(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
        if len(self._producers) >= PRODUCERS_MAX:
            self._evict_idle()
        producer = self._producers[producer_id] = Producer(epoch, now_ms)
        return producer

    def _evict_idle(self) -> None:
        """Evict the producers that are idle for longest and have no open transaction."""
        idle = [(it.seen_ms, key) for key, it in self if it.transaction_start < 0]
        for _, producer_id in nsmallest(_EVICTED_AT_ONCE, idle):
            del self._producers[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers that are idle for `expiration_ms` and have no open transaction.

        Returns the number of removed producers.
        """
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.seen_ms >= expiration_ms and producer.transaction_start < 0
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def to_bytes(self) -> bytes:
        """Return the content of a snapshot file."""
        entries, earlier = bytearray(), bytearray(_EARLIER_HEAD)
        for producer_id, producer in self._producers.items():
            *before, last = producer.batches or (None,)
            entries += _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else producer.marker_offset,
                last.last_offset - last.base_offset if last else 0,
                producer.timestamp,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
            for batch in before:
                earlier += _EARLIER_BATCH.pack(
                    producer_id,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.last_offset - batch.base_offset,
                    batch.timestamp,
                )
        entries += earlier
        count = len(self._producers)
        crc = crc32c(entries, crc32c(count.to_bytes(4, "big")))
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc, count) + entries

    @classmethod
    def from_bytes(cls, data: bytes, now_ms: int) -> ProducerStates | None:
        """Parse a snapshot; None if damaged. `now_ms` is the last-seen time of all producers."""
        if len(data) < _SNAPSHOT_HEAD.size:
            return None
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        end = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
        if version != _SNAPSHOT_VERSION or crc32c(data[_CRC_START:]) != crc:
            return None
        entries, rest = data[_SNAPSHOT_HEAD.size : end], data[end:]
        if len(entries) != end - _SNAPSHOT_HEAD.size:
            return None
        states = cls()
        for fields in _SNAPSHOT_ENTRY.iter_unpack(entries):
            states._restore(fields, now_ms)
        states._transactions = dict(sorted(states._transactions.items(), key=lambda open: open[1]))
        if rest.startswith(_EARLIER_HEAD):
            states._restore_earlier(rest[len(_EARLIER_HEAD) :])
        else:
            states.has_newest_batches_only = count > 0
        return states

    def _restore(self, fields: tuple[int, ...], now_ms: int) -> None:
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = fields
        producer = self._producers[producer_id] = Producer(epoch, now_ms)
        producer.timestamp = timestamp
        producer.coordinator_epoch = coordinator_epoch
        if offset >= 0 and sequence >= 0:
            producer.next_sequence = (sequence + 1) & _SEQUENCE_MASK
            producer.batches.append(Batch.ending(sequence, offset, delta, timestamp))
        else:
            producer.marker_offset = offset
        if start >= 0:
            producer.transaction_start = start
            self._transactions[producer_id] = start

    def _restore_earlier(self, rows: bytes) -> None:
        for producer_id, *fields in _EARLIER_BATCH.iter_unpack(rows):
            batches = self._producers[producer_id].batches
            batches.insert(len(batches) - 1, Batch.ending(*fields))


def _out_of_order(header: BatchHeader, expected: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
        f"{header.base_sequence}, expected {expected}",
    )


def _stale_marker(header: BatchHeader, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} has epoch {epoch}, but the marker has epoch "
        f"{header.producer_epoch}",
    )
