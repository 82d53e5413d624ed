"""HTTP server for an ASGI application, based on hypercorn with trio.

Only this module uses hypercorn. The module itself accepts the connections: so it can limit their number,
disconnect clients that do not read their response, and close all connections on a stop.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from kbroker.client.endpoint import Endpoint

from .guard import END_CONNECTION
from .listening import listen_at

logger = logging.getLogger(__name__)

# Maximum size of a request line with its headers.
HEAD_BYTES_MAX = 16 * 1024
# Maximum size of one read. Some HTTP/2 frames have 9 bytes and take tens of microseconds.
READ_BYTES_MAX = 4 * 1024
# Idle time after which a connection is closed.
IDLE_SECONDS = 60
# Maximum number of concurrent requests per HTTP/2 connection.
STREAMS_MAX = 8
# How long requests in progress may take to finish on a stop.
GRACE_SECONDS = 0.5
# Maximum number of queued chunks of a request body.
PARTS_QUEUED_MAX = 4


class Limits(NamedTuple):
    """Limits on connections.

    Attributes:
        connections: Maximum number of open connections.
        seconds: Time (s) for which a client may block the sending of its response.
    """

    connections: int
    seconds: float


class HttpServer:
    """Serves one address; it can be bound again after `close`.

    Args:
        app: ASGI application.
        endpoint: Address to bind; port 0 lets the system choose.
        limits: Limits on connections.
        flag: Prefix of the command-line flags for the address, for error messages.
        inherited: Listening sockets to use instead of binding the address; `close` closes them.
        may_accept: Connections are accepted once this event is set; None for at once.

    Attributes:
        endpoint: Bound address, with the chosen port after `bind`.
    """

    def __init__(
        self,
        app: Any,
        endpoint: Endpoint,
        limits: Limits,
        flag: str,
        *,
        inherited: Sequence[socket.socket] = (),
        may_accept: trio.Event | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._inherited = inherited
        self._may_accept = may_accept
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
        """Number of open connections."""
        return len(self._open)

    async def bind(self) -> None:
        """Bind the address; clients that connect wait until `run`. Raises CannotListen."""
        # Not in `run`: `close` may be called before the task of `run` begins. The work is shielded,
        # so that clients still get responses while the node stops.
        self._accepting, self._work = trio.CancelScope(), trio.CancelScope(shield=True)
        self._context = WorkerContext(None)
        sockets = self._inherited or await listen_at(self.endpoint, self._flag)
        self._listeners = [
            trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets
        ]
        bound = sockets[0].getsockname()[1]
        self.endpoint = self.endpoint._replace(port=bound)

    async def run(self) -> None:
        """Serve until `close`."""
        self._ended = trio.Event()
        try:
            with self._work:
                async with trio.open_nursery() as nursery:
                    with self._accepting:
                        await self._accept(nursery)
        finally:
            self._ended.set()

    async def _accept(self, nursery: trio.Nursery) -> None:
        """Accept connections until `close`, which may close the sockets first."""
        if self._may_accept is not None:
            await self._may_accept.wait()
        try:
            await trio.serve_listeners(self._serve, self._listeners, handler_nursery=nursery)
        except* trio.ClosedResourceError:
            logger.debug("the HTTP server was closed before it accepted a connection")

    async def close(self) -> None:
        """Stop serving; requests in progress may finish within `GRACE_SECONDS`."""
        self._accepting.cancel()  # before the listening sockets are closed
        for each in self._listeners:
            await trio.aclose_forcefully(each)
        await self._context.terminated.set()
        with trio.move_on_after(GRACE_SECONDS):
            await self._ended.wait()
        for stream in tuple(self._open):
            stream.abort()
        self._work.cancel()
        await self._ended.wait()

    def _abortable_app(self, stream: _Stream) -> Any:
        """Return the application with an extension that aborts this connection."""

        async def app(scope: Any, *rest: Any) -> None:
            scope["extensions"][END_CONNECTION] = stream.abort
            await self._app(scope, *rest)

        return app

    async def _serve(self, socket_stream: trio.SocketStream) -> None:
        if len(self._open) >= self._limits.connections:
            # Its task ends later; until then, other connections must be chosen.
            oldest = min(self._open, key=lambda each: each.active_at)
            self._open.remove(oldest)
            oldest.abort()
        stream = _Stream(socket_stream, self._limits.seconds)
        self._open.add(stream)
        try:
            # An HTTP error must not affect Kafka clients.
            with stream.scope:
                app, state = self._abortable_app(stream), ConnectionState({})
                await TCPServer(app, self._config, self._context, state, stream)  # type: ignore[arg-type]
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            logger.debug("an HTTP connection closed before its response")
        except* Exception:
            logger.exception("unexpected error; closing an HTTP connection")
        finally:
            self._open.discard(stream)
            stream.abort()


class _Stream(trio.abc.HalfCloseableStream):
    """A connection that is aborted if the client does not read its response for too long.

    Aborting also cancels the request inside `scope`; hypercorn would wait for the idle timeout.
    """

    def __init__(self, stream: trio.SocketStream, seconds: float) -> None:
        self.socket = stream.socket
        self.active_at = trio.current_time()
        self.scope = trio.CancelScope()
        self._stream = stream
        self._seconds = seconds
        # Hypercorn may reject a malformed request while the previous response is being sent.
        self._sending = trio.Lock()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(self._seconds) as timeout:
            async with self._sending:
                await self._stream.send_all(data)
        self.active_at = trio.current_time()
        if timeout.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError("the client does not read its response")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await self._stream.receive_some(min(max_bytes or READ_BYTES_MAX, READ_BYTES_MAX))
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
        """Close the connection at once."""
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
