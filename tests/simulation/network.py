"""An in-memory network: hosts, listeners, and connections with latency.

Bytes keep their order within a connection, as in TCP, but not across connections. A link is one
direction between two hosts. While a link is cut, sent bytes wait until it is healed, like TCP
retransmissions. Bytes in transit still arrive after their sender has stopped.
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

# Maximum bytes in transit in one direction of a connection.
WINDOW_BYTES = 64 * 1024
FAST = (0.0002, 0.002)
# Minimum and maximum latency of a link in seconds.
SLOW = (0.005, 0.15)

# Serves a connection; the second argument is the host that opened it.
Accept = Callable[["Socket", str], Awaitable[None]]


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
        self.is_silenced = False

    @property
    def free_bytes(self) -> int:
        return WINDOW_BYTES - self._waiting_bytes

    def send(self, data: bytes | None) -> None:
        """Send bytes, or with None the end of the stream."""
        size = "end" if data is None else len(data)
        self._events.note(f"send {self._name} {size}", data or b"")
        if self.is_silenced:
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
        """Send the bytes that waited for the link to heal."""
        self._chunks = deque(
            (self._arrival() if arrival == math.inf else arrival, data)
            for arrival, data in self._chunks
        )
        self._changed()

    def abort(self) -> None:
        """Reset the connection for the receiver, without latency."""
        self.reset = True
        self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()

    async def readable(self) -> None:
        """Wait until `receive_now` has a result."""
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
        """Return up to `size` bytes, b"" at the end, or None if none have arrived.

        Raises:
            ConnectionResetError: The connection was reset.
        """
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

    async def writable(self) -> None:
        """Wait until the window has space. Raises BrokenPipeError."""
        await trio.lowlevel.checkpoint()
        while self.free_bytes <= 0 and not self.reset:
            await self._change.wait()
        if self.reset:
            raise BrokenPipeError("broken pipe")


class Socket:
    """One end of a connection, as the kernel implements it."""

    def __init__(self, host: str, incoming: _Pipe, outgoing: _Pipe) -> None:
        self.host = host
        self.closed = False
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self, size: int) -> bytes:
        """Return up to `size` bytes, or b"" at the end. Raises OSError."""
        while True:
            await self.readable()
            data = self.receive_now(size)
            if data is not None:
                return data

    async def readable(self) -> None:
        """Wait for bytes, the end or an error."""
        if not self.closed:
            await self._incoming.readable()

    def peer_has_closed(self) -> bool:
        """Return True if the other end has closed."""
        return self.closed or self._incoming.peer_has_closed()

    def receive_now(self, size: int) -> bytes | None:
        """Return up to `size` bytes, b"" at the end, or None if none are there. Raises OSError."""
        self._check()
        return self._incoming.receive_now(size)

    async def writable(self) -> None:
        """Wait until the send window has space. Raises OSError."""
        self._check()
        await self._outgoing.writable()
        self._check()

    def send(self, data: bytes) -> int:
        """Send as many bytes as the window allows and return their number. Raises OSError."""
        self._check()
        if self._outgoing.reset:
            raise BrokenPipeError("broken pipe")
        size = min(len(data), self._outgoing.free_bytes)
        if size > 0:
            self._outgoing.send(data[:size])
        return max(size, 0)

    def close(self) -> None:
        """Close the connection; the other end still receives the bytes sent before."""
        if not self.closed:
            self.closed = True
            self._outgoing.send(None)
            self._incoming.abort()  # a later send by the other end fails

    def reset(self) -> None:
        """Reset the connection at both ends and drop the bytes in transit."""
        self.closed = True
        self._incoming.abort()
        self._outgoing.abort()

    def vanish(self) -> None:
        """Simulate a power cut: the other end receives nothing more, not even a reset."""
        self.closed = True
        self._incoming.is_silenced = True

    def _check(self) -> None:
        if self.closed:
            raise OSError("the connection is closed")


class MemoryStream(trio.abc.Stream):
    """A trio stream over a socket, for clients."""

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
    """The transport interface of the server over a socket."""

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
    """The hosts of a simulation, their listeners and links."""

    def __init__(self, source: Source, events: Events) -> None:
        self._source = source
        self._events = events
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Endpoint, tuple[trio.Nursery, Accept]] = {}
        self._sockets: dict[str, list[Socket]] = {}
        self._vanished: dict[str, list[Socket]] = {}
        self._dials = 0

    def listen(self, endpoint: Endpoint, nursery: trio.Nursery, accept: Accept) -> None:
        """Accept connections: `accept` serves each one in `nursery`.

        A host that restarts after a power cut resets the connections from before.
        """
        for socket in self._vanished.pop(endpoint.host, []):
            socket.reset()
        self._listeners[endpoint] = nursery, accept

    def refuse(self, endpoint: Endpoint) -> None:
        """Stop listening."""
        self._listeners.pop(endpoint, None)

    async def dial(self, host: str, to: Endpoint) -> MemoryStream:
        """Open a connection, after any cut of the link has healed. Raises OSError."""
        self._dials += 1
        name = f"{host}>{to.host}#{self._dials}"
        chance = self._source.of("dial", name)
        forward, back = self.link(host, to.host), self.link(to.host, host)
        for link in (forward, back):
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

    # -- faults

    def link(self, host: str, to: str) -> Link:
        """Return the link from one host to another."""
        return self._links.setdefault((host, to), Link())

    def cut(self, host: str, to: str) -> None:
        """Cut one direction between two hosts."""
        self.link(host, to).is_cut = True

    def heal(self, host: str, to: str) -> None:
        """Heal one direction; waiting bytes are sent."""
        link = self.link(host, to)
        if link.is_cut:
            link.is_cut = False
            for pipe in link.pipes:
                pipe.resume()
            link.healed.set()
            link.healed = trio.Event()

    def heal_all(self) -> None:
        """Heal every link and make it fast."""
        for host, to in list(self._links):
            self.link(host, to).seconds = FAST
            self.heal(host, to)

    def reset_between(self, host: str, to: str) -> None:
        """Reset the connections between two hosts."""
        link = self.link(host, to)
        for socket in self._sockets.get(host, []):
            if socket._outgoing.link is link:
                socket.reset()

    def kill(self, host: str, *, quietly: bool) -> None:
        """Close all connections of a stopped host; if `quietly`, the other ends get no notice."""
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
