"""Answers that many clients are told alike: made once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable

import trio

from kbroker.protocol.compile import Encoded
from kbroker.runtime.time_slices import Later, TimeSlice

ANSWERS_MAX = 8
"""Answers that are kept at a time: they differ in the version, and in what a client can reach."""

Make = Callable[[], Generator[None, None, Encoded]]


class _Making:
    """An answer in the making, by one of those who ask for it."""

    __slots__ = ("answer", "changes", "done")

    def __init__(self, changes: int) -> None:
        self.changes = changes
        """What it knows of, at least."""
        self.done = trio.Event()
        self.answer: Encoded | None = None


class SharedAnswers:
    """Large answers, kept encoded until there is something new to say.

    Parameters: `count_changes` says how often that which is told of has changed.
    """

    def __init__(self, count_changes: Callable[[], int]) -> None:
        self._count_changes = count_changes
        self._changes = count_changes()
        self._made: dict[Hashable, Encoded] = {}
        self._being_made: dict[Hashable, _Making] = {}

    def told(self, key: Hashable, make: Make, time_slice: TimeSlice) -> Encoded | Later[Encoded]:
        """The answer that is the same for all who have the key, or what gets it when awaited.

        Parameters: `make` makes it in pieces; `time_slice` is that of who asks.
        """
        self._forget_old()
        known = self._made.get(key)
        if known is not None:
            return known
        making = self._being_made.get(key)
        if making is not None:
            return self._wait(making, key, make, time_slice)
        return time_slice.run(self._make(key, make))

    def _make(self, key: Hashable, make: Make) -> Generator[None, None, Encoded]:
        self._forget_old()
        making = self._being_made[key] = _Making(self._changes)
        try:
            answer = making.answer = yield from make()
        finally:
            del self._being_made[key]
            making.done.set()
        self._forget_old()
        if self._changes == making.changes:
            self._keep(key, answer)
        return answer

    async def _wait(
        self, making: _Making, key: Hashable, make: Make, time_slice: TimeSlice
    ) -> Encoded:
        """Wait for one that knows of all that had changed when it was asked for."""
        changes = self._changes
        while True:
            await making.done.wait()
            if making.answer is not None and making.changes >= changes:
                return making.answer
            other = self._being_made.get(key)
            if other is None:
                return await time_slice.finish(self._make(key, make))
            making = other

    def _forget_old(self) -> None:
        changes = self._count_changes()
        if changes != self._changes:
            self._changes = changes
            self._made.clear()

    def _keep(self, key: Hashable, answer: Encoded) -> None:
        while len(self._made) >= ANSWERS_MAX:
            del self._made[next(iter(self._made))]
        self._made[key] = answer
