"""One epoll for the sockets of all clients of a node.

A task that waits for its own socket costs the event loop 10 µs per wake-up: trio registers the socket,
queues the task and resumes it. With many clients that send little each, that is a third of the broker's
work. So one task waits for a separate epoll, to which all sockets are added permanently. A plain call
serves a client whose requests need no waiting. The task of the client runs only if it has to wait.

A response wakes the client's process, which costs as much again if that has gone to sleep. So clients
whose requests arrive together get their responses together.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import outcome
import trio

Step: TypeAlias = Callable[[], bool]
"""Does something without waiting. Returns True to resume the waiter, which also raises its exceptions."""

GoOn: TypeAlias = Callable[[outcome.Outcome[None]], None]
"""Called with the outcome when one of the steps returned True or raised."""

POLL_SECONDS_MAX = 0.001
"""Time for which clients are served in a row before responses are sent and other tasks run."""
HAS_EPOLL = hasattr(select, "epoll")


def nothing() -> bool:
    """There is nobody to be answered."""
    return False


class _Waiting(NamedTuple):
    """Who waits for what comes."""

    descriptor: int
    take: Step
    answer: Step
    go_on: GoOn


class ReadinessPoller:
    """The poller of one node. Start `run` in a task, and call `close` when there is no waiter left."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: set[int] = set()
        self._waiting: dict[int, _Waiting] = {}
        self._unanswered: list[_Waiting] = []

    async def run(self) -> None:
        """Call whoever has something to take, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            ready = self._epoll.poll(0)
            # Most wake-ups are for one descriptor, and a reading of the clock costs as much as a step.
            ends_at = trio.current_time() + POLL_SECONDS_MAX if len(ready) > 1 else math.inf
            for descriptor, _ in ready:
                if self._unanswered and trio.current_time() > ends_at:
                    self._answer()
                    await trio.lowlevel.checkpoint()
                    ends_at = trio.current_time() + POLL_SECONDS_MAX
                self._came(descriptor)
            self._answer()

    def _came(self, descriptor: int) -> None:
        waiting = self._waiting.get(descriptor)
        if waiting is None:
            # Whoever it is for is busy, and will look for itself; it would be told again and again.
            self._forget(descriptor)
        else:
            self._do(waiting, waiting.take)
            self._unanswered.append(waiting)

    def _answer(self) -> None:
        for waiting in self._unanswered:
            if self._waiting.get(waiting.descriptor) is waiting:
                self._do(waiting, waiting.answer)
        self._unanswered.clear()

    def _do(self, waiting: _Waiting, step: Step) -> None:
        result: outcome.Outcome[None]
        try:
            if not step():
                return
            result = outcome.Value(None)
        except Exception as error:  # noqa: BLE001  # whoever waits raises it
            result = outcome.Error(error)
        # What was done may have ended its own connection.
        if self._waiting.get(waiting.descriptor) is waiting:
            del self._waiting[waiting.descriptor]
            waiting.go_on(result)
        del result  # an error knows this frame, and together they would be a circle of objects

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            self._epoll.unregister(descriptor)

    async def until(self, connected: socket.socket, take: Step, answer: Step) -> None:
        """Call `take` each time that something has come by a socket, and then `answer`, until one of them
        returns True, or somebody calls `let_go`.

        Raises trio.ClosedResourceError when `leave` is called meanwhile.
        """
        descriptor = connected.fileno()
        task = trio.lowlevel.current_task()
        self.watch(connected, take, answer, partial(trio.lowlevel.reschedule, task))

        def give_up(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            del self._waiting[descriptor]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    def watch(self, connected: socket.socket, take: Step, answer: Step, go_on: GoOn) -> None:
        """As `until` without a task that waits: `go_on` is told what that would return or raise."""
        descriptor = connected.fileno()
        if descriptor not in self._watched:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._watched.add(descriptor)
        self._waiting[descriptor] = _Waiting(descriptor, take, answer, go_on)

    def let_go(self, connected: socket.socket) -> bool:
        """Have who waits for a socket go on at once; whether somebody did."""
        return self._end_waiting(connected.fileno(), outcome.Value(None))

    def leave(self, connected: socket.socket) -> None:
        """Watch a socket no more; call this before it is closed."""
        descriptor = connected.fileno()
        self._forget(descriptor)
        closed = trio.ClosedResourceError("the connection was closed here")
        self._end_waiting(descriptor, outcome.Error(closed))

    def _end_waiting(self, descriptor: int, result: outcome.Outcome[None]) -> bool:
        waiting = self._waiting.pop(descriptor, None)
        if waiting is None:
            return False
        waiting.go_on(result)
        return True

    def close(self) -> None:
        """Give its descriptor back."""
        self._epoll.close()
