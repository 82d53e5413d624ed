"""Validation of the structure of all records of one batch: lengths, deltas and counts, no contents.

`RecordWalk` gets the uncompressed records in one piece or as they are decompressed, and
`RecordSteps` checks them in bounded steps. Records in one piece are checked in one tight loop. A
record that spans several pieces is checked field by field, so a value of many megabytes is skipped
without being held in memory.
"""

from __future__ import annotations

from collections.abc import Generator

from .primitives import Buffer
from .records import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    NO_LIMIT,
    NO_TIMESTAMP,
    RECORD_ERRORS_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    BatchHeader,
    MalformedError,
    ProduceRules,
    RecordError,
    RecordLimitError,
    wrap_timestamp,
)

_UINT32_MAX = 0xFFFFFFFF
_UINT64_MAX = 0xFFFFFFFFFFFFFFFF
# Maximum bytes of a 32-bit varint.
_INT_BYTES_MAX = 5
# Maximum bytes of a 64-bit varint.
_LONG_BYTES_MAX = 10
# Offset deltas below these values take one byte, or two bytes.
DELTAS_OF_ONE_BYTE, DELTAS_OF_TWO_BYTES = 64, 8192
_DELTAS = bytes(range(0, 128, 2))
_DELTAS_LOW = bytes(delta * 2 & 0x7F | 0x80 for delta in range(DELTAS_OF_TWO_BYTES))
_DELTAS_HIGH = bytes(delta * 2 >> 7 for delta in range(DELTAS_OF_TWO_BYTES))
_ODD = bytes(range(1, 256, 2))
# Minimum number of records that are compared at once.
RUN_MIN = 8
# Maximum number of records that `ordinary_max_timestamp` checks; their offset deltas take one byte.
ORDINARY_MAX = 8
# Number of records that are checked one by one after records that differ in layout.
RUN_INTERVAL = 64


class RecordWalk:
    """Validation of all records of one batch against the rules of its topic.

    Args:
        header: Header of the batch, for the record count and the base timestamp.
        rules: Rules of the topic.
        now_ms: Time of the append, in ms since the epoch.
        records: All records, if they are uncompressed and in one piece; otherwise None.

    Attributes:
        errors: Records that break a rule of the topic, at most `RECORD_ERRORS_MAX`.
        untimely: Number of `errors` about timestamps.
        max_timestamp: Maximum timestamp of the records so far, in ms since the epoch.
        index: Number of checked records.
        headers: Number of checked headers.
    """

    __slots__ = (
        "_base_timestamp",
        "_before",
        "_count",
        "_data",
        "_earliest",
        "_is_last",
        "_last_untimely",
        "_latest",
        "_longest",
        "_needs_keys",
        "_position",
        "_record_headers",
        "_rules",
        "_wrong_time",
        "errors",
        "headers",
        "index",
        "max_timestamp",
        "untimely",
    )

    def __init__(
        self, header: BatchHeader, rules: ProduceRules, now_ms: int, records: bytes | None = None
    ) -> None:
        self.errors: list[RecordError] = []
        self.untimely = 0
        self._last_untimely = -1
        self.max_timestamp = NO_TIMESTAMP
        self._rules = rules
        self._count = header.record_count
        self._base_timestamp = header.base_timestamp
        attributes = header.attributes
        is_compressed = attributes & CODEC_MASK
        self._longest = 2 * rules.max_record_bytes if is_compressed else _UINT32_MAX  # as a varint
        self._needs_keys = rules.compacted
        before, after = rules.timestamp_before_max_ms, rules.timestamp_after_max_ms
        self._earliest, self._latest = TIMESTAMP_MIN, TIMESTAMP_MAX
        if not rules.log_append_time and (before < NO_LIMIT or after < NO_LIMIT):
            if now_ms - before > TIMESTAMP_MIN:
                self._earliest = now_ms - before
            if now_ms + after < TIMESTAMP_MAX:
                self._latest = now_ms + after
        self._wrong_time = ""
        if attributes & LOG_APPEND_TIME_BIT:
            self._check_log_append_time(header.max_timestamp, rules)
        self._data = records or b""
        self._position = 0
        self._before = 0  # total bytes of all earlier pieces
        self._is_last = records is not None
        self.index = 0
        self._record_headers = 0  # headers of the current record
        self.headers = 0

    def feed(self, data: bytes) -> None:
        """Add the next decompressed bytes, after `RecordSteps` has checked all earlier bytes."""
        if self._position < len(self._data):
            data = self._data[self._position :] + data
        self._before += self._position
        self._data, self._position = data, 0

    def check(self, records: int) -> bool:
        """Check some complete records of the piece.

        Args:
            records: Maximum number of records to check. Headers count as records.

        Returns:
            False if the piece ends within the next record, which `check_piecewise` must check.

        Raises:
            MalformedError: The bytes are not the records that the header announces.
            RecordLimitError: The batch has more than `batch.max.headers` headers.
        """
        try:
            self._check_records(min(self.index + records, self._count))
        except IndexError:  # the piece ends within the next record
            self._forget_errors(self.index)
            if self._is_last:
                raise MalformedError(f"record {self.index} ends after its batch") from None
            return False
        return True

    def is_done_with_piece(self) -> bool:
        """Return True if all bytes of the piece are checked.

        Raises:
            MalformedError: Bytes follow the last record.
        """
        if len(self.errors) >= RECORD_ERRORS_MAX:
            self.index = self._count
            self._position = len(self._data)
            return True
        if self.index < self._count:
            return False
        left = len(self._data) - self._position
        if left:
            raise MalformedError(f"{left} bytes after the last of {self._count} records")
        return True

    def finish(self) -> None:
        """Check that no record is missing at the end of the batch.

        Raises:
            MalformedError: There are fewer records than the header announces.
        """
        if self.index < self._count:
            raise MalformedError(f"{self.index} records instead of {self._count}")

    # -- records in one piece

    def _check_records(self, stop: int) -> None:
        """Check records up to an index with inlined short varints. Raises IndexError at the end."""
        data, index, start = self._data, self.index, self._position
        base, earliest, longest = self._base_timestamp, self._earliest, self._longest
        position, latest_seen, needs_keys = start, self.max_timestamp, self._needs_keys
        run_at = index + 1 if stop > index + RUN_MIN else -1
        try:
            while index < stop:
                raw, position = data[position], position + 1
                if raw > 0x7F:
                    raw, position = raw & 0x7F | data[position] << 7, position + 1
                    if raw > 0x3FFF:  # the varint has a third byte
                        raw, position = _long_varint(data, position, raw & 0x3FFF, 14)
                if raw & 1 or raw > longest:
                    raise self._length_error(index, raw)
                end = position + (raw >> 1)
                raw, position = data[position + 1], position + 2  # after unused attributes
                if raw > 0x7F:
                    raw, position = _long_varint(data, position, raw & 0x7F, 7, _LONG_BYTES_MAX)
                timestamp = base + ((raw >> 1) ^ -(raw & 1))
                if not earliest <= timestamp <= latest_seen:
                    latest_seen = max(latest_seen, self._check_timestamp(index, timestamp))
                raw, position = data[position], position + 1
                if raw > 0x7F:
                    raw, position = raw & 0x7F | data[position] << 7, position + 1
                    if raw > 0x3FFF:
                        raw, position = _long_varint(data, position, raw & 0x3FFF, 14)
                if raw != index << 1:
                    raise _malformed(index, f"offset delta {(raw >> 1) ^ -(raw & 1)}")
                raw, position = data[position], position + 1
                if raw > 0x7F:
                    raw, position = _long_varint(data, position, raw & 0x7F, 7)
                if not raw & 1:
                    position += raw >> 1
                elif raw != 1 or needs_keys:
                    self._check_no_key(index, raw)
                raw, position = data[position], position + 1
                if raw > 0x7F:
                    raw, position = raw & 0x7F | data[position] << 7, position + 1
                    if raw > 0x3FFF:
                        raw, position = _long_varint(data, position, raw & 0x3FFF, 14)
                if not raw & 1:
                    position += raw >> 1
                elif raw != 1:
                    raise _malformed(index, f"value length {(raw >> 1) ^ -1}")
                position += 1
                if data[position - 1]:
                    position = self._skip_headers(data, position - 1, index)
                    stop = max(stop - self._record_headers, index + 1)
                if position != end:
                    raise _malformed(index, "a length that differs from its length field")
                index += 1
                if index == run_at:
                    following = self._count_same_layout(start, end, index, stop)
                    index, position = index + following, end + following * (end - start)
                    run_at = index + (1 if following else RUN_INTERVAL)
                start = position
        finally:
            self._position, self.index = start, index
            self.max_timestamp = max(self.max_timestamp, latest_seen)

    def _count_same_layout(self, start: int, end: int, index: int, stop: int) -> int:
        """Count the records after a checked one that have the same layout and are therefore valid.

        Records of one size, with keys of one size, have each field at the same position. So all
        bytes of a field are compared at once, as a slice with a step.

        Args:
            start: Position of the checked record.
            end: Position after it.
            index: Index of the next record.
            stop: Index after the last record that may be checked.

        Returns:
            The number of records, 0 if they have to be checked one by one.
        """
        data, size = self._data, end - start
        delta_bytes = 1 if index < DELTAS_OF_ONE_BYTE else 2
        last = DELTAS_OF_ONE_BYTE if delta_bytes == 1 else len(_DELTAS_HIGH)
        count = min(min(stop, last) - index, (len(data) - end) // size)
        if count < RUN_MIN or (index - 1 < DELTAS_OF_ONE_BYTE) != (delta_bytes == 1):
            return 0
        time_at = _varint_end(data, start) + 1
        delta_at = time_at + 1
        key_at = delta_at + delta_bytes
        if data[time_at] > 0x7F or data[key_at] > 0x7F or data[end - 1]:
            return 0
        key = data[key_at]
        if key == 1 and self._needs_keys:
            return 0
        value_at = key_at + 1 + (0 if key & 1 else key >> 1)
        fixed = (
            *range(start, time_at - 1),
            key_at,
            *range(value_at, _varint_end(data, value_at)),
            end - 1,
        )
        reach = size * count + 1
        for place in fixed:
            if data[place + size : place + reach : size].count(data[place]) != count:
                return 0
        deltas = data[delta_at + size : delta_at + reach : size]
        if delta_bytes == 1:
            if deltas != _DELTAS[index : index + count]:
                return 0
        elif (
            deltas != _DELTAS_LOW[index : index + count]
            or data[delta_at + 1 + size : delta_at + 1 + reach : size]
            != _DELTAS_HIGH[index : index + count]
        ):
            return 0
        return count if self._add_timestamps(data[time_at + size : time_at + reach : size]) else 0

    def _add_timestamps(self, deltas: bytes) -> bool:
        """Update `max_timestamp` from one-byte deltas; return False if they need single checks."""
        base = self._base_timestamp
        if max(deltas) > 0x7F or not self._earliest <= base - 64 < base + 64 <= self._latest:
            return False
        later = deltas.translate(None, _ODD)
        delta = max(later) >> 1 if later else -(min(deltas) + 1 >> 1)
        self.max_timestamp = max(self.max_timestamp, base + delta)
        return True

    def _skip_headers(self, data: bytes, position: int, index: int) -> int:
        """Check the headers of one record, whose count is at `position`; return their end."""
        raw = data[position]
        position += 1
        if raw > 0x7F:
            raw, position = _long_varint(data, position, raw & 0x7F, 7)
        count = self._check_header_count(index, raw)
        for _ in range(count):
            raw = data[position]
            position += 1
            if raw > 0x7F:
                raw, position = _long_varint(data, position, raw & 0x7F, 7)
            if raw & 1:
                raise _malformed(index, f"header key length {(raw >> 1) ^ -1}")
            position += raw >> 1
            raw = data[position]
            position += 1
            if raw > 0x7F:
                raw, position = _long_varint(data, position, raw & 0x7F, 7)
            if not raw & 1:
                position += raw >> 1
            elif raw != 1:
                raise _malformed(index, f"header value length {(raw >> 1) ^ -1}")
        if position > len(data):
            raise IndexError
        self.headers += count
        self._record_headers = count
        return position

    def _check_header_count(self, index: int, raw: int) -> int:
        """Check and return the number of headers of one record.

        Raises MalformedError or RecordLimitError.
        """
        count = raw >> 1
        if raw & 1:
            raise _malformed(index, f"{count ^ -1} headers")
        if count > self._rules.max_record_headers:
            raise _malformed(
                index,
                f"{count} headers, more than record.max.headers={self._rules.max_record_headers}",
            )
        if count > self._rules.max_headers - self.headers:
            raise RecordLimitError(
                f"a batch with more headers than batch.max.headers={self._rules.max_headers}"
            )
        return count

    # -- one record in several pieces

    def check_piecewise(self) -> Generator[None, None, None]:
        """Check one record field by field; yields whenever it needs the next piece."""
        index = self.index
        raw = yield from self._read_varint(_INT_BYTES_MAX)
        if raw & 1 or raw > self._longest:
            raise self._length_error(index, raw)
        end = self._before + self._position + (raw >> 1)
        yield from self._skip(1, end)
        raw = yield from self._read_varint(_LONG_BYTES_MAX)
        timestamp = self._base_timestamp + ((raw >> 1) ^ -(raw & 1))
        self.max_timestamp = max(self.max_timestamp, self._check_timestamp(index, timestamp))
        raw = yield from self._read_varint(_INT_BYTES_MAX)
        if raw != index << 1:
            raise _malformed(index, f"offset delta {(raw >> 1) ^ -(raw & 1)}")
        raw = yield from self._read_varint(_INT_BYTES_MAX)
        if raw & 1:
            self._check_no_key(index, raw)
        else:
            yield from self._skip(raw >> 1, end)
        raw = yield from self._read_varint(_INT_BYTES_MAX)
        yield from self._skip_nullable(raw, end, "value")
        raw = yield from self._read_varint(_INT_BYTES_MAX)
        count = self._check_header_count(index, raw)
        for _ in range(count):
            raw = yield from self._read_varint(_INT_BYTES_MAX)
            if raw & 1:
                raise _malformed(index, f"header key length {(raw >> 1) ^ -1}")
            yield from self._skip(raw >> 1, end)
            raw = yield from self._read_varint(_INT_BYTES_MAX)
            yield from self._skip_nullable(raw, end, "header value")
        self.headers += count
        position = self._before + self._position
        if position != end:
            raise _malformed(index, "a length that differs from its length field")
        self.index += 1

    def _read_varint(self, bytes_max: int) -> Generator[None, None, int]:
        """Read a varint, still in zigzag form."""
        value = 0
        for shift in range(0, 7 * bytes_max, 7):
            while self._position == len(self._data):
                yield
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > (_UINT32_MAX if bytes_max == _INT_BYTES_MAX else _UINT64_MAX):
                    raise MalformedError("a varint beyond its range")
                return value
        raise MalformedError(f"a varint of more than {bytes_max} bytes")

    def _skip_nullable(self, raw: int, end: int, name: str) -> Generator[None, None, None]:
        if not raw & 1:
            yield from self._skip(raw >> 1, end)
        elif raw != 1:
            raise _malformed(self.index, f"{name} length {(raw >> 1) ^ -1}")

    def _skip(self, size: int, end: int) -> Generator[None, None, None]:
        """Skip bytes. Raises MalformedError if they end after the record."""
        if self._before + self._position + size > end:
            raise _malformed(self.index, "a field that ends after the record")
        while size > len(self._data) - self._position:
            size -= len(self._data) - self._position
            self._position = len(self._data)
            yield
        self._position += size

    # -- rules of the topic

    def _length_error(self, index: int, raw: int) -> MalformedError:
        if raw & 1:
            return _malformed(index, f"length {(raw >> 1) ^ -1}")
        limit = self._rules.max_record_bytes
        return _malformed(
            index, f"{raw >> 1} bytes, more than max.decompressed.message.bytes={limit}"
        )

    def _check_log_append_time(self, stamp: int, rules: ProduceRules) -> None:
        """Reject the records of a batch with an invalid LogAppendTime, as Kafka does."""
        if rules.log_append_time or stamp == NO_TIMESTAMP:
            self._wrong_time = "a producer does not set the LogAppendTime bit"
        elif not self._earliest <= stamp <= self._latest:
            self._wrong_time = (
                f"timestamp {stamp} is not within {self._earliest} and {self._latest}"
            )
        if self._wrong_time:
            self._earliest, self._latest = 1, 0  # so that each record is rejected

    def _check_timestamp(self, index: int, timestamp: int) -> int:
        """Check a timestamp that exceeds its limits or the maximum so far.

        Returns:
            The timestamp as a Java `long`, or `TIMESTAMP_MIN` if it is rejected. A rejected
            timestamp must not become the maximum, because it would hide later records with the same
            one.
        """
        if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
            timestamp = wrap_timestamp(timestamp)
        if self._wrong_time:
            self._add_timestamp_error(index, self._wrong_time)
            return TIMESTAMP_MIN
        if timestamp != NO_TIMESTAMP and not self._earliest <= timestamp <= self._latest:
            limits = f"{self._earliest} and {self._latest}"
            self._add_timestamp_error(index, f"timestamp {timestamp} is not within {limits}")
            return TIMESTAMP_MIN
        return timestamp

    def _add_timestamp_error(self, index: int, message: str) -> None:
        self.errors.append(RecordError(index, message))
        self.untimely += 1
        self._last_untimely = index

    def _check_no_key(self, index: int, raw: int) -> None:
        """Reject a record without a key for a compacted topic, and any other negative length.

        A record with a wrong timestamp and no key is rejected for its key only, as in Kafka.
        """
        if raw != 1:
            raise _malformed(index, f"key length {(raw >> 1) ^ -1}")
        if self._needs_keys:
            self._forget_errors(index)
            self.errors.append(RecordError(index, "a compacted topic needs a key"))

    def _forget_errors(self, index: int) -> None:
        """Drop the timestamp error of the record that was checked last."""
        if self.errors and self.errors[-1].batch_index == index:
            self.errors.pop()
        if self._last_untimely == index:
            self._last_untimely = -1
            self.untimely -= 1


class RecordSteps:
    """Bounded steps of a `RecordWalk`.

    The generator that checks a record in several pieces references the walk. A reference from the
    walk to the generator would make an unfinished check a reference cycle. It would keep its piece
    of the records until the garbage collector runs, which is rare in a server.

    Args:
        walk: The walk, which no other code may advance.
    """

    __slots__ = ("_partial", "_walk")

    def __init__(self, walk: RecordWalk) -> None:
        self._walk = walk
        self._partial: Generator[None, None, None] | None = None

    def step(self, records: int) -> bool:
        """Check some of the records that were fed to the walk.

        Args:
            records: Maximum number of records to check. Headers count as records.

        Returns:
            True if all bytes that were fed are checked, False if records are left.

        Raises:
            MalformedError: The bytes are not the records that the header announces.
            RecordLimitError: The batch has more than `batch.max.headers` headers.
        """
        walk = self._walk
        if self._partial is not None and not self._finish_partial(self._partial):
            return True
        if not walk.check(records) and not self._finish_partial(walk.check_piecewise()):
            return True
        return walk.is_done_with_piece()

    def _finish_partial(self, partial: Generator[None, None, None]) -> bool:
        """Continue with a record whose bytes arrive in pieces; return True if it is checked."""
        self._partial = partial
        for _ in partial:
            return False
        self._partial = None
        return True


def ordinary_max_timestamp(
    batch: memoryview, header: BatchHeader, rules: ProduceRules, now_ms: int
) -> int | None:
    """Check a few records of the most frequent form without the cost of a `RecordWalk`.

    Such records have no headers, and their timestamps obey the topic's limits.

    Args:
        batch: The whole batch, uncompressed, with at most `ORDINARY_MAX` records.
        header: Its validated header.
        rules: Rules of the topic.
        now_ms: Time of the append, in ms since the epoch.

    Returns:
        The maximum timestamp of the records, in ms since the epoch. None if a record has another
        form, valid or not; a `RecordWalk` must then check the batch.
    """
    if rules.log_append_time or header.attributes & LOG_APPEND_TIME_BIT:
        return None
    base, largest, end = header.base_timestamp, NO_TIMESTAMP, HEADER_SIZE
    earliest, latest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    try:
        for offset_delta in range(0, 2 * header.record_count, 2):  # in zigzag form
            raw, position = batch[end], end + 1
            if raw > 0x7F:
                raw, position = raw & 0x7F | batch[position] << 7, position + 1
                if raw > 0x3FFF:
                    raw, position = _long_varint(batch, position, raw & 0x3FFF, 14)
            end = position + (raw >> 1)
            delta = batch[position + 1]
            timestamp = base + ((delta >> 1) ^ -(delta & 1))
            if raw & 1 or delta > 0x7F or batch[position + 2] != offset_delta:
                return None
            if not earliest <= timestamp <= largest:
                if not earliest <= timestamp <= latest:
                    return None
                largest = timestamp
            raw, position = batch[position + 3], position + 4
            if raw != 1:
                if raw > 0x7F:
                    raw, position = _long_varint(batch, position, raw & 0x7F, 7)
                if raw & 1:
                    return None
                position += raw >> 1
            elif rules.compacted:
                return None
            raw, position = batch[position], position + 1
            if raw > 0x7F:
                raw, position = raw & 0x7F | batch[position] << 7, position + 1
                if raw > 0x3FFF:
                    raw, position = _long_varint(batch, position, raw & 0x3FFF, 14)
            if raw & 1 and raw != 1:
                return None
            position += raw >> 1
            if batch[position] or position + 1 != end:
                return None
    except (IndexError, MalformedError):
        return None
    return largest if end == len(batch) and largest <= TIMESTAMP_MAX else None


def _varint_end(data: bytes, position: int) -> int:
    while data[position] > 0x7F:
        position += 1
    return position + 1


def _malformed(index: int, problem: str) -> MalformedError:
    return MalformedError(f"record {index} has {problem}")


def _long_varint(
    data: Buffer, position: int, value: int, shift: int, bytes_max: int = _INT_BYTES_MAX
) -> tuple[int, int]:
    """Read the rest of a varint.

    Args:
        data: Bytes that hold the varint.
        position: Position of its next byte.
        value: Bits of the bytes that were read.
        shift: Number of those bits.
        bytes_max: Maximum length in bytes: 5 for 32 bits, 10 for 64 bits.

    Returns:
        The value, still in zigzag form, and the position after it.

    Raises:
        MalformedError: The varint is too long or too large.
    """
    while shift < 7 * bytes_max:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > (_UINT32_MAX if bytes_max == _INT_BYTES_MAX else _UINT64_MAX):
                raise MalformedError("a varint beyond its range")
            return value, position
        shift += 7
    raise MalformedError(f"a varint of more than {bytes_max} bytes")
