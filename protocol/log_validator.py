"""Validation of produced batches: header, CRC, and the structure of every record.

A broker stores a batch as it was sent, so it must not acknowledge a batch that consumers cannot
read. `LogValidator` works in short steps, because a small batch can contain many records. The
caller decides where a step runs, and what runs between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from .compression import Codec, Compressor, decompressed_chunks
from .errors import ErrorCode, KafkaError
from .lz4_header import check_frame
from .primitives import Buffer
from .record_walk import ORDINARY_MAX, RecordSteps, RecordWalk, ordinary_max_timestamp
from .records import (
    CODEC_MASK,
    CONTROL_BIT,
    DEFAULT_RULES,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
    MIN_RECORD_SIZE,
    RECORD_ERRORS_MAX,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ProduceRules,
    RecordsRejectedError,
    check_crc,
    claimed_codec_and_count,
    errors_as,
    kafka_error_of,
    read_header,
    with_payload,
    with_timestamps,
)

# Bytes of an uncompressed batch that are copied for the check at a time. The allocator keeps blocks
# of this size; with blocks of 1 MiB the kernel maps new pages for every batch.
PIECE_BYTES = 128 * 1024
# Records or headers to check per step, in less than a millisecond.
RECORDS_PER_STEP = 1000
# Cost of checking a batch header, as a number of checked records.
BATCH_EFFORT = 10
# Cost of starting a decompressor, as a number of checked records.
DECOMPRESSOR_EFFORT = 50
# Bytes that are decompressed in the time of checking one record.
DECOMPRESSED_PER_RECORD = 64
_LZ4, _ZSTD = int(Codec.LZ4), int(Codec.ZSTD)


class LogValidator:
    """Validation of the batch that a client produces to a partition.

    Args:
        buffer: Records of one partition in a Produce request, None if the field was null.
        version: Version of the Produce request.
        now_ms: Time of the append, in ms since the epoch.
        rules: Rules of the topic.

    Raises:
        KafkaError: The header is invalid: INVALID_RECORD (not exactly one batch of format v2, or
            contradicting fields), CORRUPT_MESSAGE (unknown format, impossible length, wrong CRC),
            MESSAGE_TOO_LARGE (too many bytes or records) or UNSUPPORTED_COMPRESSION_TYPE.
    """

    __slots__ = (
        "_batch",
        "_decompressed",
        "_header",
        "_is_done",
        "_is_recompressed",
        "_now_ms",
        "_pieces",
        "_recompressed",
        "_rules",
        "_steps",
        "_walk",
    )

    def __init__(
        self,
        buffer: Buffer | None,
        version: int,
        now_ms: int,
        rules: ProduceRules = DEFAULT_RULES,
    ) -> None:
        if buffer is None:
            raise _invalid("no records")
        header = _read_and_check_header(buffer, version, rules)
        self._batch = memoryview(buffer)
        self._header = header
        self._now_ms = now_ms
        self._rules = rules
        self._is_done = False
        self._decompressed = 0
        self._pieces: Iterator[bytes] | None = None
        self._recompressed: Compressor | None = None
        codec = header.attributes & CODEC_MASK
        self._is_recompressed = rules.codec is not None and rules.codec != codec
        if not (codec or self._is_recompressed or len(buffer) > HEADER_SIZE + PIECE_BYTES):
            self._walk = RecordWalk(header, rules, now_ms, self._batch[HEADER_SIZE:].tobytes())
            self._steps = RecordSteps(self._walk)
            return
        self._walk = RecordWalk(header, rules, now_ms)
        self._steps = RecordSteps(self._walk)
        if codec:
            payload = self._batch[HEADER_SIZE:]
            if codec == _LZ4:
                with errors_as(ErrorCode.INVALID_RECORD):
                    check_frame(payload)
            self._pieces = decompressed_chunks(codec, payload, rules.max_decompressed)
        else:
            self._pieces = _split(self._batch)

    @property
    def is_compressed(self) -> bool:
        """True if records are decompressed or recompressed."""
        return bool(self._header.attributes & CODEC_MASK) or self._is_recompressed

    @property
    def effort(self) -> int:
        """Cost of the work so far, as a number of checked records."""
        effort = BATCH_EFFORT + self._walk.index + self._walk.headers
        if self._header.attributes & CODEC_MASK:
            effort += DECOMPRESSOR_EFFORT + self._decompressed // DECOMPRESSED_PER_RECORD
        return effort

    def step(self) -> bool:
        """Decompress a chunk, or check some records.

        Returns:
            True once the batch is valid, and `result` may be called.

        Raises:
            RecordsRejectedError: INVALID_TIMESTAMP or INVALID_RECORD, with the invalid records.
            DecompressedTooLargeError: The records are larger than the rules allow.
            KafkaError: INVALID_RECORD (the stream or its records are malformed), or
                MESSAGE_TOO_LARGE (too many headers, or too large in the topic's codec).
        """
        try:  # not `errors_as`, which takes as long as checking a small batch
            if not self._steps.step(RECORDS_PER_STEP):
                return False
            if self._pieces is not None:
                if self._feed():
                    return False
                self._walk.finish()
        except ValueError as error:
            raise kafka_error_of(error, ErrorCode.INVALID_RECORD) from None
        if self._walk.errors:
            self._reject_invalid_records()
        self._is_done = True
        return True

    def _feed(self) -> bool:
        """Feed the next piece to the walk; return False if there is none."""
        assert self._pieces is not None
        for piece in self._pieces:
            self._walk.feed(piece)
            if self._header.attributes & CODEC_MASK:
                self._decompressed += len(piece)
            if self._is_recompressed:
                self._recompress(piece)
            return True
        self._pieces = None
        return False

    def _recompress(self, piece: bytes) -> None:
        rules = self._rules
        assert rules.codec is not None
        if self._recompressed is None:
            self._recompressed = Compressor(rules.codec, rules.compression_level)
        self._recompressed.add(piece)
        if self._recompressed.size > rules.max_message_bytes:
            raise _too_large(self._recompressed.size, rules)

    def _reject_invalid_records(self) -> None:
        errors = self._walk.errors[:RECORD_ERRORS_MAX]
        code = ErrorCode.INVALID_TIMESTAMP if self._walk.untimely else ErrorCode.INVALID_RECORD
        count = self._header.record_count
        summary = f"{len(errors)} of {count} records rejected: {errors[0].message}"
        raise RecordsRejectedError(code, summary, errors)

    def result(self) -> tuple[memoryview, BatchHeader]:
        """Return the batch as the log stores it, and its header.

        The maximum timestamp in the header is the time of the append for LogAppendTime, and the
        largest timestamp of the records for CreateTime.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE after recompression.
        """
        assert self._is_done
        header, rules = self._header, self._rules
        if rules.log_append_time:
            attributes, max_timestamp = header.attributes | LOG_APPEND_TIME_BIT, self._now_ms
        else:
            attributes = header.attributes & ~LOG_APPEND_TIME_BIT
            max_timestamp = self._walk.max_timestamp
        if self._recompressed is not None:
            assert rules.codec is not None
            changed = header._replace(
                attributes=attributes & ~CODEC_MASK | rules.codec, max_timestamp=max_timestamp
            )
            batch, header = with_payload(changed, self._recompressed.finish())
            if len(batch) > rules.max_message_bytes:
                raise _too_large(len(batch), rules)
            return memoryview(batch), header
        if attributes != header.attributes or max_timestamp != header.max_timestamp:
            header = with_timestamps(self._batch, header, attributes, max_timestamp)
        return self._batch, header


def validate_at_once(
    batch: memoryview | None, version: int, now_ms: int, rules: ProduceRules
) -> tuple[memoryview, BatchHeader] | None:
    """Validate a small uncompressed batch of ordinary records, faster than a `LogValidator`.

    Args:
        batch: Records of one partition in a Produce request, None if the field was null.
        version: Version of the Produce request.
        now_ms: Time of the append, in milliseconds since the epoch.
        rules: Rules of the topic, which does not recompress.

    Returns:
        The result of `LogValidator.result`, or None if a `LogValidator` must check the batch.

    Raises:
        KafkaError: As `LogValidator` for a header.
    """
    if batch is None:
        return None
    codec, count = claimed_codec_and_count(batch)
    if codec or count > ORDINARY_MAX:
        return None
    header = _read_and_check_header(batch, version, rules)
    max_timestamp = ordinary_max_timestamp(batch, header, rules, now_ms)
    if max_timestamp is None:
        return None
    if max_timestamp != header.max_timestamp:
        header = with_timestamps(batch, header, header.attributes, max_timestamp)
    return batch, header


def _split(batch: memoryview) -> Iterator[bytes]:
    """Yield the records of an uncompressed batch in pieces."""
    for start in range(HEADER_SIZE, len(batch), PIECE_BYTES):
        yield bytes(batch[start : start + PIECE_BYTES])


def _read_and_check_header(buffer: Buffer, version: int, rules: ProduceRules) -> BatchHeader:
    header = _read_single_header(buffer)
    if len(buffer) > rules.max_message_bytes:
        raise _too_large(len(buffer), rules)
    if not check_crc(buffer, 0, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its CRC")
    _check_fields(header, version, rules)
    return header


def _read_single_header(buffer: Buffer) -> BatchHeader:
    """Return the header of the batch in `buffer`. Raises KafkaError unless it is one batch."""
    size = len(buffer)
    if size <= MAGIC_AT:
        raise _invalid(f"{size} bytes are too few for a batch")
    # The magic byte has the same place in the old formats, whose headers are shorter.
    magic = buffer[MAGIC_AT]
    if magic < MAGIC:
        raise _invalid(f"message format {magic}; Produce 3 and later require {MAGIC}")
    if magic > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown message format {magic}")
    if size < HEADER_SIZE:
        raise _invalid(f"{size} bytes are too few for a batch header of {HEADER_SIZE} bytes")
    header = read_header(buffer)
    batch_size = header.batch_length + LENGTH_END
    if batch_size == size:
        return header
    if batch_size < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length}")
    if batch_size > size:
        raise _invalid(f"a batch of {batch_size} bytes is truncated after {size}")
    raise _invalid(f"{size - batch_size} bytes after the one batch that is allowed")


def _check_fields(header: BatchHeader, version: int, rules: ProduceRules) -> None:
    """Check the fields of the header against each other and the limits of the topic."""
    count = header.record_count
    if header.base_offset != 0:
        raise _invalid(f"base offset {header.base_offset}; producers must send 0")
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(f"{count} records, but last offset delta {header.last_offset_delta}")
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec > _ZSTD:
        raise _invalid(f"unknown compression codec {codec}")
    available = rules.max_decompressed if codec else header.batch_length + LENGTH_END - HEADER_SIZE
    if count * MIN_RECORD_SIZE > available:
        raise _invalid(f"{count} records do not fit into {available} bytes")
    if count > rules.max_records:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {count} records, more than batch.max.records={rules.max_records}",
        )
    if codec == _ZSTD and version < 7:
        # A client below Fetch 10 could not read the batch back (KIP-110).
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce 7 or later, not {version}"
        )
    if attributes & CONTROL_BIT:
        raise _invalid("only brokers write control batches")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"producer {header.producer_id} with epoch {header.producer_epoch} "
                f"and sequence {header.base_sequence}"
            )
    elif attributes & TRANSACTIONAL_BIT:
        raise _invalid("a transactional batch without a producer id")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def _too_large(size: int, rules: ProduceRules) -> KafkaError:
    """Return the error for a batch that exceeds `max.message.bytes`."""
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes, more than max.message.bytes={rules.max_message_bytes}",
    )
