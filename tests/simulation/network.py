"""A network in memory: hosts, listeners, connections whose bytes take their time.

Within a connection bytes keep their order, as TCP has it; between connections nothing has. A link
is one direction between two hosts. While it is cut, what is sent waits, and goes on when it is
healed: as TCP, which sends again. What is on its way already arrives, also after its sender is gone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.net.readiness_poller import OnDone, Step, send_nothing
from kbroker.storage.files import FileRange

from .seeded import Events, Source

WINDOW_BYTES = 64 * 1024
"""At most so much is on its way in one direction of a connection."""
FAST = (0.0002, 0.002)
SLOW = (0.005, 0.15)
"""How many seconds bytes take, at least and at most."""

Accept = Callable[["Socket", str], Awaitable[None]]
"""Serves a connection; gets the host that it comes from too."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self, link: Link, chance: Random, name: str, events: Events) -> None:
        self.link = link
        self._chance = chance
        self._name = name
        self._events = events
        self._chunks: deque[tuple[float, bytes | None]] = deque()
        self._waiting_bytes = 0
        self._last_arrival = 0.0
        self._change = trio.Event()
        self.reset = False
        self.leads_nowhere = False

    @property
    def room(self) -> int:
        return WINDOW_BYTES - self._waiting_bytes

    def send(self, data: bytes | None) -> None:
        """Send bytes; None for the end."""
        size = "end" if data is None else len(data)
        self._events.note(f"send {self._name} {size}", data or b"")
        if self.leads_nowhere:
            return
        self._waiting_bytes += len(data or b"")
        self._chunks.append((self._arrival(), data))
        self._changed()

    def _arrival(self) -> float:
        if self.link.is_cut:
            return math.inf
        delay = self._chance.uniform(*self.link.seconds)
        self._last_arrival = max(self._last_arrival, trio.current_time() + delay)
        return self._last_arrival

    def resume(self) -> None:
        """The link is healed: what waits for it is sent again."""
        self._chunks = deque(
            (self._arrival() if arrival == math.inf else arrival, data)
            for arrival, data in self._chunks
        )
        self._changed()

    def abort(self) -> None:
        """The receiver learns at once that the connection broke."""
        self.reset = True
        self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()

    async def readable(self) -> None:
        """Wait until there is something for `receive_now`."""
        await trio.lowlevel.checkpoint()
        while not self.reset and (arrival := self._next_arrival()) > trio.current_time():
            with trio.move_on_at(arrival):
                await self._change.wait()

    def _next_arrival(self) -> float:
        return self._chunks[0][0] if self._chunks else math.inf

    def peer_has_closed(self) -> bool:
        """Return True if the end or a reset has arrived."""
        has_end = bool(self._chunks) and self._chunks[-1][1] is None
        return self.reset or (has_end and self._chunks[-1][0] <= trio.current_time())

    def receive_now(self, size: int) -> bytes | None:
        """Up to `size` bytes, none at the end; None while nothing has come. Raises ConnectionResetError."""
        if self.reset:
            raise ConnectionResetError("connection reset by peer")
        if self._next_arrival() > trio.current_time():
            return None
        arrival, data = self._chunks[0]
        if data is None:
            return b""
        self._chunks.popleft()
        if len(data) > size:
            self._chunks.appendleft((arrival, data[size:]))
            data = data[:size]
        self._waiting_bytes -= len(data)
        self._changed()
        return data

    async def room_for_more(self) -> None:
        """Wait until `send` may be called. Raises BrokenPipeError."""
        await trio.lowlevel.checkpoint()
        while self.room <= 0 and not self.reset:
            await self._change.wait()
        if self.reset:
            raise BrokenPipeError("broken pipe")


class Socket:
    """One end of a connection, with what a kernel does for it."""

    def __init__(self, host: str, incoming: _Pipe, outgoing: _Pipe) -> None:
        self.host = host
        self.closed = False
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end. Raises OSError."""
        while True:
            await self.readable()
            data = self.receive_now(size)
            if data is not None:
                return data

    async def readable(self) -> None:
        """Wait until there is something to be received, if only an end or an error."""
        if not self.closed:
            await self._incoming.readable()

    def peer_has_closed(self) -> bool:
        """Return True if the other end has closed."""
        return self.closed or self._incoming.peer_has_closed()

    def receive_now(self, size: int) -> bytes | None:
        """As `receive`, None while nothing has come. Raises OSError."""
        self._check()
        return self._incoming.receive_now(size)

    async def writable(self) -> None:
        """Wait until something can be sent. Raises OSError."""
        self._check()
        await self._outgoing.room_for_more()
        self._check()

    def send(self, data: bytes) -> int:
        """Send as much as there is room for; returns how much. Raises OSError."""
        self._check()
        if self._outgoing.reset:
            raise BrokenPipeError("broken pipe")
        size = min(len(data), self._outgoing.room)
        if size > 0:
            self._outgoing.send(data[:size])
        return max(size, 0)

    def close(self) -> None:
        """End the connection: the other end reads what was sent, then the end."""
        if not self.closed:
            self.closed = True
            self._outgoing.send(None)
            self._incoming.abort()  # what the other end still sends breaks

    def reset(self) -> None:
        """Break the connection for both ends, and lose what is on its way."""
        self.closed = True
        self._incoming.abort()
        self._outgoing.abort()

    def vanish(self) -> None:
        """The machine lost power: the other end hears nothing, and talks to nobody."""
        self.closed = True
        self._incoming.leads_nowhere = True

    def _check(self) -> None:
        if self.closed:
            raise OSError("the connection is closed")


class MemoryStream(trio.abc.Stream):
    """A connection as clients want it."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        left = bytes(data)
        try:
            while left:
                await self.socket.writable()
                left = left[self.socket.send(left) :]
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await self.socket.writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self.socket.receive(max_bytes or WINDOW_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


class MemoryTransport:
    """A connection as the server wants it."""

    has_more = False

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def until(self, take: Step, respond: Step = send_nothing) -> None:
        while True:
            await self._socket.readable()
            if take() or respond():
                return

    def watch(self, take: Step, respond: Step, on_done: OnDone) -> bool:
        return False

    def wake(self) -> bool:
        return False

    def peer_has_closed(self) -> bool:
        return self._socket.peer_has_closed()

    def receive_now(self, size: int) -> bytes | None:
        return self._socket.receive_now(size)

    def receive_into_now(self, buffer: memoryview) -> int | None:
        data = self._socket.receive_now(len(buffer))
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)

    async def writable(self) -> None:
        await self._socket.writable()

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        data = b"".join(map(_bytes_of, parts))
        sent = self._socket.send(data) if data else 0
        return [data[sent:]] if sent < len(data) else []

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        self._socket.reset()


def _bytes_of(part: Any) -> bytes:
    return part.read() if isinstance(part, FileRange) else bytes(part)


class Link:
    """One direction between two hosts."""

    def __init__(self) -> None:
        self.is_cut = False
        self.seconds = FAST
        self.pipes: list[_Pipe] = []
        self.healed = trio.Event()


class Network:
    """All hosts of a simulation and what connects them."""

    def __init__(self, source: Source, events: Events) -> None:
        self._source = source
        self._events = events
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Endpoint, tuple[trio.Nursery, Accept]] = {}
        self._sockets: dict[str, list[Socket]] = {}
        self._vanished: dict[str, list[Socket]] = {}
        self._dials = 0

    def listen(self, endpoint: Endpoint, nursery: trio.Nursery, accept: Accept) -> None:
        """Let connections in: each is served by `accept` in `nursery`.

        A host that lost power and is back knows nothing of its connections, and says so.
        """
        for socket in self._vanished.pop(endpoint.host, []):
            socket.reset()
        self._listeners[endpoint] = nursery, accept

    def refuse(self, endpoint: Endpoint) -> None:
        """Let no more connections in."""
        self._listeners.pop(endpoint, None)

    async def dial(self, host: str, to: Endpoint) -> MemoryStream:
        """Open a connection. Raises OSError; waits for as long as a link is cut."""
        self._dials += 1
        name = f"{host}>{to.host}#{self._dials}"
        chance = self._source.of("dial", name)
        there, back = self.link(host, to.host), self.link(to.host, host)
        for link in (there, back):
            while link.is_cut:
                await link.healed.wait()
            await trio.sleep(chance.uniform(*link.seconds))
        if to not in self._listeners:
            raise ConnectionRefusedError(f"{to} refuses connections")
        nursery, accept = self._listeners[to]
        out, answer = self._pipe(host, to.host, name), self._pipe(to.host, host, f"{name}'")
        near, far = Socket(host, answer, out), Socket(to.host, out, answer)
        self._keep(near, far)
        nursery.start_soon(accept, far, host)
        return MemoryStream(near)

    def _keep(self, *sockets: Socket) -> None:
        for socket in sockets:
            known = self._sockets.setdefault(socket.host, [])
            known[:] = [each for each in known if not each.closed]
            known.append(socket)

    def _pipe(self, host: str, to: str, name: str) -> _Pipe:
        link = self.link(host, to)
        link.pipes = [each for each in link.pipes if not each.reset]
        pipe = _Pipe(link, self._source.of("pipe", name), name, self._events)
        link.pipes.append(pipe)
        return pipe

    # -- bad luck

    def link(self, host: str, to: str) -> Link:
        """What bytes from one host to another take."""
        return self._links.setdefault((host, to), Link())

    def cut(self, host: str, to: str) -> None:
        """Let nothing through in one direction."""
        self.link(host, to).is_cut = True

    def heal(self, host: str, to: str) -> None:
        """Let everything through again, and what waits as well."""
        link = self.link(host, to)
        if link.is_cut:
            link.is_cut = False
            for pipe in link.pipes:
                pipe.resume()
            link.healed.set()
            link.healed = trio.Event()

    def heal_all(self) -> None:
        """Mend every link, and make it fast."""
        for host, to in list(self._links):
            self.link(host, to).seconds = FAST
            self.heal(host, to)

    def reset_between(self, host: str, to: str) -> None:
        """Break the connections that one host opened or serves with another."""
        link = self.link(host, to)
        for socket in self._sockets.get(host, []):
            if socket._outgoing.link is link:
                socket.reset()

    def kill(self, host: str, *, quietly: bool) -> None:
        """A host is gone: its connections break, or, `quietly`, are never heard of again."""
        for endpoint in [each for each in self._listeners if each.host == host]:
            self.refuse(endpoint)
        for socket in self._sockets.pop(host, []):
            if socket.closed:
                continue
            if quietly:
                socket.vanish()
                self._vanished.setdefault(host, []).append(socket)
            else:
                socket.close()
