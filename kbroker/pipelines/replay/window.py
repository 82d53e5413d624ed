"""Selection of a partition's records between two bounds while they are read."""

from __future__ import annotations

from kbroker.client.offset_spec import Kind, OffsetSpec


class Window:
    """Selected part of a partition, for sources that cannot look up timestamps.

    A timestamp bound means the first record at or after it, as in ListOffsets.
    """

    def __init__(self, first: OffsetSpec, last: OffsetSpec) -> None:
        self._first = first
        self._last = last
        self._begun = False
        self.is_over = False

    def has(self, offset: int, timestamp: int) -> bool:
        """Return True if the partition's next record is selected."""
        if not self._begun:
            self._begun = self._first.kind == Kind.START or _is_at(self._first, offset, timestamp)
        if self._begun and not self.is_over and self._last.kind != Kind.END:
            self.is_over = _is_at(self._last, offset, timestamp)
        return self._begun and not self.is_over


def _is_at(spec: OffsetSpec, offset: int, timestamp: int) -> bool:
    return (offset if spec.kind == Kind.OFFSET else timestamp) >= spec.value
