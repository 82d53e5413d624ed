"""A server that makes a metadata store available to other processes of the machine.

A client's leases end with its connection. The operating system closes the connection immediately when
the process terminates, so other nodes take over at once. This needs no failure detection: a client
without a connection cannot renew its leases either.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from kbroker.storage.errors import StorageError

from .store import Change, Lease, MetadataStore
from .store_link import Link, LinkBroken, Message, message_of

logger = logging.getLogger(__name__)

# Maximum number of unsent messages of a client. A client above it is disconnected and must start
# again.
UNSENT_MAX = 100_000


async def serve_store(store: MetadataStore, listener: trio.SocketListener) -> None:
    """Serve all connecting clients, until cancelled."""
    await trio.serve_listeners(partial(serve_client, store), [listener])


async def serve_client(store: MetadataStore, stream: trio.abc.Stream) -> None:
    """Serve one client until it closes the connection."""
    await _Client(store, Link(stream)).run()


class _Client:
    """One client. Messages are sent in order: a change before the response to its transaction."""

    def __init__(self, store: MetadataStore, link: Link) -> None:
        self._store = store
        self._link = link
        self._leases: dict[int, Lease] = {}
        self._unsent, self._to_send = trio.open_memory_channel[Message](UNSENT_MAX)
        self._work = trio.CancelScope()

    async def run(self) -> None:
        self._queue({"begin": self._store.revision})
        self._store.watch(self._on_change, after=self._store.revision)
        try:
            with self._work:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send)
                    while True:
                        nursery.start_soon(self._respond, await self._link.receive())
        except* LinkBroken:
            pass
        finally:
            self._store.unwatch(self._on_change)
            with trio.CancelScope(shield=True):
                await self._link.aclose()
                await self._end_leases()

    async def _end_leases(self) -> None:
        for lease in self._leases.values():
            try:
                await lease.revoke()
            except StorageError as error:  # the lease expires on its own
                logger.error(
                    "cannot revoke the lease of a terminated node process, it will expire on its own: %s",
                    error.message,
                )

    def _on_change(self, change: Change) -> None:
        self._queue(message_of(change))

    def _queue(self, message: Message) -> None:
        try:
            self._unsent.send_nowait(message)
        except trio.WouldBlock:
            logger.warning(
                "disconnecting a node process that lags behind by %d metadata changes", UNSENT_MAX
            )
            self._work.cancel()

    async def _send(self) -> None:
        async for message in self._to_send:
            await self._link.send(message)

    async def _respond(self, request: Message) -> None:
        try:
            response = await self._OPERATIONS[request["do"]](self, request)
        except StorageError as error:
            response = {"error": error.message}
        self._queue({"id": request["id"], "trouble": self._store.problem, **response})

    async def _range(self, request: Message) -> Message:
        revision, entries = await self._store.range(request["prefix"])
        found = {key: [entry.value, entry.revision] for key, entry in entries.items()}
        return {"revision": revision, "entries": found}

    async def _transact(self, request: Message) -> Message:
        lease = None
        if request["lease"] is not None:
            lease = self._leases.get(request["lease"])
            if lease is None:
                return {"revision": None}
        revision = await self._store.transact(
            request["puts"], compares=request["compares"], cause=request["cause"], lease=lease
        )
        return {"revision": revision}

    async def _grant(self, request: Message) -> Message:
        lease = await self._store.grant(request["seconds"], holder=request["holder"])
        self._leases[lease.id] = lease
        return {"lease": lease.id, "seconds": lease.ttl_seconds}

    async def _keep_alive(self, request: Message) -> Message:
        lease = self._leases.get(request["lease"])
        return {"lives": lease is not None and await lease.keep_alive()}

    async def _revoke(self, request: Message) -> Message:
        lease = self._leases.get(request["lease"])
        if lease is not None:
            await lease.revoke()
            del self._leases[request["lease"]]
        return {}

    _OPERATIONS: Mapping[str, Callable[[_Client, Message], Awaitable[Message]]] = {
        "range": _range,
        "transact": _transact,
        "grant": _grant,
        "keep_alive": _keep_alive,
        "revoke": _revoke,
    }
