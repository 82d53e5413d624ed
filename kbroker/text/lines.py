"""Incremental splitting of a byte stream into lines."""

from __future__ import annotations

from collections.abc import Iterator


class Lines:
    """Splits chunks of bytes at newlines."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, part: bytes | bytearray) -> Iterator[bytes]:
        """Yield the lines that end in this chunk, without empty lines."""
        *ended, begun = part.split(b"\n")
        for line in ended:
            whole = bytes(self._begun) + line
            self._begun.clear()
            if whole:
                yield whole
        self._begun += begun
