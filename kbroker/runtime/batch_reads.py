"""Reads stored batches in bounded steps, because a small batch may hold millions of records.

Work on a batch is an iterator (see `kbroker.protocol.record_stream`) that yields None after each step
and the result last. If a batch takes longer than `EVENT_LOOP_SECONDS`, a worker thread reads it, in
round-robin order between clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterator
from functools import partial
from typing import Generic, TypeVar

import trio

from .fair_slots import FairSlots
from .threads import InThread, run_in_thread
from .time_slices import Wanted

Result = TypeVar("Result")

# Seconds for which the event loop reads a batch before the work moves to a thread.
EVENT_LOOP_SECONDS = 0.001
# CPU seconds of one client in the thread while other clients wait.
SLICE_SECONDS = 0.02
# Maximum number of batches that are open between two slices, to bound the memory of decoders.
OPEN_MAX = 2


class BatchReads:
    """Reads stored batches for clients, long ones in a worker thread.

    One slice runs at a time, because all threads share the interpreter with the event loop.
    """

    __slots__ = ("_in_thread", "_open", "_thread")

    def __init__(self, in_thread: InThread = run_in_thread) -> None:
        self._in_thread = in_thread
        self._thread = FairSlots(1)
        self._open = FairSlots(OPEN_MAX)

    def in_pieces(
        self,
        begin: Callable[[], Iterator[Result | None]],
        client: Hashable,
        charge: Callable[[float], None],
    ) -> Generator[Wanted, None, Result | None]:
        """Do the work as a generator for `TimeSlice.run`.

        Args:
            begin: Starts the work. It is called again if the work moves to a thread, where it must
                not touch a node's state.
            client: The client, for the round-robin order of work.
            charge: Called with the CPU time in seconds that a thread used.

        Returns:
            The first item that is not None, or None if all items are None.
        """
        ends_at = trio.current_time() + EVENT_LOOP_SECONDS
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
        """Do the work like `in_pieces`, for callers that may wait."""
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
        # Most batches take one slice. Longer ones start again once fewer than `OPEN_MAX` are open.
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
            charge(await self._in_thread(partial(reading.run_steps, SLICE_SECONDS)))


class _Reading(Generic[Result]):
    """Work on one batch, and its result."""

    __slots__ = ("_work", "is_done", "result")

    def __init__(self, work: Iterator[Result | None]) -> None:
        self._work = work
        self.is_done = False
        self.result: Result | None = None

    def run_steps(self, seconds: float) -> float:
        """Work for some seconds of CPU time, in any thread. Return the CPU seconds used."""
        began = time.thread_time()
        for item in self._work:
            if item is not None:
                self.result, self.is_done = item, True
                break
            if time.thread_time() - began >= seconds:
                return time.thread_time() - began
        self.is_done = True
        return time.thread_time() - began


def ignore_cpu_time(seconds: float) -> None:
    """Ignore CPU time of work that the node does for itself."""
