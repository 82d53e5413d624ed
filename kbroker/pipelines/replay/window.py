"""The part of a partition between two places, found while its records pass by."""

from __future__ import annotations

from kbroker.client.offset_spec import Kind, OffsetSpec


class Window:
    """Where a partition's part begins and ends, for sources that cannot look a time up.

    A time stands for the first record that is not earlier, as it does when a broker is asked.
    """

    def __init__(self, first: OffsetSpec, last: OffsetSpec) -> None:
        self._first = first
        self._last = last
        self._begun = False
        self.is_over = False

    def has(self, offset: int, timestamp: int) -> bool:
        """Whether the next record of the partition is in this part of it."""
        if not self._begun:
            self._begun = self._first.kind == Kind.START or _is_at(self._first, offset, timestamp)
        if self._begun and not self.is_over and self._last.kind != Kind.END:
            self.is_over = _is_at(self._last, offset, timestamp)
        return self._begun and not self.is_over


def _is_at(spec: OffsetSpec, offset: int, timestamp: int) -> bool:
    return (offset if spec.kind == Kind.OFFSET else timestamp) >= spec.value
