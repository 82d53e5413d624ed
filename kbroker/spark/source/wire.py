"""Records of one range, over the wire: in bulk from the client into Arrow batches.

A range is complete when a record at its end or beyond has come, or when the partition's end has
been met there: its last offsets may be control records, aborted, or compacted away, and then no
record ever says so.
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
from .client import Settings, made, reads_committed, settings
from .loss import report
from .offsets import OffsetRange
from .options import SourceOptions
from .partitions import ANSWER_SECONDS, SourceError, WirePartitions

CONSUME_SECONDS = 0.05
"""How long one call waits for as many records as were asked for."""
SHORT_SECONDS = 5
"""How long a partition may end before the range does: a new leader can be a little behind."""
FIRST_ROWS = 1000
"""What is asked for before the size of records is known."""

_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


def read_range(wanted: OffsetRange, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in the order of their offsets.

    Raises:
        DataLoss: some are gone, and `options` say that this fails.
        SourceError: the broker does not give them.
    """
    reading = _Reading(wanted, options)
    try:
        yield from reading.batches()
    finally:
        reading.consumer.close()


def consumer_settings(options: SourceOptions) -> Settings:
    """For bulk reading without a group; what the user has set wins where it may."""
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


class _Reading:
    """Where one range has got to."""

    def __init__(self, wanted: OffsetRange, options: SourceOptions) -> None:
        self.wanted = wanted
        self.options = options
        self.position = wanted.start
        self.row_bytes = BATCH_BYTES / FIRST_ROWS
        self.last_error: KafkaError | None = None
        self.consumer = made(Consumer, consumer_settings(options) | {"error_cb": self._on_error})
        self._assign(wanted.start)

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error

    def _assign(self, offset: int) -> None:
        self.position = offset
        self.met_end: int | None = None
        """Where the partition ended when it was last looked at."""
        self.progress_at = time.monotonic()
        self._seek(offset)

    def _seek(self, offset: int) -> None:
        self.consumer.assign([TopicPartition(self.wanted.topic, self.wanted.partition, offset)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self.position < self.wanted.end:
            with _no_collection():
                batches = self._step()
            yield from batches

    def _step(self) -> list[pa.RecordBatch]:
        """Take what comes within a moment."""
        messages = self.consumer.consume(self._rows(), CONSUME_SECONDS)
        events = []
        if any(map(Message.error, messages)):
            events = [each for each in messages if each.error()]
            messages = [each for each in messages if not each.error()]
        batches = self._take(messages) if messages else []
        for event in events:
            self._react(event)
        if not messages:
            self._check_time()
        return batches

    def _rows(self) -> int:
        """As many as fill a batch, and no more than the range can have."""
        left = self.wanted.end - self.position
        return max(1, min(BATCH_ROWS, left, int(BATCH_BYTES / self.row_bytes)))

    def _take(self, messages: list[Message]) -> list[pa.RecordBatch]:
        self.position = messages[-1].offset() + 1
        self.met_end = None
        self.progress_at = time.monotonic()
        if self.position > self.wanted.end:
            messages = [each for each in messages if each.offset() < self.wanted.end]
        if not messages:
            return []
        batches = list(records(self.wanted, messages, self.options.include_headers).batches())
        self.row_bytes = max(1, sum(each.nbytes for each in batches) / len(messages))
        return batches

    def _react(self, event: Message) -> None:
        """Raises DataLoss and SourceError."""
        error = event.error()
        if error.code() == KafkaError._PARTITION_EOF:
            self._meet_end(event.offset())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._skip_to_what_is_there()
        elif error.code() in _GONE:
            self._lose(f"the topic is gone: {error.str()}")
        elif not error.retriable():
            raise SourceError(f"{self._where()} cannot be read: {error.str()}")

    def _meet_end(self, offset: int) -> None:
        """There is no more for now; patience begins anew when the end has moved."""
        if offset != self.met_end:
            self.progress_at = time.monotonic()
        self.position = max(self.position, offset)
        self.met_end = offset

    def _skip_to_what_is_there(self) -> None:
        """The offset is out of range: trimmed away, or the topic was made again and is shorter."""
        low, high = self._watermarks()
        lost = self.position
        if low <= lost <= high:
            # The leader that said so has learned better.
            self._seek(lost)
        elif lost < low and self.wanted.from_earliest:
            self._assign(low)
        elif lost < low:
            self._lose(f"offset {lost} is out of range, the first one there is {low}", to=low)
        else:
            self._lose(f"offset {lost} is out of range, the partition ends at {high}")

    def _check_time(self) -> None:
        """Nothing comes: is the partition shorter than the range, or the broker away?"""
        waited = time.monotonic() - self.progress_at
        if self.met_end is not None and self.met_end < self.wanted.end and waited > SHORT_SECONDS:
            self._check_transactions()
            self._lose(f"the partition ends at {self.met_end}")
        elif waited > self.options.poll_timeout_seconds:
            said = f" The last error was: {self.last_error.str()}." if self.last_error else ""
            raise SourceError(
                f"{self._where()} did not come within {waited:.0f} s.{said} Is the broker there? "
                "The option kafkaConsumer.pollTimeoutMs sets how long a task waits."
            )

    def _check_transactions(self) -> None:
        """Raises SourceError when the records are there, and one of their transactions is open."""
        if not reads_committed(self.options.kafka):
            return
        where = (self.wanted.topic, self.wanted.partition)
        everything = self.options.kafka | {"isolation.level": "read_uncommitted"}
        end = WirePartitions(replace(self.options, kafka=everything)).latest([where], {})[where]
        if end >= self.wanted.end:
            raise SourceError(
                f"{self._where()} cannot be read with read_committed: a transaction is open at "
                f"offset {self.met_end}. Wait for its end, or read up to 'latest', which is the end "
                "of what is committed."
            )

    def _lose(self, why: str, to: int | None = None) -> None:
        """Fail, or go on with offset `to`; None: there is no more to read."""
        report(iter([f"{self._where()}: {why}"]), self.options.fail_on_data_loss)
        if to is None or to >= self.wanted.end:
            self.position = self.wanted.end
        else:
            self._assign(to)

    def _watermarks(self) -> tuple[int, int]:
        where = TopicPartition(self.wanted.topic, self.wanted.partition)
        try:
            low, high = self.consumer.get_watermark_offsets(where, timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise SourceError(f"{self._where()}: {error.args[0].str()}") from None
        return low, high

    def _where(self) -> str:
        return (
            f"Could not read records in offset [{self.position}, {self.wanted.end}) for topic "
            f"partition {self.wanted.topic}-{self.wanted.partition}"
        )


def records(where: OffsetRange, messages: list[Message], include_headers: bool) -> Records:
    """Columns of messages, with as little work for each as can be."""
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
    """Kafka's numbers for who set the time; nearly always one for all."""
    numbers = {TIMESTAMP_NOT_AVAILABLE: -1, TIMESTAMP_LOG_APPEND_TIME: 1}
    first = kinds[0]
    if kinds.count(first) == len(kinds):
        return constant(numbers.get(first, 0), len(kinds))
    return pa.array([numbers.get(kind, 0) for kind in kinds], pa.int32())


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles, which otherwise walks over each new message many times.

    It takes two thirds of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
