"""A socket that takes commands for a broker under test: JSON lines, for programs in other languages.

Each line is one command, and each command gets one line as its answer (see `commands`). A command
that waits is answered at the end of the wait. Commands of one connection run one after the other.

The first command of a connection is `login` with the token of a file that only the server's owner can
read: every web page and every user of the machine reaches a port of 127.0.0.1. A connection ends at
its first line that is no command, because a browser's request has more lines.
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

from .commands import Answer, Command, CommandExecutor, InvalidCommand, parse_command
from .control_token import ControlToken, control_token
from .host import BrokerThread
from .local import LocalBroker

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 4096
LOGIN_SECONDS = 10
CONNECTIONS_MAX = 100
"""Open connections of one broker's control port. One that has not logged in makes way for the next."""
HOST = "127.0.0.1"


class ControlPort(NamedTuple):
    """Where a server takes commands: its address, and the file of the token that comes first."""

    address: str
    token_file: str


@contextlib.asynccontextmanager
async def run_controlled_broker(
    port: int,
    token_file: str | None,
    prepare: Callable[[Broker], Awaitable[None]],
    **settings: Any,
) -> AsyncIterator[tuple[LocalBroker, ControlPort]]:
    """Run a broker in a thread of its own, and take commands for it.

    Parameters: `port` of 127.0.0.1 is where commands come in, 0 is a free one; `token_file` has the
    token of those who may give them, None is a new file; `prepare` is called in the broker's thread
    before anybody is told of it; `settings` are those of `LocalBroker`. Yields the broker and where
    to send commands. Raises OSError when the port cannot be used, ValueError when the token's file
    cannot, else what `open_broker` and `prepare` raise.
    """
    with control_token(token_file) as token:
        async with _opened(port, token, prepare, settings) as (broker, endpoint):
            yield broker, ControlPort(str(endpoint), str(token.file))


@contextlib.asynccontextmanager
async def _opened(
    port: int,
    token: ControlToken,
    prepare: Callable[[Broker], Awaitable[None]],
    settings: dict[str, Any],
) -> AsyncIterator[tuple[LocalBroker, Endpoint]]:
    listeners = await trio.open_tcp_listeners(port, host=HOST)
    thread = BrokerThread()
    try:
        broker = await _in_thread(LocalBroker, thread=thread, **settings)
        try:
            await _in_thread(broker.run_in_broker, lambda running: prepare(running.broker))
            async with trio.open_nursery() as nursery:
                sockets = _Sockets(thread, token, nursery)
                yield broker, sockets.serve(broker, listeners, closable=False)
                nursery.cancel_scope.cancel()
        finally:
            await _close_shielded(broker.close)
    finally:
        await _close_shielded(thread.close)


async def _close_shielded(close: Callable[[], None]) -> None:
    with trio.CancelScope(shield=True):
        await _in_thread(close)


async def _in_thread(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Call what blocks until the broker's thread has done it."""
    return await trio.to_thread.run_sync(
        partial(function, *arguments, **settings), abandon_on_cancel=True
    )


class _Sockets:
    """One for each broker: the first one, and those that commands open."""

    def __init__(self, thread: BrokerThread, token: ControlToken, nursery: trio.Nursery) -> None:
        self._thread = thread
        self._token = token
        self._nursery = nursery

    def serve(
        self, broker: LocalBroker, listeners: list[trio.SocketListener], *, closable: bool
    ) -> Endpoint:
        """Begin to take commands for a broker; returns where."""
        commands = CommandExecutor(broker, self._thread, self._opened, closable=closable)
        self._nursery.start_soon(ControlConnections(commands, self._token).accept, listeners)
        return Endpoint(*listeners[0].socket.getsockname()[:2])

    def _opened(self, broker: LocalBroker) -> Answer:
        """What a command, in its thread, says of a broker that it has opened."""

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
        self._unauthenticated: dict[trio.CancelScope, None] = {}
        """Scopes of connections that have not logged in, oldest first."""

    async def accept(self, listeners: list[trio.SocketListener]) -> None:
        """Carry out commands until one of them closes the broker."""
        with self._scope:
            await trio.serve_listeners(self.serve, listeners)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Carry out the commands of one connection; who has called closes it."""
        if self._open >= CONNECTIONS_MAX:
            oldest = next(iter(self._unauthenticated), None)
            if oldest is None:
                logger.warning("%d connections have logged in: closing one more", CONNECTIONS_MAX)
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
        """Carry out the commands of one connection; `limit` ends it until it has logged in."""
        known = False
        async with contextlib.aclosing(_lines(stream)) as lines:
            async for line in lines:
                try:
                    command = parse_command(line)
                    if known:
                        answer = await _in_thread(self._commands.execute, command)
                    else:
                        answer = self._login(command)
                        known, limit.deadline = True, math.inf
                        self._unauthenticated.pop(limit, None)
                except InvalidCommand as error:
                    await _send(stream, {"ok": False, "error": str(error)})
                    return
                await _send(stream, answer)
                if self._commands.closed:
                    self._scope.cancel()

    def _login(self, command: Command) -> Answer:
        """Let somebody in. Raises InvalidCommand."""
        if command.keys() != {"do", "token"} or command["do"] != "login":
            raise InvalidCommand('the first line is {"do": "login", "token": ...}')
        if not self._token.matches_token(command["token"]):
            raise InvalidCommand(
                "this is not the token of the file that the server's Control line names"
            )
        return {"ok": True}


async def _send(stream: trio.abc.SendStream, answer: Answer) -> None:
    await stream.send_all(json.dumps(answer).encode() + b"\n")


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
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
    logger.warning("a command of more than %d bytes: closing the connection", LINE_BYTES_MAX)
