"""Records of the dead-letter queue of a share group (KIP-1191)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.record_stream import OversizedRecord, stream_records
from kbroker.protocol.records import BatchHeader, ProduceRules, Record

HEADER_TOPIC = "__dlq.errors.topic"
HEADER_PARTITION = "__dlq.errors.partition"
HEADER_OFFSET = "__dlq.errors.offset"
HEADER_GROUP = "__dlq.errors.group"
HEADER_DELIVERY_COUNT = "__dlq.errors.delivery.count"
HEADER_MESSAGE = "__dlq.errors.message"

# Values of `HEADER_MESSAGE`.
CLIENT_REJECT = "Offset rejected by client."
DELIVERY_COUNT_EXCEEDED = "Offset delivery count exceeded the threshold."

# Number of headers that are added to a copied record.
HEADERS_ADDED = 6
# Upper bound of the size of a record in bytes, without its key, value and headers: the varints of
# lengths, deltas and counts.
_RECORD_OVERHEAD_BYTES = 40
# Upper bound of the size of a header in bytes, without its key and value.
_HEADER_OVERHEAD_BYTES = 10


class DeadLetters(NamedTuple):
    """Records from `first` to `last` (inclusive) that the group could not process.

    Attributes:
        deliveries: Delivery count of each record.
        cause: Value of `HEADER_MESSAGE`.
    """

    first: int
    last: int
    deliveries: int
    cause: str


class DeadLetterSource(NamedTuple):
    """Share partition from which records go to the dead-letter queue."""

    group_id: str
    topic: str
    partition: int

    def record(
        self, letters: DeadLetters, offset: int, copied: Record | None, timestamp_ms: int
    ) -> Record:
        """Return the record of the dead-letter queue for one record.

        Args:
            letters: The range that contains the record.
            offset: Offset of the record.
            copied: The record to copy, or None for a record with headers only.
            timestamp_ms: Time of the write in ms since the epoch.
        """
        headers = (
            (HEADER_TOPIC, self.topic.encode()),
            (HEADER_PARTITION, b"%d" % self.partition),
            (HEADER_OFFSET, b"%d" % offset),
            (HEADER_GROUP, self.group_id.encode()),
            (HEADER_DELIVERY_COUNT, b"%d" % letters.deliveries),
            (HEADER_MESSAGE, letters.cause.encode()),
        )
        if copied is None:
            return Record(None, None, timestamp_ms, headers)
        return Record(copied.key, copied.value, timestamp_ms, (*copied.headers, *headers))


class CopiedRecords(NamedTuple):
    """Records of a stored batch from offset `first` to before offset `end`.

    A record that is missing in `records` was removed by compaction, or cannot be copied.
    """

    first: int
    end: int
    records: Mapping[int, Record]


def copy_records(
    batch: Buffer, header: BatchHeader, first: int, bytes_max: int, rules: ProduceRules
) -> Iterator[CopiedRecords | None]:
    """Copy records of one stored batch, up to a size.

    Records are left out if they are malformed, larger than `bytes_max`, or have so many headers
    that the headers of the dead-letter queue exceed the limit.

    Args:
        batch: The whole batch.
        header: Its header.
        first: Offset of the first record to copy.
        bytes_max: Maximum size in bytes of all copied records but the last one.
        rules: Limits of the topic that contains the batch.

    Yields:
        None after each step; the records as the last item.
    """
    found: dict[int, Record] = {}
    size = 0
    stream = stream_records(
        batch,
        header,
        start_offset=first,
        max_decompressed=rules.max_decompressed,
        record_bytes_max=bytes_max,
    )
    try:
        for record in stream:
            if record is None or isinstance(record, OversizedRecord):
                yield None
                continue
            if size and size + size_bound(record, headers=False) > bytes_max:
                yield CopiedRecords(first, record.offset, found)
                return
            if len(record.headers) + HEADERS_ADDED <= rules.max_record_headers:
                copied = record._replace(headers=tuple(record.headers))
                size += size_bound(copied)
                found[record.offset] = copied
    except KafkaError:
        pass  # the records that follow a malformed one are written without a copy
    yield CopiedRecords(first, header.last_offset + 1, found)


def size_bound(record: Record, *, headers: bool = True) -> int:
    """Return an upper bound of the size of an encoded record in bytes.

    Args:
        record: The record.
        headers: False to ignore the headers, which may take long to parse.
    """
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    if headers:
        for name, value in record.headers:
            encoded = name.encode(errors="surrogateescape")
            size += _HEADER_OVERHEAD_BYTES + len(encoded) + len(value or b"")
    return size
