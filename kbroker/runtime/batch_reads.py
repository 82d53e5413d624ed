"""Reading of stored batches, whose cost is assumed to be the worst that their size allows.

Work on a batch comes as an iterator of bounded steps (see `kbroker.protocol.record_stream`): None
after each step, the result as its last item. A batch that takes longer than a moment is read in a
worker thread, fairly between clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterator
from functools import partial
from typing import Generic, TypeVar

import trio

from .fair_slots import FairSlots
from .slices import Wanted
from .threads import InThread

Result = TypeVar("Result")

MOMENT_SECONDS = 0.001
"""How long a batch may keep the event loop before it goes to a thread."""
SLICE_SECONDS = 0.02
"""Processor time for which one client keeps the thread while others wait."""
OPEN_MAX = 2
"""Batches that are open at the same time between two slices; it bounds what their decoders hold."""


class BatchReads:
    """Reads stored batches for clients, next to the event loop where that takes long.

    One slice goes on at a time, because all threads share the interpreter with the event loop.
    """

    __slots__ = ("_in_thread", "_open", "_thread")

    def __init__(self, in_thread: InThread = trio.to_thread.run_sync) -> None:
        self._in_thread = in_thread
        self._thread = FairSlots(1)
        self._open = FairSlots(OPEN_MAX)

    def in_pieces(
        self,
        begin: Callable[[], Iterator[Result | None]],
        client: Hashable,
        charge: Callable[[float], None],
    ) -> Generator[Wanted, None, Result | None]:
        """Return what the work comes to, as a generator for `Turn.run`.

        Args:
            begin: begins the work; it is called again if the work moves to a thread, where it must
                not touch a node's state.
            client: for whom it is done.
            charge: is told the seconds of processor time that a thread took.

        Returns:
            The first item that is not None; None if there is none.
        """
        ends_at = trio.current_time() + MOMENT_SECONDS
        for item in begin():
            if item is not None:
                return item
            if trio.current_time() >= ends_at:
                break
        else:
            return None
        outcome: list[Result | None] = []

        async def read() -> None:
            outcome.append(await self._read_in_thread(begin, client, charge))

        yield read
        return outcome[0]

    async def read(
        self,
        begin: Callable[[], Iterator[Result | None]],
        client: Hashable,
        charge: Callable[[float], None],
    ) -> Result | None:
        """Return what the work comes to; as `in_pieces`, for callers that may wait."""
        work = self.in_pieces(begin, client, charge)
        try:
            wanted = next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if wanted is not None:
            await wanted()
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a read waits once")

    async def _read_in_thread(
        self,
        begin: Callable[[], Iterator[Result | None]],
        client: Hashable,
        charge: Callable[[float], None],
    ) -> Result | None:
        # Most batches take one slice. What takes longer begins again once few others are open.
        reading = _Reading(begin())
        await self._slice(reading, client, charge)
        if reading.is_done:
            return reading.result
        del reading
        async with self._open.taken(client):
            reading = _Reading(begin())
            while not reading.is_done:
                await self._slice(reading, client, charge)
            return reading.result

    async def _slice(
        self, reading: _Reading[Result], client: Hashable, charge: Callable[[float], None]
    ) -> None:
        async with self._thread.taken(client):
            charge(await self._in_thread(partial(reading.go_on, SLICE_SECONDS)))


class _Reading(Generic[Result]):
    """Work on one batch, and what came of it."""

    __slots__ = ("_work", "is_done", "result")

    def __init__(self, work: Iterator[Result | None]) -> None:
        self._work = work
        self.is_done = False
        self.result: Result | None = None

    def go_on(self, seconds: float) -> float:
        """Work for so much processor time, in any thread; returns how much it was."""
        began = time.thread_time()
        for item in self._work:
            if item is not None:
                self.result, self.is_done = item, True
                break
            if time.thread_time() - began >= seconds:
                return time.thread_time() - began
        self.is_done = True
        return time.thread_time() - began


def charge_nobody(seconds: float) -> None:
    """Do not charge a client: the node itself does the work."""
