"""The only module that opens Kafka listeners."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import trio

from .connection import Connection
from .context import Endpoint, Peer
from .node import Node
from .registry import Api
from .transport import PlainTransport

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1")
BIND_TRIES = 20
FIRST_REQUEST_SECONDS = 10
REAP_SECONDS = 1
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients come in. Port 0 is a free one; `advertised` None tells what they dialled."""

    name: str
    host: str
    port: int
    advertised: Endpoint | None = None


class PortInUse(Exception):
    """A listener's address cannot be bound."""


async def bind(listener: Listener) -> list[trio.SocketListener]:
    """Open the listener's sockets: both loopback families for a loopback host, else one.

    Raises PortInUse, with what to do, when the address is taken.
    """
    if listener.host not in ("localhost", *LOOPBACK):
        return await _open(listener.host, listener.port)
    for _ in range(BIND_TRIES):
        first = await _open(LOOPBACK[0], listener.port)
        port = first[0].socket.getsockname()[1]
        try:
            return first + await _open(LOOPBACK[1], port)
        except PortInUse:
            if listener.port:
                return first
            await first[0].aclose()  # the kernel's choice is free in one family only: again
        except OSError:
            return first  # no IPv6 on this machine
    raise PortInUse("found no port that is free on 127.0.0.1 and ::1; name one with --port")


async def _open(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} on {host} is in use; stop its owner, choose another one with "
                "--port, or let the system choose with --port 0"
            ) from None
        raise


class Server:
    """Accepts clients of one node on its listeners, within the limits of the configuration."""

    def __init__(self, node: Node, apis: Mapping[int, Api], listeners: list[Listener]) -> None:
        self.connections: set[Connection] = set()
        self._node = node
        self._apis = apis
        self._listeners = listeners
        self._sockets: list[tuple[Listener, trio.SocketListener]] = []
        self._per_host: Counter[str] = Counter()
        self._accepting = trio.CancelScope()

    async def open(self) -> None:
        """Bind all listeners; nothing is accepted before `run`."""
        for listener in self._listeners:
            self._sockets += [(listener, socket) for socket in await bind(listener)]

    def endpoint(self) -> Endpoint:
        """The first listener's address, with the port that the kernel chose."""
        host, port = self._sockets[0][1].socket.getsockname()[:2]
        return Endpoint(host, port)

    async def run(self) -> None:
        """Accept and serve until `stop`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reap)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener, socket in self._sockets:
                        accepting.start_soon(
                            partial(
                                trio.serve_listeners,
                                partial(self._serve, listener),
                                [socket],
                                handler_nursery=nursery,
                            )
                        )
            nursery.cancel_scope.cancel()

    def stop_accepting(self) -> None:
        """Close the door; connections that are open stay open."""
        for _, socket in self._sockets:
            socket.socket.close()

    def stop(self) -> None:
        """End `run`: all connections are closed."""
        self._accepting.cancel()

    async def _serve(self, listener: Listener, stream: trio.SocketStream) -> None:
        host = stream.socket.getpeername()[0]
        if not self._admit(host):
            stream.socket.close()
            return
        local = Endpoint(*stream.socket.getsockname()[:2])
        connection = Connection(
            self._node,
            self._apis,
            PlainTransport(stream.socket),
            Peer(host, local, listener.name, listener.advertised),
            frame_bytes_max=self._node.config.request_max_bytes,
        )
        self.connections.add(connection)
        self._per_host[host] += 1
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)
            self._per_host[host] -= 1

    def _admit(self, host: str) -> bool:
        config = self._node.config
        if len(self.connections) >= config.max_connections:
            logger.warning("refusing %s: max.connections are open", host)
            return False
        if self._per_host[host] >= config.max_connections_per_ip:
            logger.warning("refusing %s: it has max.connections.per.ip open", host)
            return False
        return True

    async def _reap(self) -> None:
        """Close connections that are idle, or that never sent a whole first request."""
        idle_seconds = self._node.config.connections_max_idle_ms / 1000
        while True:
            await trio.sleep(REAP_SECONDS)
            now = trio.current_time()
            for connection in tuple(self.connections):
                if connection.is_overdue(now, FIRST_REQUEST_SECONDS, idle_seconds):
                    connection.close()
