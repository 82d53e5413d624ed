"""Cut a byte stream into frames: an int32 length, then that many bytes.

Nothing here reads a socket. A caller alternates: where `FrameReader.next_buffer` gives a place,
receive straight into it and tell `received`; otherwise receive a chunk of any size and `feed` it.
Then iterate over the reader for the frames that are complete.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct(">i")

GATHERED_SIZE = 65536
"""A frame above this size that is partly there gets a buffer of its own, to be received into.

Smaller ones are put together from chunks: the copy costs less than receiving each on its own."""

LAZY_SIZE = 4 * 1024 * 1024
"""Above this size the buffer takes memory page by page, as bytes arrive: four bytes from anybody
must not cost the 100 MiB that they announce."""

_NOTHING = memoryview(b"")


class FrameError(ValueError):
    """The stream does not consist of frames, or one is larger than allowed."""


class FrameReader:
    """Frames of one connection, in order.

    Frames are memoryviews without their length. Small ones are slices of the chunk that was fed;
    a large one owns a buffer of exactly its size, which is never used again.

    Parameters:
      limit: Largest frame in bytes.
    """

    __slots__ = ("_bad_length", "_chunk", "_filled", "_large", "_position", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._chunk = _NOTHING
        self._position = 0
        self._large: memoryview | None = None
        self._filled = 0
        self._bad_length = b""

    def next_buffer(self) -> memoryview | None:
        """The rest of a large frame, to be received into; None to `feed` a chunk instead."""
        if self._large is None or self._filled == len(self._large):
            return None
        return self._large[self._filled :]

    @property
    def held(self) -> int:
        """How many bytes of a large frame have come."""
        return 0 if self._large is None else self._filled

    @property
    def is_waiting(self) -> bool:
        """Whether a part of a small frame is all that is here: there is nothing to take, or to begin."""
        have = len(self._chunk) - self._position - _LENGTH.size
        if self._large is not None or have < 0:
            return self._large is None
        size: int
        (size,) = _LENGTH.unpack_from(self._chunk, self._position)
        return have < size <= min(GATHERED_SIZE, self.limit)

    def received(self, size: int) -> None:
        """Say that `size` bytes were written to the front of `next_buffer`."""
        self._filled += size

    def feed(self, data: bytes) -> None:
        """Add bytes that were received. All complete frames must have been taken before."""
        rest = self._chunk[self._position :]
        buffer = self.next_buffer()
        if buffer is not None:
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._filled += size
            self._chunk = memoryview(data)[size:]
        elif rest:
            self._chunk = memoryview(b"".join((rest, data)))
        else:
            self._chunk = memoryview(data)
        self._position = 0

    def __iter__(self) -> Iterator[memoryview]:
        """Take the frames that are complete.

        Raises:
          FrameError: a length is not positive or above the limit; the stream is then of no use.
          MemoryError: there is none for a large frame.
        """
        if self._large is not None and self._filled == len(self._large):
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
            # What is left is little; the large chunk that it is a part of need not stay.
            rest = bytes(self._chunk[self._position :])
            self._chunk = memoryview(rest) if rest else _NOTHING
            self._position = 0

    def hint(self) -> str:
        """After a `FrameError`: a guess at what the peer speaks, to append to a message, or ""."""
        if self._bad_length[:2] == b"\x16\x03":
            return " (this looks like TLS on a plaintext listener)"
        if self._bad_length in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
            return " (this looks like HTTP)"
        return ""

    def _begin_large(self, start: int, size: int) -> None:
        self._large = memoryview(bytearray(size) if size <= LAZY_SIZE else _pages(size))
        self._filled = len(self._chunk) - start
        self._large[: self._filled] = self._chunk[start:]
        self._chunk = _NOTHING
        self._position = 0


def _pages(size: int) -> mmap.mmap:
    """Memory that is taken page by page. Raises MemoryError."""
    try:
        return mmap.mmap(-1, size)
    except OSError as error:  # it would say that the peer has gone
        raise MemoryError(str(error)) from None
