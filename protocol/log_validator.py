"""The checks of what clients produce: header, CRC, and the frame of every record.

A broker keeps a batch as the bytes that came in, so it must not acknowledge one that a client cannot
read. `LogValidator` does this in steps of bounded length, because a small batch can hold many records:
the caller decides where a step runs, and what runs between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from .compression import Codec, Compressor, decompressed_chunks
from .errors import ErrorCode, KafkaError
from .lz4_header import check_frame
from .primitives import Buffer
from .record_walk import RecordWalk
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
    RecordsRefusedError,
    check_crc,
    errors_as,
    read_header,
    refusal_of,
    restamped,
    with_payload,
)

PIECE_BYTES = 1024 * 1024
"""Bytes of an uncompressed batch that are copied, to be checked, at a time."""
RECORDS_PER_STEP = 1000
"""Records, or headers, that one step checks: less than a millisecond."""
BATCH_EFFORT = 10
"""Records that are checked in the time that the check of a header takes, and ..."""
OPENED_EFFORT = 50
"""... in the time that it takes to begin to decompress."""
DECOMPRESSED_PER_RECORD = 64
"""Bytes that are decompressed in the time that the check of a record takes."""
_LZ4, _ZSTD = int(Codec.LZ4), int(Codec.ZSTD)


class LogValidator:
    """Validation of the one batch that a client produces to a partition.

    Args:
        buffer: Records of one partition in a Produce request, None if the field was null.
        version: Version of the Produce request.
        now_ms: Time of the append, in milliseconds since the epoch.
        rules: Rules of the topic.

    Raises:
        KafkaError: The batch is refused for its header: INVALID_RECORD (not one batch of format v2,
            or fields that contradict each other), CORRUPT_MESSAGE (unknown format, impossible length,
            wrong CRC), MESSAGE_TOO_LARGE (too many bytes or records), UNSUPPORTED_COMPRESSION_TYPE.
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
        header = _single_batch(buffer)
        if len(buffer) > rules.max_message_bytes:
            raise _too_large(len(buffer), rules)
        if not check_crc(buffer, 0, header):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its CRC")
        _check_fields(header, version, rules)
        self._batch = memoryview(buffer)
        self._header = header
        self._now_ms = now_ms
        self._rules = rules
        self._walk = RecordWalk(header, rules, now_ms)
        self._is_done = False
        self._decompressed = 0
        self._pieces: Iterator[bytes] | None = None
        self._recompressed: Compressor | None = None
        codec = header.attributes & CODEC_MASK
        self._is_recompressed = rules.codec is not None and rules.codec != codec
        if codec:
            payload = self._batch[HEADER_SIZE:]
            if codec == _LZ4:
                with errors_as(ErrorCode.INVALID_RECORD):
                    check_frame(payload)
            self._pieces = decompressed_chunks(codec, payload, rules.max_decompressed)
        elif self._is_recompressed or len(buffer) > HEADER_SIZE + PIECE_BYTES:
            self._pieces = _sliced(self._batch)
        else:
            self._walk.feed(bytes(self._batch[HEADER_SIZE:]), is_last=True)

    @property
    def is_compressed(self) -> bool:
        """True if records are decompressed or recompressed."""
        return bool(self._header.attributes & CODEC_MASK) or self._is_recompressed

    @property
    def effort(self) -> int:
        """What was done so far, as the number of records that are checked in that time."""
        codec = self._header.attributes & CODEC_MASK
        opened = OPENED_EFFORT + self._decompressed // DECOMPRESSED_PER_RECORD if codec else 0
        return BATCH_EFFORT + opened + self._walk.effort

    def step(self) -> bool:
        """Do a bounded piece of the work: decompress a chunk, or check some records.

        Returns:
            True once the batch is valid, and `result` may be called.

        Raises:
            RecordsRefusedError: INVALID_TIMESTAMP or INVALID_RECORD, naming records.
            DecompressedTooLargeError: The records are larger than the rules allow.
            KafkaError: INVALID_RECORD (the stream or its records cannot be read), or
                MESSAGE_TOO_LARGE (too many headers, or too large in the topic's own codec).
        """
        try:  # not `errors_as`: it would take as long as the check of a small batch
            if not self._walk.step(RECORDS_PER_STEP):
                return False
            if self._pieces is not None and self._feed():
                return False
            self._walk.finish()
        except ValueError as error:
            raise refusal_of(error, ErrorCode.INVALID_RECORD) from None
        if self._walk.errors:
            self._refuse_wrong_records()
        self._is_done = True
        return True

    def _feed(self) -> bool:
        """Hand over the next piece; False if there is none."""
        assert self._pieces is not None
        for piece in self._pieces:
            self._walk.feed(piece, is_last=False)
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

    def _refuse_wrong_records(self) -> None:
        errors = self._walk.errors[:RECORD_ERRORS_MAX]
        code = ErrorCode.INVALID_TIMESTAMP if self._walk.untimely else ErrorCode.INVALID_RECORD
        count = self._header.record_count
        summary = f"{len(errors)} of {count} records refused: {errors[0].message}"
        raise RecordsRefusedError(code, summary, errors)

    def result(self) -> tuple[memoryview, BatchHeader]:
        """Return the batch as its log stores it, and its header.

        With LogAppendTime, the header says the time of the append. With CreateTime, it says the
        largest timestamp of the records, whatever the client wrote there.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE, in the topic's own codec.
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
            header = restamped(self._batch, header, attributes, max_timestamp)
        return self._batch, header


def _sliced(batch: memoryview) -> Iterator[bytes]:
    """The uncompressed records of a batch, in pieces."""
    for start in range(HEADER_SIZE, len(batch), PIECE_BYTES):
        yield bytes(batch[start : start + PIECE_BYTES])


def _single_batch(buffer: Buffer) -> BatchHeader:
    """The header of the one batch that is all of `buffer`."""
    size = len(buffer)
    if size <= MAGIC_AT:
        raise _invalid(f"{size} bytes are no batch")
    # The magic byte has the same place in the old formats, whose headers are shorter.
    magic = buffer[MAGIC_AT]
    if magic < MAGIC:
        raise _invalid(f"message format {magic}; from Produce 3 on it is {MAGIC}")
    if magic > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"there is no message format {magic}")
    if size < HEADER_SIZE:
        raise _invalid(f"{size} bytes are no whole batch")
    header = read_header(buffer)
    batch_size = header.batch_length + LENGTH_END
    if batch_size == size:
        return header
    if batch_size < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {header.batch_length}")
    if batch_size > size:
        raise _invalid(f"a batch of {batch_size} bytes is cut after {size}")
    raise _invalid(f"{size - batch_size} bytes after the one batch that is allowed")


def _check_fields(header: BatchHeader, version: int, rules: ProduceRules) -> None:
    """Check the fields of the header against each other and the limits of the topic."""
    count = header.record_count
    if header.base_offset != 0:
        raise _invalid(f"base offset {header.base_offset}, a client's is 0")
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(f"{count} records, but last offset delta {header.last_offset_delta}")
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec > _ZSTD:
        raise _invalid(f"there is no compression codec {codec}")
    room = rules.max_decompressed if codec else header.batch_length + LENGTH_END - HEADER_SIZE
    if count * MIN_RECORD_SIZE > room:
        raise _invalid(f"{count} records cannot be in {room} bytes")
    if count > rules.max_records:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {count} records, more than batch.max.records={rules.max_records}",
        )
    if codec == _ZSTD and version < 7:
        # A client below Fetch 10 could not read the batch back (KIP-110).
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce 7, this is {version}"
        )
    if attributes & CONTROL_BIT:
        raise _invalid("clients do not write control batches")
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
    """The refusal of a batch that has more bytes than its topic takes."""
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes, the topic takes {rules.max_message_bytes}",
    )
