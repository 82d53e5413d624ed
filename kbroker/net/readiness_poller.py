"""One epoll for the sockets of all clients of a node.

A task that waits for its own socket costs the event loop 10 µs per wake-up: trio registers the
socket, queues the task and resumes it. With many clients that send little each, that is a third of
the broker's work. So one task waits for a separate epoll, to which all sockets are added
permanently. A plain call serves a client whose requests need no waiting. The task of the client
runs only if it has to wait.

A response wakes the client's process, which costs as much again if the process sleeps. So clients
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

# A function that never waits. It returns True to resume the waiter, which raises its exceptions.
Step: TypeAlias = Callable[[], bool]

# Called with the outcome when a step returned True or raised an exception.
OnDone: TypeAlias = Callable[[outcome.Outcome[None]], None]

# Seconds for which clients are served in a row before responses are sent and other tasks run.
POLL_SECONDS_MAX = 0.001
HAS_EPOLL = hasattr(select, "epoll")


def send_nothing() -> bool:
    """Send nothing: the default `respond` step."""
    return False


class _Waiter(NamedTuple):
    """Waiter for bytes of one socket, with its steps."""

    descriptor: int
    take: Step
    respond: Step
    on_done: OnDone


class ReadinessPoller:
    """The poller of one node. Start `run` in a task, and call `close` when no waiter is left."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: set[int] = set()
        self._waiters: dict[int, _Waiter] = {}
        self._unsent: list[_Waiter] = []

    async def run(self) -> None:
        """Call the steps of waiters whose sockets are readable, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            ready = self._epoll.poll(0)
            # Most wake-ups are for one descriptor, and a reading of the clock costs as much as a step.
            ends_at = trio.current_time() + POLL_SECONDS_MAX if len(ready) > 1 else math.inf
            for descriptor, _ in ready:
                if self._unsent and trio.current_time() > ends_at:
                    self._respond()
                    await trio.lowlevel.checkpoint()
                    ends_at = trio.current_time() + POLL_SECONDS_MAX
                self._on_readable(descriptor)
            self._respond()

    def _on_readable(self, descriptor: int) -> None:
        waiter = self._waiters.get(descriptor)
        if waiter is None:
            # The connection is busy and will check its socket later. Until then, epoll would report
            # the socket repeatedly.
            self._forget(descriptor)
        else:
            self._call(waiter, waiter.take)
            self._unsent.append(waiter)

    def _respond(self) -> None:
        for waiter in self._unsent:
            if self._waiters.get(waiter.descriptor) is waiter:
                self._call(waiter, waiter.respond)
        self._unsent.clear()

    def _call(self, waiter: _Waiter, step: Step) -> None:
        result: outcome.Outcome[None]
        try:
            if not step():
                return
            result = outcome.Value(None)
        except Exception as error:  # noqa: BLE001  # the waiter raises it
            result = outcome.Error(error)
        # The step may have closed its own connection.
        if self._waiters.get(waiter.descriptor) is waiter:
            del self._waiters[waiter.descriptor]
            waiter.on_done(result)
        del result  # an error's traceback references this frame (reference cycle)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            self._epoll.unregister(descriptor)

    async def until(self, connected: socket.socket, take: Step, respond: Step) -> None:
        """Call `take` each time that the socket is readable, and then `respond`.

        Returns when `take` or `respond` returns True, or when `wake` is called.

        Args:
            connected: The socket.
            take: Receives and handles requests.
            respond: Sends responses, together with those of other clients.

        Raises:
            ClosedResourceError: `unwatch` was called.
        """
        descriptor = connected.fileno()
        task = trio.lowlevel.current_task()
        self.watch(connected, take, respond, partial(trio.lowlevel.reschedule, task))

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            del self._waiters[descriptor]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def watch(self, connected: socket.socket, take: Step, respond: Step, on_done: OnDone) -> None:
        """Do the same as `until` without a task; `on_done` gets the result or the exception."""
        descriptor = connected.fileno()
        if descriptor not in self._watched:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._watched.add(descriptor)
        self._waiters[descriptor] = _Waiter(descriptor, take, respond, on_done)

    def wake(self, connected: socket.socket) -> bool:
        """Resume the waiter of a socket now. Return False if there was none."""
        return self._end_wait(connected.fileno(), outcome.Value(None))

    def unwatch(self, connected: socket.socket) -> None:
        """Stop watching a socket. Call this before it is closed."""
        descriptor = connected.fileno()
        self._forget(descriptor)
        closed = trio.ClosedResourceError("the broker closed the connection")
        self._end_wait(descriptor, outcome.Error(closed))

    def _end_wait(self, descriptor: int, result: outcome.Outcome[None]) -> bool:
        waiter = self._waiters.pop(descriptor, None)
        if waiter is None:
            return False
        waiter.on_done(result)
        return True

    def close(self) -> None:
        """Close the epoll descriptor."""
        self._epoll.close()
