"""The connector's columns as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .schema import HEADERS

BATCH_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 50_000
"""An Arrow batch has no more than that; a record that is longer has a batch of its own."""

MILLISECONDS_MAX = (2**63 - 1) // 1000
"""The last time that Spark's microseconds have room for, and with a minus the first."""

ARROW_BYTES_MAX = 2**31 - 1
"""What a column of bytes can hold."""

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", _HEADER))
COLUMNS = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
)
PLAIN = pa.schema(COLUMNS)
WITH_HEADERS = pa.schema([*COLUMNS, pa.field(HEADERS, HEADERS_TYPE)])


@dataclass(frozen=True)
class Records:
    """Records of one partition, a column each: lists or Arrow arrays of one length."""

    topic: str
    partition: int
    keys: Sequence[bytes | None] | pa.Array
    values: Sequence[bytes | None] | pa.Array
    offsets: Sequence[int] | pa.Array
    timestamps: Sequence[int] | pa.Array
    """Milliseconds, of any 64 bits."""
    timestamp_types: Sequence[int] | pa.Array
    """0 when the producer set it, 1 when the broker did, -1 when there is none."""
    headers: Sequence[list[tuple[str, bytes | None]] | None] | pa.Array | None = None
    """None: headers were not asked for. A record without headers has None."""

    def batch(self) -> pa.RecordBatch:
        """All of them as one record batch in the order of the schema."""
        rows = len(self.offsets)
        # Spark counts microseconds: what they have no room for becomes the first or last of them.
        milliseconds = pc.min_element_wise(
            pc.max_element_wise(_array(self.timestamps, pa.int64()), -MILLISECONDS_MAX),
            MILLISECONDS_MAX,
        )
        columns = [
            _binary(self.keys),
            _binary(self.values),
            pa.repeat(pa.scalar(self.topic, pa.string()), rows),
            constant(self.partition, rows),
            _array(self.offsets, pa.int64()),
            milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            _array(self.timestamp_types, pa.int32()),
        ]
        if self.headers is None:
            return pa.RecordBatch.from_arrays(columns, schema=PLAIN)
        columns.append(_headers(self.headers))
        return pa.RecordBatch.from_arrays(columns, schema=WITH_HEADERS)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same in pieces of at most `BATCH_ROWS` and about `BATCH_BYTES`."""
        whole = self.batch()
        yield from pieces(whole)


def pieces(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch so that each piece has at most `BATCH_ROWS` and `BATCH_BYTES`, or one row."""
    if whole.num_rows > 1 and (whole.num_rows > BATCH_ROWS or whole.nbytes > BATCH_BYTES):
        middle = whole.num_rows // 2
        yield from pieces(whole.slice(0, middle))
        yield from pieces(whole.slice(middle))
    elif whole.num_rows:
        yield whole


def constant(value: int, rows: int) -> pa.Array:
    """A column of small numbers that are all the same."""
    return pa.array(np.full(rows, value, np.int32))


def _binary(values: Sequence[bytes | None] | pa.Array) -> pa.Array:
    """A column of bytes; nulls are rare enough to try first without."""
    if isinstance(values, pa.Array):
        return values
    ends = np.zeros(len(values) + 1, np.int64)
    try:
        ends[1:] = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        return pa.array(values, pa.binary())
    if len(data) > ARROW_BYTES_MAX:
        raise OverflowError("more than 2 GiB in one batch: lower kafka.queued.max.messages.kbytes")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers)


def _array(values: Sequence[object] | pa.Array, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _headers(values: Sequence[list[tuple[str, bytes | None]] | None] | pa.Array) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    counts = [len(each) if each else 0 for each in values]
    flat = [header for each in values if each for header in each]
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    pairs = pa.StructArray.from_arrays(
        [
            pa.array([key for key, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        fields=list(_HEADER),
    )
    none = pa.array([count == 0 for count in counts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, mask=none).cast(HEADERS_TYPE)
