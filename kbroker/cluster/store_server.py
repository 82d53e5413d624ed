"""A store for clients in other processes of the same machine.

A client's leases end with its connection: the system closes it in the moment in which the process ends,
so others take over at once what a node that died has led. Nothing is guessed: whoever cannot be heard
cannot keep a lease alive either.
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

UNSENT_MAX = 100_000
"""Messages that a client has not taken: one that stands still for long has to begin anew."""


async def serve_store(store: MetadataStore, listener: trio.SocketListener) -> None:
    """Serve whoever connects, until cancelled."""
    await trio.serve_listeners(partial(serve_client, store), [listener])


async def serve_client(store: MetadataStore, stream: trio.abc.Stream) -> None:
    """Serve one client, until it closes the connection."""
    await _Client(store, Link(stream)).run()


class _Client:
    """One client. What it is told goes out in order: changes before the answer to what made them."""

    def __init__(self, store: MetadataStore, link: Link) -> None:
        self._store = store
        self._link = link
        self._leases: dict[int, Lease] = {}
        self._unsent, self._to_send = trio.open_memory_channel[Message](UNSENT_MAX)
        self._work = trio.CancelScope()

    async def run(self) -> None:
        self._tell({"begin": self._store.revision})
        self._store.watch(self._changed, after=self._store.revision)
        try:
            with self._work:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send)
                    while True:
                        nursery.start_soon(self._answer, await self._link.receive())
        except* LinkBroken:
            pass
        finally:
            self._store.unwatch(self._changed)
            with trio.CancelScope(shield=True):
                await self._link.aclose()
                await self._end_leases()

    async def _end_leases(self) -> None:
        for lease in self._leases.values():
            try:
                await lease.revoke()
            except StorageError as error:  # it ends by itself
                logger.error("a lease of a process that is gone goes on: %s", error.message)

    def _changed(self, change: Change) -> None:
        self._tell(message_of(change))

    def _tell(self, message: Message) -> None:
        try:
            self._unsent.send_nowait(message)
        except trio.WouldBlock:
            logger.warning("a process has not taken %d changes of metadata: it is cut", UNSENT_MAX)
            self._work.cancel()

    async def _send(self) -> None:
        async for message in self._to_send:
            await self._link.send(message)

    async def _answer(self, asked: Message) -> None:
        try:
            answer = await self._VERBS[asked["do"]](self, asked)
        except StorageError as error:
            answer = {"error": error.message}
        self._tell({"id": asked["id"], "trouble": self._store.trouble, **answer})

    async def _range(self, asked: Message) -> Message:
        revision, entries = await self._store.range(asked["prefix"])
        found = {key: [entry.value, entry.revision] for key, entry in entries.items()}
        return {"revision": revision, "entries": found}

    async def _transact(self, asked: Message) -> Message:
        lease = None
        if asked["lease"] is not None:
            lease = self._leases.get(asked["lease"])
            if lease is None:
                return {"revision": None}
        revision = await self._store.transact(
            asked["puts"], compares=asked["compares"], cause=asked["cause"], lease=lease
        )
        return {"revision": revision}

    async def _grant(self, asked: Message) -> Message:
        lease = await self._store.grant(asked["seconds"], holder=asked["holder"])
        self._leases[lease.id] = lease
        return {"lease": lease.id, "seconds": lease.ttl_seconds}

    async def _keep_alive(self, asked: Message) -> Message:
        lease = self._leases.get(asked["lease"])
        return {"lives": lease is not None and await lease.keep_alive()}

    async def _revoke(self, asked: Message) -> Message:
        lease = self._leases.get(asked["lease"])
        if lease is not None:
            await lease.revoke()
            del self._leases[asked["lease"]]
        return {}

    _VERBS: Mapping[str, Callable[[_Client, Message], Awaitable[Message]]] = {
        "range": _range,
        "transact": _transact,
        "grant": _grant,
        "keep_alive": _keep_alive,
        "revoke": _revoke,
    }
