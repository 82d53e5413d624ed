"""A socket that takes orders for a broker under test: JSON lines, for programs in other languages.

One line is one order and one line is its answer (`orders` has what they say). An order that waits is
answered when the wait is over; orders of one connection are done in turn.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.endpoint import Endpoint

from .host import BrokerThread
from .local import LocalBroker
from .orders import Answer, Orders

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 4096
HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def controlled(
    port: int, prepare: Callable[[Broker], Awaitable[None]], **settings: Any
) -> AsyncIterator[tuple[LocalBroker, Endpoint]]:
    """Run a broker in a thread of its own, and take orders for it.

    Parameters: `port` of 127.0.0.1 is where orders come in, 0 is a free one; `prepare` is called in
    the broker's thread before anybody is told of it; `settings` are those of `LocalBroker`. Yields
    the broker and the address for orders. Raises OSError when the port is taken, else what
    `open_broker` and `prepare` raise.
    """
    listeners = await trio.open_tcp_listeners(port, host=HOST)
    thread = BrokerThread()
    try:
        broker = await _in_thread(LocalBroker, thread=thread, **settings)
        try:
            await _in_thread(broker.run_in_broker, lambda running: prepare(running.broker))
            async with trio.open_nursery() as nursery:
                sockets = _Sockets(thread, nursery)
                yield broker, sockets.serve(broker, listeners, closable=False)
                nursery.cancel_scope.cancel()
        finally:
            await _at_the_end(broker.close)
    finally:
        await _at_the_end(thread.close)


async def _at_the_end(close: Callable[[], None]) -> None:
    with trio.CancelScope(shield=True):
        await _in_thread(close)


async def _in_thread(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Call what blocks until the broker's thread has done it."""
    return await trio.to_thread.run_sync(
        partial(function, *arguments, **settings), abandon_on_cancel=True
    )


class _Sockets:
    """One for each broker: the first one, and those that orders open."""

    def __init__(self, thread: BrokerThread, nursery: trio.Nursery) -> None:
        self._thread = thread
        self._nursery = nursery

    def serve(
        self, broker: LocalBroker, listeners: list[trio.SocketListener], *, closable: bool
    ) -> Endpoint:
        """Begin to take orders for a broker; returns where."""
        orders = Orders(broker, self._thread, self._opened, closable=closable)
        self._nursery.start_soon(self._accept, orders, listeners)
        return Endpoint(*listeners[0].socket.getsockname()[:2])

    def _opened(self, broker: LocalBroker) -> Answer:
        """What an order, in its thread, says of a broker that it has opened."""

        async def serve() -> Endpoint:
            return self.serve(broker, await trio.open_tcp_listeners(0, host=HOST), closable=True)

        control = trio.from_thread.run(serve)
        return {"bootstrap_servers": broker.bootstrap_servers, "control": str(control)}

    async def _accept(self, orders: Orders, listeners: list[trio.SocketListener]) -> None:
        with trio.CancelScope() as scope:
            await trio.serve_listeners(partial(_obey, orders, scope), listeners)


async def _obey(orders: Orders, scope: trio.CancelScope, stream: trio.SocketStream) -> None:
    """Carry out the orders of one connection, until one of them closes the broker."""
    with contextlib.suppress(trio.BrokenResourceError):
        async for line in _lines(stream):
            answer = await _in_thread(orders.carry_out, line)
            await stream.send_all(json.dumps(answer).encode() + b"\n")
            if orders.closed:
                scope.cancel()


async def _lines(stream: trio.SocketStream) -> AsyncIterator[bytes]:
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
    logger.warning("an order of more than %d bytes: closing the connection", LINE_BYTES_MAX)
