"""Incremental splitting of a byte stream into lines."""

from __future__ import annotations

from collections.abc import Iterator


class Lines:
    """Splits chunks of bytes at newlines."""

    def __init__(self) -> None:
        self._incomplete = bytearray()

    def feed(self, part: bytes | bytearray) -> Iterator[bytes]:
        """Yield the lines that end in this chunk, without empty lines."""
        *ended, incomplete = part.split(b"\n")
        for line in ended:
            complete = bytes(self._incomplete) + line
            self._incomplete.clear()
            if complete:
                yield complete
        self._incomplete += incomplete
