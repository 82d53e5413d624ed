"""A control port of a broker under test: commands as lines of JSON, for programs in any language.

Each line is one command and gets one line as its response (see `commands`). The response to a wait
is sent when the wait ends. Commands of one connection run one after the other.

The first command of a connection is `login`, with a token from a file that only the owner of the
server can read. Without the token, every web page and every user of the machine could send commands
to a port of 127.0.0.1. The first line that is not a command closes the connection, so a browser's
HTTP request has no effect.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import trio

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint

from .broker_thread import BrokerThread
from .commands import Command, CommandExecutor, InvalidCommand, Response, parse_command
from .control_token import ControlToken, control_token
from .local import LocalBroker

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 4096
# Maximum seconds until a connection must be authenticated.
LOGIN_SECONDS = 10
# Maximum number of open connections of a control port. When it is reached, the oldest
# unauthenticated connection is closed.
CONNECTIONS_MAX = 100
HOST = "127.0.0.1"


class ControlPort(NamedTuple):
    """Address of a control port, and the file of its token."""

    address: str
    token_file: str


@contextlib.asynccontextmanager
async def run_controlled_broker(
    port: int,
    token_file: str | None,
    prepare: Callable[[Broker], Awaitable[None]],
    **settings: Any,
) -> AsyncIterator[tuple[LocalBroker, ControlPort]]:
    """Run a broker in a thread, with a control port.

    Args:
        port: Control port on 127.0.0.1; 0 for a free one.
        token_file: File of the token; None for a new temporary file.
        prepare: Called in the thread of the broker before commands are accepted.
        settings: Arguments of `LocalBroker`.

    Yields:
        The broker and its control port.

    Raises:
        OSError: The port cannot be opened.
        ValueError: The token file cannot be used.
    """
    with control_token(token_file) as token:
        async with _open_broker(port, token, prepare, settings) as (broker, endpoint):
            yield broker, ControlPort(str(endpoint), str(token.file))


@contextlib.asynccontextmanager
async def _open_broker(
    port: int,
    token: ControlToken,
    prepare: Callable[[Broker], Awaitable[None]],
    settings: dict[str, Any],
) -> AsyncIterator[tuple[LocalBroker, Endpoint]]:
    async with contextlib.AsyncExitStack() as stack:
        listeners = await trio.open_tcp_listeners(port, host=HOST)
        for each in listeners:
            stack.push_async_callback(trio.aclose_forcefully, each)
        thread = BrokerThread()
        stack.push_async_callback(_close_shielded, thread.close)
        broker = await _in_thread(LocalBroker, thread=thread, **settings)
        stack.push_async_callback(_close_shielded, broker.close)
        await _in_thread(broker.run_in_broker, lambda running: prepare(running.broker))
        async with trio.open_nursery() as nursery:
            ports = _ControlPorts(thread, token, nursery)
            yield broker, ports.serve(broker, listeners, closable=False)
            nursery.cancel_scope.cancel()


async def _close_shielded(close: Callable[[], None]) -> None:
    with trio.CancelScope(shield=True):
        await _in_thread(close)


async def _in_thread(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Run a blocking call in a thread.

    The number of these threads has no limit of its own: a command that waits may need a later command
    of another connection. `CONNECTIONS_MAX` limits the number of commands.
    """
    return await trio.to_thread.run_sync(
        partial(function, *arguments, **settings),
        abandon_on_cancel=True,
        limiter=trio.CapacityLimiter(1),
    )


class _ControlPorts:
    """Control ports of all brokers: the first broker, and brokers that commands create."""

    def __init__(self, thread: BrokerThread, token: ControlToken, nursery: trio.Nursery) -> None:
        self._thread = thread
        self._token = token
        self._nursery = nursery

    def serve(
        self, broker: LocalBroker, listeners: list[trio.SocketListener], *, closable: bool
    ) -> Endpoint:
        """Accept commands for a broker. Return the address."""
        commands = CommandExecutor(broker, self._thread, self._open_port, closable=closable)
        self._nursery.start_soon(ControlConnections(commands, self._token).accept, listeners)
        return Endpoint(*listeners[0].socket.getsockname()[:2])

    def _open_port(self, broker: LocalBroker) -> Response:
        """Open a control port for a broker that a command has created. Return both addresses."""

        async def serve() -> Endpoint:
            return self.serve(broker, await trio.open_tcp_listeners(0, host=HOST), closable=True)

        control = trio.from_thread.run(serve)
        return {
            "bootstrap_servers": broker.bootstrap_servers,
            "control": str(control),
            "control_token_file": str(self._token.file),
            "schema_registry": broker.schema_registry_url if broker.has_schema_registry else None,
        }


class ControlConnections:
    """The open connections of one broker's control port."""

    def __init__(self, commands: CommandExecutor, token: ControlToken) -> None:
        self._commands = commands
        self._token = token
        self._open = 0
        self._scope = trio.CancelScope()
        # Cancel scopes of connections that are not authenticated, oldest first.
        self._unauthenticated: dict[trio.CancelScope, None] = {}

    async def accept(self, listeners: list[trio.SocketListener]) -> None:
        """Accept connections until a command closes the broker."""
        with self._scope:
            await trio.serve_listeners(self.serve, listeners)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Execute the commands of one connection; the caller closes it."""
        if self._open >= CONNECTIONS_MAX:
            oldest = next(iter(self._unauthenticated), None)
            if oldest is None:
                logger.warning(
                    "control port: rejected a connection, %d are open; close unused ones",
                    CONNECTIONS_MAX,
                )
                return
            del self._unauthenticated[oldest]
            oldest.cancel()
        self._open += 1
        try:
            with (
                contextlib.suppress(trio.BrokenResourceError),
                trio.move_on_after(LOGIN_SECONDS) as limit,
            ):
                self._unauthenticated[limit] = None
                await self._execute_commands(stream, limit)
        finally:
            self._open -= 1
            self._unauthenticated.pop(limit, None)

    async def _execute_commands(self, stream: trio.abc.Stream, limit: trio.CancelScope) -> None:
        """Execute the commands of one connection; `limit` ends it unless it authenticates."""
        is_authenticated = False
        async with contextlib.aclosing(_read_lines(stream)) as lines:
            async for line in lines:
                try:
                    command = parse_command(line)
                    if is_authenticated:
                        response = await _in_thread(self._commands.execute, command)
                    else:
                        response = self._login(command)
                        is_authenticated, limit.deadline = True, math.inf
                        self._unauthenticated.pop(limit, None)
                except InvalidCommand as error:
                    await _send(stream, {"ok": False, "error": str(error)})
                    return
                await _send(stream, response)
                if self._commands.closed:
                    self._scope.cancel()

    def _login(self, command: Command) -> Response:
        """Authenticate a connection.

        Raises:
            InvalidCommand: The command is not a login with the right token.
        """
        if command.keys() != {"do", "token"} or command["do"] != "login":
            raise InvalidCommand('the first line must be {"do": "login", "token": ...}')
        if not self._token.matches_token(command["token"]):
            raise InvalidCommand(
                "wrong token; read it from the file that the server's Control line names"
            )
        return {"ok": True}


async def _send(stream: trio.abc.SendStream, response: Response) -> None:
    await stream.send_all(json.dumps(response).encode() + b"\n")


async def _read_lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
    buffer = bytearray()
    while len(buffer) <= LINE_BYTES_MAX:
        end = buffer.find(b"\n")
        if end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            yield line
            continue
        data = await stream.receive_some(RECEIVE_BYTES)
        if not data:
            return
        buffer += data
    logger.warning(
        "control port: closed a connection, a command is larger than %d bytes", LINE_BYTES_MAX
    )
