"""Tests of the poller that watches many sockets: its callbacks and its fairness."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.broker import Broker
from kbroker.net.readiness_poller import HAS_EPOLL, POLL_SECONDS_MAX, ReadinessPoller, send_nothing
from kbroker.protocol.api_keys import ApiKey

from ..wire import batch, connected, create_topic, produce_request

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the system has no epoll")


@pytest.fixture
async def poller() -> AsyncIterator[ReadinessPoller]:
    watched = ReadinessPoller()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        yield watched
        nursery.cancel_scope.cancel()
    watched.close()


class Client:
    """A socket pair, and the data that its watched end received until it has `enough` bytes."""

    def __init__(self, poller: ReadinessPoller, enough: int = 1 << 30) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.got = b""
        self.calls = 0
        self.enough = enough
        self._poller = poller

    def take(self) -> bool:
        self.calls += 1
        self.got += self.theirs.recv(100)
        return len(self.got) >= self.enough

    async def wait(self) -> None:
        await self._poller.until(self.theirs, self.take, send_nothing)

    def close(self) -> None:
        self._poller.unwatch(self.theirs)
        self.ours.close()
        self.theirs.close()


@contextmanager
def clients(poller: ReadinessPoller, count: int, enough: int = 1 << 30) -> Iterator[list[Client]]:
    created = [Client(poller, enough) for _ in range(count)]
    try:
        yield created
    finally:
        for each in created:
            each.close()


async def test_waiting_task_resumes_when_callback_returns_true(
    poller: ReadinessPoller,
) -> None:
    with clients(poller, 1, enough=2) as (client,):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.wait)
            await wait_all_tasks_blocked(0.01)
            client.ours.send(b"a")
            await wait_all_tasks_blocked(0.01)
            assert client.got == b"a"
            assert nursery.child_tasks
            client.ours.send(b"b")
        assert client.got == b"ab"
        assert client.calls == 2


async def test_busy_task_is_notified_once_and_loses_no_data(
    poller: ReadinessPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: list[int] = []
    on_readable = ReadinessPoller._on_readable

    def counted(self: ReadinessPoller, descriptor: int) -> None:
        notified.append(descriptor)
        on_readable(self, descriptor)

    monkeypatch.setattr(ReadinessPoller, "_on_readable", counted)
    with clients(poller, 1, enough=1) as (client,):
        client.ours.send(b"a")
        await client.wait()
        client.ours.send(b"b")
        notified.clear()
        await wait_all_tasks_blocked(0.05)
        assert len(notified) == 1
        await client.wait()
        assert client.got == b"ab"


async def test_callback_exception_is_raised_in_waiting_task(poller: ReadinessPoller) -> None:
    with clients(poller, 2, enough=1) as (client, other):

        def fail() -> bool:
            raise ConnectionResetError("gone")

        client.ours.send(b"a")
        with pytest.raises(ConnectionResetError, match="gone"):
            await poller.until(client.theirs, fail, send_nothing)
        other.ours.send(b"a")
        await other.wait()
        await client.wait()
        assert client.got == other.got == b"a"


async def test_waiting_task_fails_when_its_socket_is_closed_locally(
    poller: ReadinessPoller,
) -> None:
    with clients(poller, 1) as (client,):
        failed = []

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await client.wait()
            failed.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            poller.unwatch(client.theirs)
        assert failed


async def test_closing_a_socket_in_its_callback_affects_no_other_socket(
    poller: ReadinessPoller,
) -> None:
    """A new socket may reuse the descriptor; it must not get events of the closed one."""
    with clients(poller, 2, enough=1) as (client, other):
        scope = trio.CancelScope()

        def leave() -> bool:
            scope.cancel()
            client.close()
            return True

        client.ours.send(b"a")
        with scope:
            await poller.until(client.theirs, leave, send_nothing)
        assert scope.cancelled_caught
        with clients(poller, 1, enough=1) as (new,):
            other.ours.send(b"b")
            new.ours.send(b"c")
            await other.wait()
            await new.wait()
            assert (other.got, new.got) == (b"b", b"c")


async def test_simultaneous_requests_are_all_read_before_responses_are_sent(
    poller: ReadinessPoller,
) -> None:
    """A client that sleeps between its requests is then woken only once."""
    done: list[str] = []

    def note(event: str, client: Client) -> bool:
        if event == "take":
            client.take()
        done.append(event)
        return False

    with clients(poller, 5) as created:
        async with trio.open_nursery() as nursery:
            for each in created:
                take, respond = partial(note, "take", each), partial(note, "respond", each)
                nursery.start_soon(poller.until, each.theirs, take, respond)
            await wait_all_tasks_blocked()
            for each in created:
                each.ours.send(b"a")
            await wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
    assert done == ["take"] * 5 + ["respond"] * 5


async def test_waiting_task_resumes_when_response_callback_returns_true(
    poller: ReadinessPoller,
) -> None:
    with clients(poller, 1) as (client,):
        client.ours.send(b"a")
        await poller.until(client.theirs, client.take, lambda: True)
        assert client.got == b"a"


class Iterations(trio.abc.Instrument):
    """A trio instrument that counts event-loop iterations."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_simultaneous_slow_callbacks_run_in_separate_iterations(
    poller: ReadinessPoller,
) -> None:
    iterations = Iterations()
    seen: list[int] = []

    def take(client: Client) -> bool:
        client.take()
        ends_at = trio.current_time() + POLL_SECONDS_MAX
        while trio.current_time() <= ends_at:
            pass
        seen.append(iterations.count)
        return False

    with clients(poller, 20) as created:
        async with trio.open_nursery() as nursery:
            for each in created:
                nursery.start_soon(poller.until, each.theirs, partial(take, each), send_nothing)
            await wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(iterations)
            for each in created:
                each.ours.send(b"a")
            await wait_all_tasks_blocked(0.01)
            trio.lowlevel.remove_instrument(iterations)
            nursery.cancel_scope.cancel()
    assert len(seen) == len(created)
    assert len(set(seen)) == len(created), "callbacks share an event-loop iteration"


class Steps(trio.abc.Instrument):
    """A trio instrument that counts the steps of tasks with a certain name."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = name

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith(self._name)


async def test_request_that_does_not_wait_needs_no_task_step(broker: Broker) -> None:
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "orders")
        for _ in range(2):
            await wire.ask(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
        steps = Steps("Server._serve")
        trio.lowlevel.add_instrument(steps)
        for _ in range(20):
            await wire.ask(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
        trio.lowlevel.remove_instrument(steps)
        assert not steps.count
