"""Long work beside clients who want their turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from enum import Enum, auto
from heapq import merge
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

import trio

from .timed_steps import in_timed_steps

Item = TypeVar("Item")
Result = TypeVar("Result")

Wanted: TypeAlias = Callable[[], Awaitable[None]] | None
"""What work that comes in pieces wants to be awaited before it goes on; None for nothing."""

Later: TypeAlias = Coroutine[object, None, Result]
"""Unfinished work that returns a result when it is awaited."""

SLICE_SECONDS = 0.0005
REST = 4
"""How many times as long as a slice of work took the event loop is left to others."""
SORTED_AT_ONCE = 1000
"""Of what is sorted in turns: a fraction of a millisecond."""
STEP_REST = 1.5
"""Each of `Steps` is to have so many times as much time as it takes."""
BURST_SECONDS = 0.001
"""How far they may be ahead of that: two milliseconds of them in one pass."""
TURN_SECONDS = 0.005
"""Maximum time for which one client keeps the event loop; see `TurnQueue` for how many clients do."""
STALLED_TURN_SECONDS = 0.05
"""Time beyond `TURN_SECONDS` after which a time slice ends, however little CPU time it used."""
QUIET_SECONDS = 1.0
"""Time without a wait in the `TurnQueue` after which a client waits in its `Line.QUIET`."""


class Slices:
    """Divides long work in the event loop into slices with rests between them.

    Args:
        rest: Length of a rest, as a multiple of the slice before it.
        resting: Lock that several tasks share if their number is not bounded. One of them rests at a
            time, and so one of them works at a time, for `1 / rest` of the time at most.
    """

    def __init__(self, *, rest: float = REST, resting: trio.Lock | None = None) -> None:
        self._began = trio.current_time()
        self._rest = rest
        self._resting = resting

    async def pause(self) -> None:
        """Rest, if the work since the last rest was worth one."""
        worked = trio.current_time() - self._began
        if worked > SLICE_SECONDS:
            if self._resting is None:
                await trio.sleep(worked * self._rest)
            else:
                async with self._resting:
                    await trio.sleep(worked * self._rest)
            self._began = trio.current_time()

    async def finish(self, work: Generator[Wanted, None, Result]) -> Result:
        """Do work that comes in pieces, with rests between them, and return its result."""
        while True:
            try:
                wanted = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if wanted is None:
                await self.pause()
            else:
                await wanted()
                self._began = trio.current_time()


class Line(Enum):
    """One of the lines of a `TurnQueue`."""

    QUIET = auto()
    """Clients that have not waited for the last `QUIET_SECONDS`."""
    FIRST = auto()
    """Clients that have not waited before in the same request."""
    AGAIN = auto()
    """Clients with long requests."""


class TurnQueue:
    """The clients that have used their time slice and want another one.

    One client goes on in each pass of the event loop, so a pass takes about one time slice however
    many clients wait. The three lines take turns: a client that sends little does not wait for all
    clients with long requests, or for all the new connections of a client that sends much.

    Args:
        cpu_seconds: Clock of the CPU time that the event loop's thread has used, in seconds.
    """

    def __init__(self, *, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self.cpu_seconds = cpu_seconds
        self._lines: dict[Line, deque[trio.Event]] = {line: deque() for line in Line}
        """The line that was served last is the last one."""
        self._called: trio.Event | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def is_empty(self) -> bool:
        """Return True if no client waits."""
        return self._called is None

    async def wait(self, line: Line) -> None:
        """Wait for one pass of the event loop, and for the clients that came before."""
        waiting = self._lines[line]
        mine = trio.Event()
        waiting.append(mine)
        if self._called is None:
            self._call_next()
        try:
            await mine.wait()
        finally:
            waiting.remove(mine)
            # The next one goes on in the next pass, whatever this one does in its turn.
            if self._called is mine:
                self._call_next()

    def _call_next(self) -> None:
        self._called = None
        for line, waiting in self._lines.items():
            if waiting:
                self._lines[line] = self._lines.pop(line)
                self._called = waiting[0]
                self._called.set()
                return


class Steps:
    """Short work that many may want at the same moment, as handshakes are.

    It is done at once as long as it takes no more than a part of the event loop's time; beyond that one
    step is done in each pass of the loop, in the order in which they were asked for. So who comes alone
    waits for nothing, and a pass has some milliseconds of such work at most, however many come.
    """

    def __init__(self) -> None:
        self._queue = TurnQueue()
        self._rested_at = 0.0
        """When the steps so far have had their rests."""

    async def run(self, step: Callable[[], Result]) -> Result:
        """Do one step, and return what comes of it."""
        if not self._queue.is_empty or self._rested_at > trio.current_time() + BURST_SECONDS:
            await self._queue.wait(Line.FIRST)
        began = trio.current_time()
        try:
            return step()
        finally:
            ended = trio.current_time()
            rested = max(self._rested_at, began) + (ended - began) * STEP_REST
            self._rested_at = min(rested, ended + 2 * BURST_SECONDS)


class Turn:
    """What one client does before the others have theirs: a number of requests, or a part of a
    large one.

    Parameters: `queue` is where it waits for its next turn.

    Who goes over what a client sent, or over all that there is, goes over `each` of it, or writes
    the work as a generator that `run` carries out: that is for requests which are asked thousands of
    times in a second, because little work then costs no more than a plain call.
    """

    __slots__ = (
        "_cpu_ends_at",
        "_ends_at",
        "_paused_at",
        "_paused_cpu",
        "_queue",
        "_waited",
        "_waited_at",
    )

    def __init__(self, queue: TurnQueue) -> None:
        self._queue = queue
        self._waited_at = trio.current_time()
        """When the client last waited in the queue, or connected, in seconds."""
        self._paused_at = self._paused_cpu = 0.0
        """Times in seconds at which the work last began to wait; see `without_waits`."""
        self.begin()

    def begin(self) -> None:
        """A first turn begins: of what has just come."""
        self._waited = False
        self._start()

    def _start(self) -> None:
        self._ends_at = trio.current_time() + TURN_SECONDS
        # Reading the CPU clock costs as much as a small request can gain while nobody waits.
        queue = self._queue
        self._cpu_ends_at = 0.0 if queue.is_empty else queue.cpu_seconds() + TURN_SECONDS

    @property
    def is_over(self) -> bool:
        """Return True if the other clients have to be served.

        A client that lost the CPU to threads or other processes goes on: it would wait for a whole
        queue of clients that used their time. If nobody waited when the time slice began, its CPU
        time is not known, and it begins again.
        """
        over = trio.current_time() - self._ends_at
        if over < 0:
            return False
        if over >= STALLED_TURN_SECONDS or self._queue.is_empty:
            return True
        if not self._cpu_ends_at:
            self._start()
        return self._queue.cpu_seconds() >= self._cpu_ends_at

    async def pause(self) -> None:
        """Let the others have their turn, if this one is over."""
        if self.is_over:
            await self.next()

    async def next(self) -> None:
        """Let the others have their turn, and begin another one."""
        await self._queue.wait(self._line())
        self._waited = True
        self._waited_at = trio.current_time()
        self._start()

    def _line(self) -> Line:
        if self._waited:
            return Line.AGAIN
        is_quiet = trio.current_time() - self._waited_at > QUIET_SECONDS
        return Line.QUIET if is_quiet else Line.FIRST

    async def without_waits(self, work: Awaitable[Result]) -> Result:
        """Await work. While it waits, for example for a thread, the time slice does not go on."""
        self._paused(trio.current_time())
        return await in_timed_steps(work, self._resumed, self._paused)

    def _resumed(self, now: float) -> None:
        self._ends_at += now - self._paused_at
        if self._cpu_ends_at:
            self._cpu_ends_at += self._queue.cpu_seconds() - self._paused_cpu

    def _paused(self, now: float) -> None:
        self._paused_at = now
        if self._cpu_ends_at:
            self._paused_cpu = self._queue.cpu_seconds()

    def each(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """The items one after the other, with a pause behind each."""
        return _Each(self, items)

    async def in_order(
        self, items: Iterable[Item], name_of: Callable[[Item], str | None]
    ) -> Iterator[str]:
        """The names of items in rising order, sorted with pauses: the items must not change.

        Parameters: `name_of` gives None for an item that is left out.
        """
        runs: list[list[str]] = []
        left = iter(items)
        while some := list(islice(left, SORTED_AT_ONCE)):
            runs.append(sorted(name for name in map(name_of, some) if name is not None))
            await self.pause()
        return merge(*runs)

    def run(self, work: Generator[Wanted, None, Result]) -> Result | Later[Result]:
        """Do work that comes in pieces: all of it if this turn is long enough, else what fits.

        Returns its result, or what does the rest of it when awaited.
        """
        try:
            while True:
                wanted = next(work)
                if wanted is not None or self.is_over:
                    return self.finish(work, wanted)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def finish(self, work: Generator[Wanted, None, Result], wanted: Wanted = None) -> Result:
        """Do work that comes in pieces, with a pause behind each, or what it wants to be awaited.

        Parameters: `wanted` is what it has wanted by now. The next piece follows at once, if nothing.
        """
        if wanted is not None:
            await self.give_way(wanted)
        while True:
            try:
                wanted = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self.give_way(wanted)

    async def give_way(self, wanted: Wanted) -> None:
        """Await what work wants before it goes on; others have their turn meanwhile, or now."""
        if wanted is None:
            await self.pause()
        else:
            await wanted()
            self._start()


class _Each(Generic[Item]):
    """Not an asynchronous generator, which somebody would have to close."""

    __slots__ = ("_items", "_turn")

    def __init__(self, turn: Turn, items: Iterable[Item]) -> None:
        self._turn = turn
        self._items = iter(items)

    def __aiter__(self) -> _Each[Item]:
        return self

    async def __anext__(self) -> Item:
        for item in self._items:
            if self._turn.is_over:
                await self._turn.pause()
            return item
        raise StopAsyncIteration
