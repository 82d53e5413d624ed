"""Splitting of a byte stream into frames: an int32 length, then that many bytes.

This module does not read sockets. If `FrameReader.next_buffer` returns a buffer, the caller
receives into it and calls `received`; otherwise it receives a chunk of any size and calls `feed`.
Then it iterates over the reader to get the complete frames.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct(">i")

# An incomplete frame above this size in bytes gets its own receive buffer. Smaller frames are
# joined from chunks: the copy costs less than a separate receive call.
GATHERED_SIZE = 65536

# Above this size in bytes the buffer is allocated page by page, as bytes arrive: a client that
# sends only a length must not allocate 100 MiB. A smaller buffer is replaced by a larger one when it
# is full, because pages cost more than copies.
LAZY_SIZE = 4 * 1024 * 1024
# Maximum ratio of the size of such a buffer to the bytes that have arrived.
GROWTH = 4

_NOTHING = memoryview(b"")


class FrameError(ValueError):
    """An invalid frame length: the stream does not consist of frames, or a frame is too large."""


class FrameReader:
    """The frames of one connection, in order.

    Frames are memoryviews without their length. Small frames are slices of a received chunk; a
    large frame has its own buffer, which is not reused.

    Args:
        limit: Maximum frame size in bytes.
    """

    __slots__ = ("_bad_length", "_chunk", "_filled", "_large", "_position", "_size", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._chunk = _NOTHING
        self._position = 0
        self._large: memoryview | None = None
        self._filled = 0
        # Size of the large frame; its buffer may be smaller.
        self._size = 0
        self._bad_length = b""

    def next_buffer(self) -> memoryview | None:
        """Return a buffer for more of a large frame, or None if a chunk is to be fed."""
        large = self._large
        if large is None or not self.missing:
            return None
        if self._filled == len(large):
            self._large = memoryview(bytearray(min(self._size, GROWTH * self._filled)))
            self._large[: self._filled] = large
            large = self._large
        return large[self._filled :]

    @property
    def missing(self) -> int:
        """Number of bytes of a large frame that are not received yet."""
        return 0 if self._large is None else self._size - self._filled

    @property
    def held(self) -> int:
        """Number of received bytes of a large frame."""
        return 0 if self._large is None else self._filled

    @property
    def is_waiting(self) -> bool:
        """True if only a part of a small frame is buffered."""
        have = len(self._chunk) - self._position - _LENGTH.size
        if self._large is not None or have < 0:
            return self._large is None
        size: int
        (size,) = _LENGTH.unpack_from(self._chunk, self._position)
        return have < size <= min(GATHERED_SIZE, self.limit)

    def received(self, size: int) -> None:
        """Record that `size` bytes were written to the start of `next_buffer`."""
        self._filled += size

    def feed(self, data: bytes) -> None:
        """Add received bytes. All complete frames must have been taken before."""
        rest = self._chunk[self._position :]
        if self.missing:
            self._chunk = self._fill(memoryview(data))
        elif rest:
            self._chunk = memoryview(b"".join((rest, data)))
        else:
            self._chunk = memoryview(data)
        self._position = 0

    def _fill(self, data: memoryview) -> memoryview:
        """Copy bytes into the large frame, and return the bytes after its end."""
        while data and (buffer := self.next_buffer()) is not None:
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._filled += size
            data = data[size:]
        return data

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the complete frames.

        Raises:
            FrameError: A length is not positive or above the limit; the stream is unusable.
            MemoryError: There is no memory for a large frame.
        """
        if self._large is not None and not self.missing:
            frame, self._large = self._large, None
            yield frame
        while self._large is None:
            start = self._position + _LENGTH.size
            if start > len(self._chunk):
                break
            (size,) = _LENGTH.unpack_from(self._chunk, self._position)
            if not 0 < size <= self.limit:
                self._bad_length = bytes(self._chunk[self._position : start])
                raise FrameError(f"frame of {size} bytes, the limit is {self.limit}")
            if start + size > len(self._chunk):
                if size > GATHERED_SIZE:
                    self._begin_large(start, size)
                break
            self._position = start + size
            yield self._chunk[start : start + size]
        if self._position:
            # The rest is small; copy it, so that the large chunk can be freed.
            rest = bytes(self._chunk[self._position :])
            self._chunk = memoryview(rest) if rest else _NOTHING
            self._position = 0

    def hint(self) -> str:
        """Return a guess at the peer's protocol after a `FrameError`, to append to a message."""
        if self._bad_length[:2] == b"\x16\x03":
            return " (this looks like TLS on a plaintext listener)"
        if self._bad_length in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
            return " (this looks like HTTP)"
        return ""

    def _begin_large(self, start: int, size: int) -> None:
        self._size = size
        self._filled = len(self._chunk) - start
        if size > LAZY_SIZE:
            self._large = memoryview(_pages(size))
        else:
            self._large = memoryview(
                bytearray(min(size, max(GATHERED_SIZE, GROWTH * self._filled)))
            )
        self._large[: self._filled] = self._chunk[start:]
        self._chunk = _NOTHING
        self._position = 0


def _pages(size: int) -> mmap.mmap:
    """Return memory that is allocated page by page. Raises MemoryError."""
    try:
        return mmap.mmap(-1, size)
    except OSError as error:  # callers treat OSError as a lost connection
        raise MemoryError(str(error)) from None
