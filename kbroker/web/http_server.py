"""Serves HTTP: hypercorn speaks it, on trio, with any ASGI application.

The only module that knows hypercorn. Connections are accepted here, so that their number and the time
in which a client takes nothing are bounded, and all of them can be ended.
"""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any, NamedTuple

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from kbroker.client.endpoint import Endpoint
from kbroker.net.server import CannotListen, bind_host

from .guard import END_CONNECTION

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that may wait to be accepted."""
HEAD_BYTES_MAX = 16 * 1024
"""Of a request's first line and its headers, before more is received of them."""
IDLE_SECONDS = 60
"""A connection without a whole request for so long is closed."""
STREAMS_MAX = 8
"""Requests of one connection at the same time, with HTTP/2."""
GRACE_SECONDS = 0.5
"""What requests have at a stop that are being answered."""
PARTS_QUEUED_MAX = 4
"""Of a request's body, until somebody reads it."""


class Limits(NamedTuple):
    """How many connections there may be, and how long a client may take nothing of its answer."""

    connections: int
    seconds: float


class HttpServer:
    """Serves one address. It can be bound again after `close`.

    Parameters: `flag` is what the flags for its address begin with.
    """

    def __init__(self, app: Any, endpoint: Endpoint, limits: Limits, flag: str) -> None:
        self.endpoint = endpoint
        """With the port that the system chose, as soon as it did."""
        self._app = wrap_app(app, 0, "asgi")
        self._limits = limits
        self._flag = flag
        self._config = _hypercorn_config()
        self._listeners: list[trio.SocketListener] = []
        self._open: set[_Stream] = set()
        self._accepting = trio.CancelScope()
        self._work = trio.CancelScope()
        self._context = WorkerContext(None)
        self._ended = trio.Event()
        self._ended.set()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    async def bind(self) -> None:
        """Take the address; who connects waits until `run`. Raises CannotListen."""
        host, port = self.endpoint
        try:
            self._listeners = [
                _listening(each) for each in await bind_host(host, port, named=bool(port))
            ]
        except OSError as error:
            raise _cannot_listen(self.endpoint, error, self._flag) from None
        if not port:
            bound = self._listeners[0].socket.getsockname()[1]
            self.endpoint = self.endpoint._replace(port=bound)

    async def run(self) -> None:
        """Serve until `close`."""
        # Cancelled with everything else, nobody could be told any more that the node stops.
        self._accepting, self._work = trio.CancelScope(), trio.CancelScope(shield=True)
        self._context, self._ended = WorkerContext(None), trio.Event()
        try:
            with self._work:
                async with trio.open_nursery() as nursery:
                    with self._accepting:
                        await self._accept(nursery)
        finally:
            self._ended.set()

    async def _accept(self, nursery: trio.Nursery) -> None:
        """Accept connections until `close`, which may close the sockets before it is noticed here."""
        try:
            await trio.serve_listeners(self._serve, self._listeners, handler_nursery=nursery)
        except* trio.ClosedResourceError:
            logger.debug("HTTP is closed before anything was accepted")

    async def close(self) -> None:
        """End it: what is being answered has a moment to come to its end."""
        self._accepting.cancel()  # before nothing is left to accept from
        for each in self._listeners:
            await trio.aclose_forcefully(each)
        await self._context.terminated.set()
        with trio.move_on_after(GRACE_SECONDS):
            await self._ended.wait()
        for stream in tuple(self._open):
            stream.abort()
        self._work.cancel()
        await self._ended.wait()

    def _app_of(self, stream: _Stream) -> Any:
        """The application as one connection has it: it can end that."""

        async def app(scope: Any, *rest: Any) -> None:
            scope["extensions"][END_CONNECTION] = stream.abort
            await self._app(scope, *rest)

        return app

    async def _serve(self, socket_stream: trio.SocketStream) -> None:
        if len(self._open) >= self._limits.connections:
            min(self._open, key=lambda each: each.active_at).abort()
        stream = _Stream(socket_stream, self._limits.seconds)
        self._open.add(stream)
        try:
            # Nothing that goes wrong here concerns Kafka's clients.
            with stream.scope:
                state = ConnectionState({})
                await TCPServer(self._app_of(stream), self._config, self._context, state, stream)  # type: ignore[arg-type]
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("a connection for HTTP ended before its answer")
        except* Exception:
            logger.exception("unexpected error; closing a connection for HTTP")
        finally:
            self._open.discard(stream)
            stream.abort()


class _Stream(trio.abc.HalfCloseableStream):
    """A connection on which a client that takes nothing for too long is given up.

    What is done for it, inside of `scope`, ends with it: hypercorn would wait until it had been idle.
    """

    def __init__(self, stream: trio.SocketStream, seconds: float) -> None:
        self.socket = stream.socket
        self.active_at = trio.current_time()
        self.scope = trio.CancelScope()
        self._stream = stream
        self._seconds = seconds
        self._sending = trio.Lock()
        """Hypercorn ends a malformed request while the answer to the one before is being sent."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(self._seconds) as patience:
            async with self._sending:
                await self._stream.send_all(data)
        self.active_at = trio.current_time()
        if patience.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError("the client takes nothing of its answer")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await self._stream.receive_some(min(max_bytes or HEAD_BYTES_MAX, HEAD_BYTES_MAX))
        self.active_at = trio.current_time()
        if not data:
            self.abort()
        return bytes(data)

    async def send_eof(self) -> None:
        async with self._sending:
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
        self.scope.cancel()

    def abort(self) -> None:
        """End it at once."""
        self.socket.close()
        self.scope.cancel()


def _hypercorn_config() -> Config:
    config = Config()
    config.errorlog = logger
    config.include_server_header = False
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.h2_max_header_list_size = HEAD_BYTES_MAX
    config.h2_max_concurrent_streams = STREAMS_MAX
    config.keep_alive_timeout = IDLE_SECONDS
    config.max_app_queue_size = PARTS_QUEUED_MAX
    return config


def _listening(bound: socket.socket) -> trio.SocketListener:
    bound.listen(BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(bound))


def _cannot_listen(endpoint: Endpoint, error: OSError, flag: str) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"port {endpoint.port} on {endpoint.host} is in use; stop its owner, or choose another one: "
            f"{flag}-port 0 lets the system choose"
        )
    reason = error.strerror or str(error)
    return CannotListen(
        f"cannot serve HTTP at {endpoint} ({reason}); name another address with {flag}-host and "
        f"{flag}-port"
    )
