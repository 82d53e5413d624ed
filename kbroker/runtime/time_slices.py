"""Fair sharing of the event loop: time slices of clients, duty cycles of background work."""

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

# Function that divided work needs to await before its next piece, or None.
Wanted: TypeAlias = Callable[[], Awaitable[None]] | None

# Unfinished work that returns a result when it is awaited.
Later: TypeAlias = Coroutine[object, None, Result]

# Seconds of work above which a `DutyCycle` rests.
WORK_SECONDS = 0.0005
# Length of a rest of a `DutyCycle`, as a multiple of the slice before the rest.
REST = 4
# Items to sort per piece (well under 1 ms).
SORTED_AT_ONCE = 1000
# Length of the rest after a step of a `StepThrottle`, as a multiple of the step.
STEP_REST = 1.5
# Seconds by which steps may be ahead of their rests (2 ms of steps per iteration).
BURST_SECONDS = 0.001
# Maximum seconds for which one client keeps the event loop; see `FairQueue` for several clients.
TIME_SLICE_SECONDS = 0.005
# Seconds beyond `TIME_SLICE_SECONDS` after which a time slice ends, even if it used little CPU
# time.
STALLED_TIME_SLICE_SECONDS = 0.05
# Seconds without a wait in the `FairQueue` after which a client waits in `Line.QUIET`.
QUIET_SECONDS = 1.0


class DutyCycle:
    """Divides long work in the event loop into slices with rests between them.

    Args:
        rest: Length of a rest, as a multiple of the slice before it.
        resting: Lock that several tasks share if their number is not bounded. One of them rests at a
            time, and so one of them works at a time, for `1 / rest` of the time at most.
    """

    def __init__(self, *, rest: float = REST, resting: trio.Lock | None = None) -> None:
        self._began = trio.current_time()
        # Time at which the work last began to wait; see `without_waits`.
        self._paused_at = 0.0
        self._rest = rest
        self._resting = resting

    async def pause(self) -> None:
        """Rest if the work since the last rest took longer than `WORK_SECONDS`."""
        worked = trio.current_time() - self._began
        if worked > WORK_SECONDS:
            if self._resting is None:
                await trio.sleep(worked * self._rest)
            else:
                async with self._resting:
                    await trio.sleep(worked * self._rest)
            self._began = trio.current_time()

    async def without_waits(self, work: Awaitable[Result]) -> Result:
        """Await work; the time for which it waits, for example for a response, does not count."""
        self._paused_at = trio.current_time()
        return await in_timed_steps(work, self._on_resumed, self._on_paused)

    def _on_resumed(self, now: float) -> None:
        self._began += now - self._paused_at

    def _on_paused(self, now: float) -> None:
        self._paused_at = now

    def restart(self) -> None:
        """Begin a slice now, because the task waited for something else since the last rest."""
        self._began = trio.current_time()

    async def finish(self, work: Generator[Wanted, None, Result]) -> Result:
        """Do divided work with rests between its pieces, and return its result."""
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
    """One of the lines of a `FairQueue`."""

    # Clients that have not waited for the last `QUIET_SECONDS`.
    QUIET = auto()
    # Clients that have not waited before in the same request.
    FIRST = auto()
    # Clients with long requests.
    AGAIN = auto()


class FairQueue:
    """Queue of clients that have used their time slice and want another one.

    One client continues in each event-loop iteration, so an iteration takes about one time slice
    however many clients wait. The three lines are served in turn: a client that sends little does
    not wait for all clients with long requests, or for all new connections of a client that sends
    much.

    Args:
        cpu_seconds: Clock of the CPU time that the event loop's thread has used, in seconds.
    """

    def __init__(self, *, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self.cpu_seconds = cpu_seconds
        # Waiting clients by line; the line that was served last is the last one.
        self._lines: dict[Line, deque[trio.Event]] = {line: deque() for line in Line}
        self._called: trio.Event | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def is_empty(self) -> bool:
        """True if no client waits."""
        return self._called is None

    async def wait(self, line: Line) -> None:
        """Wait for the next event-loop iteration, and for the clients that came before."""
        waiting = self._lines[line]
        mine = trio.Event()
        waiting.append(mine)
        if self._called is None:
            self._call_next()
        try:
            await mine.wait()
        finally:
            waiting.remove(mine)
            # The next client continues in the next iteration, whatever this client does until then.
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


class StepThrottle:
    """Limits the share of the event loop that short work of many clients takes, such as handshakes.

    Steps run at once while they take less than a fraction of the event loop's time. Beyond that,
    one step runs in each event-loop iteration, in the order of the calls. A single client does not
    wait, and an iteration has some milliseconds of such work at most.
    """

    def __init__(self) -> None:
        self._queue = FairQueue()
        # Time in seconds at which the rests of all steps so far are over.
        self._rested_at = 0.0

    async def run(self, step: Callable[[], Result]) -> Result:
        """Run one step and return its result."""
        if not self._queue.is_empty or self._rested_at > trio.current_time() + BURST_SECONDS:
            await self._queue.wait(Line.FIRST)
        began = trio.current_time()
        try:
            return step()
        finally:
            ended = trio.current_time()
            rested = max(self._rested_at, began) + (ended - began) * STEP_REST
            self._rested_at = min(rested, ended + 2 * BURST_SECONDS)


class TimeSlice:
    """The time slices of one client: it handles some requests, or a part of a large one, in each.

    Code that processes all items of a request, or of the cluster, iterates with `each`. Handlers of
    requests that clients send thousands of times a second write the work as a generator for `run`
    instead: short work then costs no more than a plain call.

    Args:
        queue: Queue in which the client waits for its next time slice.
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

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        # Time in seconds at which the client last waited in the queue, or connected.
        now = self._waited_at = trio.current_time()
        # Times in seconds at which the work last began to wait; see `without_waits`.
        self._paused_at = self._paused_cpu = 0.0
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin the first time slice for newly received requests.

        Args:
            now: Time of the event loop's clock, in seconds.
        """
        self._waited = False
        self._start(now)

    def _start(self, now: float) -> None:
        self._ends_at = now + TIME_SLICE_SECONDS
        # Skip the CPU clock if no client waits: reading it costs as much as a small request.
        queue = self._queue
        self._cpu_ends_at = 0.0 if queue.is_empty else queue.cpu_seconds() + TIME_SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """True if the other clients have to be served.

        A client that lost the CPU to threads or other processes continues, because it would wait
        for all clients that have used their time. If no client waited when the time slice began,
        its CPU time is unknown, and the time slice begins again.
        """
        over = trio.current_time() - self._ends_at
        if over < 0:
            return False
        if over >= STALLED_TIME_SLICE_SECONDS or self._queue.is_empty:
            return True
        if not self._cpu_ends_at:
            self._start(trio.current_time())
        return self._queue.cpu_seconds() >= self._cpu_ends_at

    async def pause(self) -> None:
        """Let other clients run if this time slice is over."""
        if self.is_over:
            await self.next()

    async def next(self) -> None:
        """Let other clients run, then begin another time slice."""
        await self._queue.wait(self._line())
        self._waited = True
        self._waited_at = trio.current_time()
        self._start(self._waited_at)

    def _line(self) -> Line:
        if self._waited:
            return Line.AGAIN
        is_quiet = trio.current_time() - self._waited_at > QUIET_SECONDS
        return Line.QUIET if is_quiet else Line.FIRST

    async def without_waits(self, work: Awaitable[Result]) -> Result:
        """Await work; the time for which it waits, for example for a thread, does not count."""
        self._on_paused(trio.current_time())
        return await in_timed_steps(work, self._on_resumed, self._on_paused)

    def _on_resumed(self, now: float) -> None:
        self._ends_at += now - self._paused_at
        if self._cpu_ends_at:
            self._cpu_ends_at += self._queue.cpu_seconds() - self._paused_cpu

    def _on_paused(self, now: float) -> None:
        self._paused_at = now
        if self._cpu_ends_at:
            self._paused_cpu = self._queue.cpu_seconds()

    def each(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """Iterate over the items, with a pause after each."""
        return _Each(self, items)

    async def in_order(
        self, items: Iterable[Item], name_of: Callable[[Item], str | None]
    ) -> Iterator[str]:
        """Return the names of items in rising order, sorted with pauses.

        Args:
            items: The items, which must not change in the meantime.
            name_of: Returns the name of an item, or None to omit the item.
        """
        runs: list[list[str]] = []
        left = iter(items)
        while some := list(islice(left, SORTED_AT_ONCE)):
            runs.append(sorted(name for name in map(name_of, some) if name is not None))
            await self.pause()
        return merge(*runs)

    def run(self, work: Generator[Wanted, None, Result]) -> Result | Later[Result]:
        """Do divided work until it ends or the time slice is over.

        Returns:
            The result, or a coroutine that does the rest and returns the result.
        """
        try:
            while True:
                wanted = next(work)
                if wanted is not None or self.is_over:
                    return self.finish(work, wanted)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def finish(self, work: Generator[Wanted, None, Result], wanted: Wanted = None) -> Result:
        """Do divided work, with a pause after each piece, and return its result.

        Args:
            work: The work. Before the next piece, it may ask the caller to await something.
            wanted: Function that the work has asked to await, or None to do the next piece at once.
        """
        if wanted is not None:
            await self.await_or_pause(wanted)
        while True:
            try:
                wanted = next(work)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self.await_or_pause(wanted)

    async def await_or_pause(self, wanted: Wanted) -> None:
        """Await what the work needs before it continues, or pause if it needs nothing."""
        if wanted is None:
            await self.pause()
        else:
            await wanted()
            self._start(trio.current_time())


class _Each(Generic[Item]):
    """Asynchronous iterator. Unlike an asynchronous generator, it need not be closed."""

    __slots__ = ("_items", "_time_slice")

    def __init__(self, time_slice: TimeSlice, items: Iterable[Item]) -> None:
        self._time_slice = time_slice
        self._items = iter(items)

    def __aiter__(self) -> _Each[Item]:
        return self

    async def __anext__(self) -> Item:
        for item in self._items:
            if self._time_slice.is_over:
                await self._time_slice.pause()
            return item
        raise StopAsyncIteration
