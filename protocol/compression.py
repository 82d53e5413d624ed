"""The four codecs of record batches, each with a limit on the decompressed size.

Codec libraries are imported on first use: a broker stores batches as they arrive and may never
decompress one. If a library is not installed, only its codec fails. Decompression of a stream stops
at the limit, so a small input that expands to gigabytes costs at most the limit plus one chunk.

Formats as written by Kafka clients into record batches of format v2:

* gzip: RFC 1952, one or more members.
* snappy: Java writes the framing of the xerial library (magic, version, blocks with an int32
  length); librdkafka writes one raw block. Both are read.
* lz4: LZ4 frames with independent blocks (Java cannot read linked blocks) (KIP-57).
* zstd: one or more frames (KIP-110).
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import NamedTuple, Protocol

from .primitives import Buffer

# Bytes of input and output per step.
CHUNK_BYTES = 256 * 1024

# Maximum number of concatenated members or frames in one stream. Clients write one; thousands of
# empty frames would consume CPU time without output that a limit could detect.
FRAMES_MAX = 10_000

# Maximum zstd window in bytes: 128 MiB, the default maximum of zstd's decoder and of Java. Level 22
# declares it for streams of unknown size; only the part that the data needs is allocated.
ZSTD_WINDOW_BYTES_MAX = 1 << 27

# Uncompressed bytes per block of a xerial snappy stream (default of Java's writer).
XERIAL_BLOCK_BYTES = 32 * 1024


class Codec(IntEnum):
    """Compression codec: the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class _Library(NamedTuple):
    """Library of a codec."""

    module: str
    # What to do if the module cannot be imported.
    fix: str


_PACKAGE_FIX = "the package {0!r} is not installed; run 'pip install {0}' and restart"
# Python contains zstd since version 3.14 (PEP 784), unless it was built without the C library.
_HAS_ZSTD = sys.version_info >= (3, 14)
_ZSTD_LIBRARY = (
    _Library("compression.zstd", "this Python was built without zstd; use another build of Python")
    if _HAS_ZSTD
    else _Library("zstandard", _PACKAGE_FIX.format("zstandard"))
)
_LIBRARIES: Mapping[Codec, _Library] = MappingProxyType(
    {
        Codec.SNAPPY: _Library("snappy", _PACKAGE_FIX.format("python-snappy")),
        Codec.LZ4: _Library("lz4.frame", _PACKAGE_FIX.format("lz4")),
        Codec.ZSTD: _ZSTD_LIBRARY,
    }
)


class MissingCodecError(ValueError):
    """A codec whose library cannot be imported.

    Args:
        codec: The codec.
        fix: The cause, and how to install the library.
    """

    def __init__(self, codec: Codec, fix: str) -> None:
        super().__init__(f"compression type {codec.name.lower()}: {fix}")


class DecompressionError(ValueError):
    """A compressed stream that is damaged, truncated, or needs too much memory."""


class OutputLimitError(DecompressionError):
    """A stream that decompresses to more bytes than the caller allows."""


class _Stream(Protocol):
    """A compressor of one codec, with the interface of the libraries."""

    def compress(self, data: Buffer, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Coder(NamedTuple):
    compressor: Callable[[int | None, int], _Stream]
    decompress: Callable[[memoryview, _Output], Iterator[bytes]]


class _Output:
    """A count of the decompressed bytes of one stream, up to `limit`."""

    __slots__ = ("frames", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.frames = 0

    def begin_frame(self) -> None:
        self.frames += 1
        if self.frames > FRAMES_MAX:
            raise DecompressionError(f"more than {FRAMES_MAX} concatenated frames")

    def reserve(self, size: int) -> None:
        """Raise OutputLimitError if `size` more bytes, not allocated yet, exceed the limit."""
        if self.size + size > self.limit:
            raise OutputLimitError(f"decompresses to more than {self.limit} bytes")

    def count(self, chunk: bytes) -> bytes:
        """Count `chunk` and return it. Raises OutputLimitError."""
        self.reserve(len(chunk))
        self.size += len(chunk)
        return chunk


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` with a codec; `Codec.NONE` copies.

    `level` has the meaning of Kafka's `compression.*.level` (KIP-390): 1 to 9 or -1 for gzip, 1 to
    17 for lz4, -131072 to 22 for zstd. None is the default of the codec. Snappy has no levels.

    Raises:
        MissingCodecError: The library of the codec is not installed.
        ValueError: The codec is unknown.
    """
    stream = Compressor(codec, level, len(data))
    stream.add(data)
    return stream.finish()


class Compressor:
    """A stream that is compressed piece by piece.

    Args:
        codec: A `Codec` or its number.
        level: As in `compress`.
        size: Total number of bytes that will be added, -1 if unknown.

    Raises:
        MissingCodecError: The library of the codec is not installed.
        ValueError: The codec is unknown.
    """

    __slots__ = ("_parts", "_stream", "size")

    def __init__(self, codec: int, level: int | None = None, size: int = -1) -> None:
        self._stream = _Copy() if codec == Codec.NONE else _coder(codec).compressor(level, size)
        self._parts: list[bytes] = []
        # Compressed bytes so far, without output that the codec still buffers.
        self.size = 0

    def add(self, data: Buffer) -> None:
        """Compress the next bytes."""
        self._append(self._stream.compress(data))

    def finish(self) -> bytes:
        """End the stream and return it."""
        self._append(self._stream.flush())
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _append(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self.size += len(part)


class _Copy:
    def compress(self, data: Buffer) -> bytes:
        return bytes(data)

    def flush(self) -> bytes:
        return b""


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Return the content of a complete compressed stream.

    Memory: a rejected stream uses at most `limit` plus a few chunks (snappy: nothing, because the
    size is declared at the start), an accepted one temporarily twice its size. Decoders also have a
    window: 8 MiB for lz4 and up to `ZSTD_WINDOW_BYTES_MAX` for zstd.

    Args:
        codec: A `Codec` or its number.
        data: The complete stream, without trailing bytes.
        limit: Maximum decompressed size in bytes.

    Raises:
        OutputLimitError: The decompressed size exceeds `limit`.
        DecompressionError: The stream is damaged or truncated.
        MissingCodecError: The library of the codec is not installed.
        ValueError: The codec is unknown.
    """
    chunks = list(decompressed_chunks(codec, data, limit))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decompressed_chunks(codec: int, data: Buffer, limit: int) -> Iterator[bytes]:
    """Decompress a stream in chunks, so that callers need not hold all of it.

    Args:
        codec: A `Codec` or its number.
        data: The complete stream.
        limit: Maximum decompressed size in bytes.

    Returns:
        Chunks of up to `CHUNK_BYTES`. A snappy block is one chunk, whatever its size.

    Raises:
        OutputLimitError: The decompressed size exceeds `limit`.
        DecompressionError: The stream is damaged or truncated.
        MissingCodecError: The library of the codec is not installed.
        ValueError: The codec is unknown.
    """
    output = _Output(limit)
    if codec == Codec.NONE:
        output.reserve(len(data))
        return iter((bytes(data),))
    return _coder(codec).decompress(memoryview(data), output)


def _coder(codec: int) -> _Coder:
    try:
        return _CODERS[codec]
    except KeyError:
        raise ValueError(f"unknown compression codec {codec}") from None


def _library(codec: Codec) -> ModuleType:
    """Import the library of a codec. Raises MissingCodecError."""
    name, fix = _LIBRARIES[codec]
    try:
        return sys.modules.get(name) or import_module(name)
    except ImportError:
        raise MissingCodecError(codec, fix) from None


# -- gzip

_GZIP_WBITS = 31  # 15 bits of window, plus 16 for a gzip header and trailer


def _gzip_compressor(level: int | None, size: int) -> _Stream:
    return zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WBITS)


def _gzip_decompress(data: memoryview, output: _Output) -> Iterator[bytes]:
    position = 0
    while True:
        output.begin_frame()
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        while not member.eof:
            # Feed the input in pieces, because zlib copies the unused part.
            piece = data[position : position + CHUNK_BYTES]
            try:
                chunk = member.decompress(piece, CHUNK_BYTES)
            except zlib.error as error:
                raise DecompressionError(f"gzip stream is damaged: {error}") from None
            left = member.unused_data if member.eof else member.unconsumed_tail
            position += len(piece) - len(left)
            if not chunk and not member.eof and position == len(data):
                raise DecompressionError("gzip stream is truncated")
            yield output.count(chunk)
        if position == len(data):
            return


# -- snappy

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
_INT32 = struct.Struct(">i")


class _XerialStream:
    """Xerial blocks of a fixed size, as Java's writer creates them."""

    def __init__(self) -> None:
        self._snappy = _library(Codec.SNAPPY)
        self._left = bytearray()
        self._parts = [_XERIAL_HEADER]

    def compress(self, data: Buffer) -> bytes:
        self._left += data
        whole = len(self._left) - len(self._left) % XERIAL_BLOCK_BYTES
        for start in range(0, whole, XERIAL_BLOCK_BYTES):
            self._add_block(self._left[start : start + XERIAL_BLOCK_BYTES])
        del self._left[:whole]
        return self._take_parts()

    def flush(self) -> bytes:
        if self._left:
            self._add_block(self._left)
        return self._take_parts()

    def _add_block(self, content: bytearray) -> None:
        block = self._snappy.compress(bytes(content))
        self._parts += (_INT32.pack(len(block)), block)

    def _take_parts(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _snappy_compressor(level: int | None, size: int) -> _Stream:
    return _XerialStream()


def _snappy_decompress(data: memoryview, output: _Output) -> Iterator[bytes]:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield _snappy_block(data, output)
        return
    for block in _xerial_blocks(data):
        yield _snappy_block(block, output)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the raw blocks of one or more concatenated xerial streams."""
    position = 0
    end = len(data)
    while position < end:
        # A concatenated stream starts with its magic in place of a block length. As a length the
        # magic is negative, so the two cannot be confused.
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            if position > end:
                raise DecompressionError("snappy stream is truncated in its header")
            continue
        if position + 4 > end:
            raise DecompressionError("snappy stream is truncated")
        size = _INT32.unpack_from(data, position)[0]
        position += 4
        if not 0 <= size <= end - position:
            raise DecompressionError(f"snappy block of {size} bytes with {end - position} left")
        yield data[position : position + size]
        position += size


def _snappy_block(block: memoryview, output: _Output) -> bytes:
    snappy = _library(Codec.SNAPPY)
    declared = _snappy_declared_size(block)
    # One byte of input produces at most 22 bytes of output (a three-byte copy of 64). A much larger
    # declared size is invalid; it must be rejected before the decoder allocates it
    # (CVE-2023-43642).
    if declared > 24 * len(block):
        raise DecompressionError(f"snappy block of {len(block)} bytes declares {declared}")
    output.reserve(declared)
    try:
        return output.count(snappy.decompress(block))
    except snappy.UncompressError:
        raise DecompressionError("snappy block is damaged or truncated") from None


def _snappy_declared_size(block: memoryview) -> int:
    """Return the uncompressed size at the start of a raw block, an unsigned 32-bit varint."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise DecompressionError("snappy block has no valid length")


# -- lz4


# Level of Kafka that means the fast compressor; all others mean the slow one.
_LZ4_FAST_LEVEL = 9
_LZ4_SLOW_LEVEL_MIN, _LZ4_SLOW_LEVEL_MAX = 3, 12


class _Lz4Stream:
    def __init__(self, level: int) -> None:
        frame = _library(Codec.LZ4)
        self._frame = frame.LZ4FrameCompressor(
            compression_level=level,
            block_linked=False,
            block_size=frame.BLOCKSIZE_MAX64KB,
        )
        self._head: bytes = self._frame.begin()

    def compress(self, data: Buffer) -> bytes:
        head, self._head = self._head, b""
        return bytes(head + self._frame.compress(data))

    def flush(self) -> bytes:
        return bytes(self._head + self._frame.flush())


def _lz4_compressor(level: int | None, size: int) -> _Stream:
    if level is None or level == _LZ4_FAST_LEVEL:
        return _Lz4Stream(0)
    return _Lz4Stream(min(max(level, _LZ4_SLOW_LEVEL_MIN), _LZ4_SLOW_LEVEL_MAX))


def _lz4_decompress(data: memoryview, output: _Output) -> Iterator[bytes]:
    frame = _library(Codec.LZ4)
    position = 0
    while True:
        # One context per frame. The functions behind LZ4FrameDecompressor accept a view of the rest
        # of the data; the class copies the rest for every chunk.
        output.begin_frame()
        context = frame.create_decompression_context()
        ended = False
        while not ended:
            try:
                chunk, consumed, ended = frame.decompress_chunk(
                    context, data[position:], max_length=CHUNK_BYTES
                )
            except RuntimeError as error:
                raise DecompressionError(f"lz4 frame is damaged: {error}") from None
            position += consumed
            if not chunk and not ended and (position == len(data) or not consumed):
                raise DecompressionError("lz4 frame is truncated")
            yield output.count(chunk)
        if position == len(data):
            return


# -- zstd

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # and the next fifteen numbers
_ZSTD_LEVEL = 3  # default of zstd and Kafka
_ZSTD_RLE_BLOCK = 1  # one byte of input, whatever its output size


def _zstd_compressor(level: int | None, size: int) -> _Stream:
    zstd = _library(Codec.ZSTD)
    if level is None:
        level = _ZSTD_LEVEL
    stream: _Stream
    if _HAS_ZSTD:
        stream = compressor = zstd.ZstdCompressor(level)
        compressor.set_pledged_input_size(None if size < 0 else size)
    else:
        stream = zstd.ZstdCompressor(level).compressobj(size)
    return stream


def _zstd_decompress(data: memoryview, output: _Output) -> Iterator[bytes]:
    zstd = _library(Codec.ZSTD)
    read = _zstd_read_builtin if _HAS_ZSTD else _zstd_read_package
    for frame in _zstd_frames(data, output):
        try:
            for chunk in read(zstd, frame):
                yield output.count(chunk)
        except zstd.ZstdError as error:
            raise DecompressionError(f"zstd frame is damaged: {error}") from None


def _zstd_read_package(zstd: ModuleType, frame: memoryview) -> Iterator[bytes]:
    """Yield the content of a frame in chunks, with the package zstandard."""
    reader = zstd.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).stream_reader(frame)
    while chunk := reader.read(CHUNK_BYTES):
        yield chunk


def _zstd_read_builtin(zstd: ModuleType, frame: memoryview) -> Iterator[bytes]:
    """Yield the content of a frame in chunks, with Python's own module."""
    window = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_BYTES_MAX.bit_length() - 1}
    decompressor = zstd.ZstdDecompressor(options=window)
    position = 0
    while not decompressor.eof:
        piece = frame[position : position + CHUNK_BYTES] if decompressor.needs_input else b""
        if decompressor.needs_input and not piece:
            raise DecompressionError("zstd frame is truncated")
        position += len(piece)
        if chunk := decompressor.decompress(piece, CHUNK_BYTES):
            yield chunk


def _zstd_frames(data: memoryview, output: _Output) -> Iterator[memoryview]:
    """Yield every complete frame of a stream, without skippable frames (RFC 8878, 3.1).

    The streaming reader treats the end of its input as the end of the frame without an error. So
    the frame ends are computed here, with one step per block of up to 128 KiB of output.
    """
    position = 0
    while True:
        try:
            magic, size = struct.unpack_from("<II", data, position)
            if magic & ~0xF == _ZSTD_SKIPPABLE:
                end = position + 8 + size
            elif magic == _ZSTD_MAGIC:
                end = _zstd_frame_end(data, position + 4)
            else:
                raise DecompressionError(f"zstd frame starts with {magic:#x}")
        except (struct.error, IndexError):
            raise DecompressionError("zstd frame is truncated") from None
        if end > len(data):
            raise DecompressionError("zstd frame is truncated")
        output.begin_frame()
        if magic == _ZSTD_MAGIC:
            yield data[position:end]
        position = end
        if position == len(data):
            return


def _zstd_frame_end(data: memoryview, position: int) -> int:
    """Return the end of the frame whose header descriptor is at `position`; may exceed the data.

    Raises IndexError if the data ends within a header.
    """
    descriptor = data[position]
    single_segment = descriptor & 0x20
    content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    dictionary_id_bytes = (0, 1, 2, 4)[descriptor & 3]
    position += 1 + (0 if single_segment else 1) + dictionary_id_bytes + content_size_bytes
    last = 0
    while not last:
        block = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
    return position + (4 if descriptor & 0x04 else 0)  # the content checksum


_CODERS: Mapping[int, _Coder] = MappingProxyType(
    {
        Codec.GZIP: _Coder(_gzip_compressor, _gzip_decompress),
        Codec.SNAPPY: _Coder(_snappy_compressor, _snappy_decompress),
        Codec.LZ4: _Coder(_lz4_compressor, _lz4_decompress),
        Codec.ZSTD: _Coder(_zstd_compressor, _zstd_decompress),
    }
)
