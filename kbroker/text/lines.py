"""Lines that come in parts."""

from __future__ import annotations

from collections.abc import Iterator


class Lines:
    """Cuts what comes in parts at its line ends."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, part: bytes | bytearray) -> Iterator[bytes]:
        """The lines that end in a part."""
        *ended, begun = part.split(b"\n")
        for line in ended:
            whole = bytes(self._begun) + line
            self._begun.clear()
            if whole:
                yield whole
        self._begun += begun
