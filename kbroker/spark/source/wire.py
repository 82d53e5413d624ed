"""Bulk consumer for one offset range, from the wire into Arrow batches.

A range is complete once a record at or after its end arrives, or the partition's end is reached.
The last offsets of a range may be control records, aborted, or compacted away. In this case no
record at the end of the range ever arrives.
"""

from __future__ import annotations

import contextlib
import gc
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from .arrow import BATCH_BYTES, BATCH_ROWS, Records, constant
from .client import Settings, create_client, reads_committed, settings
from .loss import report
from .offsets import OffsetRange
from .options import SourceOptions
from .partitions import REQUEST_SECONDS, SourceError, WirePartitions

# Maximum time that one consume call waits for the requested number of records.
CONSUME_SECONDS = 0.05
# Maximum time that one consume call adds to the waiting time: this process may be suspended.
WAIT_SECONDS_MAX = 1
# Time to wait if the partition ends before the range: a new leader may lag slightly.
SHORT_SECONDS = 5
# Records requested by the first call, before the record size is known.
FIRST_ROWS = 1000

_NO_TOPIC_ERRORS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


def read_range(wanted: OffsetRange, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in offset order.

    Raises:
        DataLoss: Records were deleted, and failOnDataLoss is set.
        SourceError: The broker does not return the records.
    """
    reader = _RangeReader(wanted, options)
    try:
        yield from reader.batches()
    finally:
        reader.consumer.close()


def consumer_settings(options: SourceOptions) -> Settings:
    """Return settings for bulk reads without a group; user settings override most of them."""
    return {
        "group.id": f"{options.group_id_prefix}-{uuid.uuid4()}",
        "isolation.level": "read_uncommitted",
        "max.partition.fetch.bytes": 8 * 1024 * 1024,
        "queued.max.messages.kbytes": 64 * 1024,
        "queued.min.messages": 1_000_000,
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 20,
        **settings(options.kafka),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


class _RangeReader:
    """Consumer of one range and its position.

    Attributes:
        position: Next offset to read.
        row_bytes: Average size of a record in Arrow, in bytes.
        end_seen: End of the partition when it was last reached, or None.
        waited: Time spent in consume calls since the last progress, in seconds. The time that Spark
            takes for the batches does not count.
    """

    def __init__(self, wanted: OffsetRange, options: SourceOptions) -> None:
        self.wanted = wanted
        self.options = options
        self.position = wanted.start
        self.row_bytes = BATCH_BYTES / FIRST_ROWS
        self.last_error: KafkaError | None = None
        self.consumer = create_client(
            Consumer, consumer_settings(options) | {"error_cb": self._on_error}
        )
        self._assign(wanted.start)

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error

    def _assign(self, offset: int) -> None:
        self.position = offset
        self.end_seen: int | None = None
        self.waited = 0.0
        self._seek(offset)

    def _seek(self, offset: int) -> None:
        self.consumer.assign([TopicPartition(self.wanted.topic, self.wanted.partition, offset)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self.position < self.wanted.end:
            with _gc_paused():
                batches = self._step()
            yield from batches

    def _step(self) -> list[pa.RecordBatch]:
        """Consume once and return the batches."""
        began = time.monotonic()
        messages = self.consumer.consume(self._rows(), CONSUME_SECONDS)
        self.waited += min(time.monotonic() - began, WAIT_SECONDS_MAX)
        events = []
        if any(map(Message.error, messages)):
            events = [each for each in messages if each.error()]
            messages = [each for each in messages if not each.error()]
        batches = self._to_batches(messages) if messages else []
        for event in events:
            self._handle_error(event)
        if not messages:
            self._check_time()
        return batches

    def _rows(self) -> int:
        """Return the number of records that fill a batch, at most the rest of the range."""
        left = self.wanted.end - self.position
        return max(1, min(BATCH_ROWS, left, int(BATCH_BYTES / self.row_bytes)))

    def _to_batches(self, messages: list[Message]) -> list[pa.RecordBatch]:
        self.position = messages[-1].offset() + 1
        self.end_seen = None
        self.waited = 0.0
        if self.position > self.wanted.end:
            messages = [each for each in messages if each.offset() < self.wanted.end]
        if not messages:
            return []
        batches = list(records(self.wanted, messages, self.options.include_headers).batches())
        self.row_bytes = max(1, sum(each.nbytes for each in batches) / len(messages))
        return batches

    def _handle_error(self, event: Message) -> None:
        """Handle an error event of the consumer. Raises DataLoss and SourceError."""
        error = event.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._on_partition_end(event.offset())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._handle_out_of_range()
        elif error.code() in _NO_TOPIC_ERRORS:
            self._report_loss(f"the topic was deleted: {error.str()}")
        elif not error.retriable():
            raise SourceError(f"{self._where()} cannot be read: {error.str()}")

    def _on_partition_end(self, offset: int) -> None:
        """Record that the partition's end was reached; a new end restarts the time limit."""
        if offset != self.end_seen:
            self.waited = 0.0
        self.position = max(self.position, offset)
        self.end_seen = offset

    def _handle_out_of_range(self) -> None:
        """Handle an offset out of range: records were deleted, or the topic was created again."""
        low, high = self._watermarks()
        lost = self.position
        if low <= lost <= high:
            # The leader that returned the error was out of date: retry at the same offset.
            self._seek(lost)
        elif lost < low and self.wanted.from_earliest:
            self._assign(low)
        elif lost < low:
            self._report_loss(f"offset {lost} is out of range, the first offset is {low}", to=low)
        else:
            self._report_loss(f"offset {lost} is out of range, the partition ends at {high}")

    def _check_time(self) -> None:
        """Check the time limits if no records arrive."""
        is_short = self.end_seen is not None and self.end_seen < self.wanted.end
        if is_short and self.waited > SHORT_SECONDS:
            self._check_transactions()
            self._report_loss(f"the partition ends at {self.end_seen}")
        elif self.waited > self.options.poll_timeout_seconds:
            detail = f" The last error was: {self.last_error.str()}." if self.last_error else ""
            raise SourceError(
                f"{self._where()}: no records arrived within {self.waited:.0f} s.{detail} Check that "
                "the broker is running. The option kafkaConsumer.pollTimeoutMs sets the time limit."
            )

    def _check_transactions(self) -> None:
        """Raise SourceError if the missing records belong to an open transaction."""
        if not reads_committed(self.options.kafka):
            return
        where = (self.wanted.topic, self.wanted.partition)
        everything = self.options.kafka | {"isolation.level": "read_uncommitted"}
        end = WirePartitions(replace(self.options, kafka=everything)).latest([where], {})[where]
        if end >= self.wanted.end:
            raise SourceError(
                f"{self._where()} cannot be read with read_committed: a transaction is open at "
                f"offset {self.end_seen}. Wait for its end, or read up to 'latest', which is the "
                "last stable offset."
            )

    def _report_loss(self, why: str, to: int | None = None) -> None:
        """Report a loss; then continue at offset `to`, or end the range without it."""
        report(iter([f"{self._where()}: {why}"]), self.options.fail_on_data_loss)
        if to is None or to >= self.wanted.end:
            self.position = self.wanted.end
        else:
            self._assign(to)

    def _watermarks(self) -> tuple[int, int]:
        where = TopicPartition(self.wanted.topic, self.wanted.partition)
        try:
            low, high = self.consumer.get_watermark_offsets(where, timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise SourceError(f"{self._where()}: {error.args[0].str()}") from None
        return low, high

    def _where(self) -> str:
        return (
            f"Could not read records in offset [{self.position}, {self.wanted.end}) for topic "
            f"partition {self.wanted.topic}-{self.wanted.partition}"
        )


def records(where: OffsetRange, messages: list[Message], include_headers: bool) -> Records:
    """Convert messages to columns with as few operations per message as possible."""
    stamps = list(map(Message.timestamp, messages))
    return Records(
        topic=where.topic,
        partition=where.partition,
        keys=list(map(Message.key, messages)),
        values=list(map(Message.value, messages)),
        offsets=list(map(Message.offset, messages)),
        timestamps=[milliseconds for _, milliseconds in stamps],
        timestamp_types=_types([kind for kind, _ in stamps]),
        headers=list(map(Message.headers, messages)) if include_headers else None,
    )


def _types(kinds: list[int]) -> pa.Array:
    """Return the timestamp types as Kafka's numbers; usually all are the same."""
    numbers = {TIMESTAMP_NOT_AVAILABLE: -1, TIMESTAMP_LOG_APPEND_TIME: 1}
    first = kinds[0]
    if kinds.count(first) == len(kinds):
        return constant(numbers.get(first, 0), len(kinds))
    return pa.array([numbers.get(kind, 0) for kind in kinds], pa.int32())


@contextlib.contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would otherwise traverse the new messages repeatedly.

    Collections would take two thirds of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
