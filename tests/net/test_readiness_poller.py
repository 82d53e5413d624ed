"""Sockets that are watched together: who is called, and what that costs the others."""

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
    """One end of a connection, and what its other end has received, which waits for `enough` bytes."""

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
        self._poller.leave(self.theirs)
        self.ours.close()
        self.theirs.close()


@contextmanager
def clients(poller: ReadinessPoller, count: int, enough: int = 1 << 30) -> Iterator[list[Client]]:
    made = [Client(poller, enough) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


async def test_who_waits_is_called_for_each_that_comes_and_goes_on_when_it_says_so(
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


async def test_who_is_busy_is_not_told_again_and_again_and_loses_nothing(
    poller: ReadinessPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    came = ReadinessPoller._on_readable

    def counted(self: ReadinessPoller, descriptor: int) -> None:
        told.append(descriptor)
        came(self, descriptor)

    monkeypatch.setattr(ReadinessPoller, "_on_readable", counted)
    with clients(poller, 1, enough=1) as (client,):
        client.ours.send(b"a")
        await client.wait()
        client.ours.send(b"b")
        told.clear()
        await wait_all_tasks_blocked(0.05)
        assert len(told) == 1
        await client.wait()
        assert client.got == b"ab"


async def test_what_it_raises_is_raised_where_it_is_waited_for(poller: ReadinessPoller) -> None:
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


async def test_who_waits_hears_that_its_connection_was_closed_here(poller: ReadinessPoller) -> None:
    with clients(poller, 1) as (client,):
        heard = []

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await client.wait()
            heard.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            poller.leave(client.theirs)
        assert heard


async def test_one_that_ends_its_own_connection_ends_nobody_elses(poller: ReadinessPoller) -> None:
    """What has come of its descriptor, which somebody new may have by then, is not theirs."""
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


async def test_those_who_have_asked_at_the_same_time_are_answered_behind_all_of_them(
    poller: ReadinessPoller,
) -> None:
    """So that a client which goes to sleep in between is woken once."""
    done: list[str] = []

    def note(what: str, client: Client) -> bool:
        if what == "take":
            client.take()
        done.append(what)
        return False

    with clients(poller, 5) as made:
        async with trio.open_nursery() as nursery:
            for each in made:
                take, answer = partial(note, "take", each), partial(note, "answer", each)
                nursery.start_soon(poller.until, each.theirs, take, answer)
            await wait_all_tasks_blocked()
            for each in made:
                each.ours.send(b"a")
            await wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
    assert done == ["take"] * 5 + ["answer"] * 5


async def test_who_is_to_go_on_after_its_answer_does_so(poller: ReadinessPoller) -> None:
    with clients(poller, 1) as (client,):
        client.ours.send(b"a")
        await poller.until(client.theirs, client.take, lambda: True)
        assert client.got == b"a"


class Passes(trio.abc.Instrument):
    """How often the event loop has looked for what is next."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_many_that_come_at_once_leave_the_event_loop_to_others(
    poller: ReadinessPoller,
) -> None:
    passes = Passes()
    seen: list[int] = []

    def take(client: Client) -> bool:
        client.take()
        ends_at = trio.current_time() + POLL_SECONDS_MAX
        while trio.current_time() <= ends_at:
            pass
        seen.append(passes.count)
        return False

    with clients(poller, 20) as made:
        async with trio.open_nursery() as nursery:
            for each in made:
                nursery.start_soon(poller.until, each.theirs, partial(take, each), send_nothing)
            await wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(passes)
            for each in made:
                each.ours.send(b"a")
            await wait_all_tasks_blocked(0.01)
            trio.lowlevel.remove_instrument(passes)
            nursery.cancel_scope.cancel()
    assert len(seen) == len(made)
    assert len(set(seen)) == len(made), "each had a pass of its own"


class Steps(trio.abc.Instrument):
    """How often tasks of a name go on."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = name

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith(self._name)


async def test_a_request_that_waits_for_nothing_takes_no_turn_of_its_own(broker: Broker) -> None:
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
