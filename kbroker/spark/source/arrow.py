"""Arrow record batches with the columns of Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .schema import HEADERS

# Maximum size of an Arrow batch, in bytes and rows. A larger record gets a batch of its own.
BATCH_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 50_000

# Latest timestamp in ms that fits Spark's microseconds; its negative is the earliest one.
MILLISECONDS_MAX = (2**63 - 1) // 1000

# Capacity of an Arrow binary column, in bytes.
ARROW_BYTES_MAX = 2**31 - 1

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


class HeaderRow(TypedDict):
    """A header in a column of type `HEADERS_TYPE`, as `to_pylist` returns it."""

    key: str
    value: bytes | None


@dataclass(frozen=True)
class Records:
    """Records of one partition as columns: lists or Arrow arrays of equal length."""

    topic: str
    partition: int
    keys: Sequence[bytes | None] | pa.Array
    values: Sequence[bytes | None] | pa.Array
    offsets: Sequence[int] | pa.Array
    # Milliseconds since the epoch; any 64-bit value is possible.
    timestamps: Sequence[int] | pa.Array
    # 0: CreateTime, 1: LogAppendTime, -1: no timestamp.
    timestamp_types: Sequence[int] | pa.Array
    # None if headers were not requested. A record without headers has None.
    headers: Sequence[list[tuple[str, bytes | None]] | None] | pa.Array | None = None

    def batch(self) -> pa.RecordBatch:
        """Return all records as one Arrow record batch."""
        rows = len(self.offsets)
        # Spark stores microseconds: clamp timestamps that do not fit.
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
        """Yield Arrow batches of at most `BATCH_ROWS` and about `BATCH_BYTES`."""
        whole = self.batch()
        yield from pieces(whole)


def pieces(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces of at most `BATCH_ROWS` and `BATCH_BYTES`, or one row."""
    if whole.num_rows > 1 and (whole.num_rows > BATCH_ROWS or whole.nbytes > BATCH_BYTES):
        middle = whole.num_rows // 2
        yield from pieces(whole.slice(0, middle))
        yield from pieces(whole.slice(middle))
    elif whole.num_rows:
        yield whole


def constant(value: int, rows: int) -> pa.Array:
    """Return a column that repeats one 32-bit integer."""
    return pa.array(np.full(rows, value, np.int32))


def _binary(values: Sequence[bytes | None] | pa.Array) -> pa.Array:
    """Return a binary column; the fast path for values without nulls is tried first."""
    if isinstance(values, pa.Array):
        return values
    ends = np.zeros(len(values) + 1, np.int64)
    try:
        ends[1:] = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        return pa.array(values, pa.binary())
    if len(data) > ARROW_BYTES_MAX:
        raise OverflowError("batch exceeds 2 GiB: reduce kafka.queued.max.messages.kbytes")

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
