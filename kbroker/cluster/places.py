"""Whether there is a place for a node in a cluster that has others elsewhere, before it starts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from ipaddress import ip_address

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.storage.errors import StorageError

from .cluster import known_node
from .keys import CONTROLLER_ALIVE, LIVE, live_key, ready_key
from .registrations import Registration
from .store import Document, MetadataStore, entry_at

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


async def wait_for_place(store: MetadataStore, node_id: int, *, seconds: float) -> None:
    """Wait until no other process runs a node, as one that crashed seems to for a while.

    Raises StorageError: one still does after so many seconds.
    """
    ends_at = trio.current_time() + seconds
    told = False
    while (other := await _registration(store, node_id)) is not None:
        where = ", ".join(map(str, other.listeners.values()))
        if trio.current_time() > ends_at:
            raise StorageError(
                f"node {node_id} runs already, at {where}, on other data directories; stop that "
                "process, or give this one another --node-id"
            )
        if not told:
            text = "node %d seems to run at %s; waiting up to %g s for the end of its lease"
            logger.warning(text, node_id, where, seconds)
            told = True
        await trio.sleep(LOOK_SECONDS)


async def _registration(store: MetadataStore, node_id: int) -> Registration | None:
    entry = await entry_at(store, live_key(node_id))
    return None if entry is None else Registration.from_entry(node_id, entry, ready=False)


async def give_up_place(store: MetadataStore, node_id: int, directories: Collection[str]) -> bool:
    """Let others miss a node at once whose process has ended; returns whether it was there.

    Parameters: `directories` are the ids of its data directories, which the caller holds locked: so nobody
    else can run on them. Raises StorageError: the node that runs has other directories.
    """
    while (entry := await entry_at(store, live_key(node_id))) is not None:
        known = await known_node(store, node_id)
        if known.directories.keys().isdisjoint(directories):
            raise StorageError(f"node {node_id} runs on other data directories than these")
        puts: dict[str, Document | None] = {live_key(node_id): None, ready_key(node_id): None}
        compares = {live_key(node_id): entry.revision}
        controller = await entry_at(store, CONTROLLER_ALIVE)
        if controller is not None and controller.value["node"] == node_id:
            puts[CONTROLLER_ALIVE] = None
            compares[CONTROLLER_ALIVE] = controller.revision
        cause = f"the process of node {node_id} has ended"
        if await store.transact(puts, compares=compares, cause=cause):
            return True
    return False


async def check_addresses(
    store: MetadataStore, node_id: int, addresses: Mapping[str, Endpoint]
) -> None:
    """Refuse addresses of a node, by listener, that would lead others somewhere else.

    Raises StorageError: one means every interface, or is that of another node.
    """
    for name, address in addresses.items():
        if _is_every_interface(address.host):
            raise StorageError(
                f"other nodes cannot be told {address} for listener {name}; name the address at which "
                "they reach this one, with --advertise HOST:PORT"
            )
    live = (await store.range(LIVE)).entries
    for key, entry in live.items():
        other = Registration.from_entry(int(key.removeprefix(LIVE)), entry, ready=False)
        taken = set(other.listeners.values()) & set(addresses.values())
        if other.node_id != node_id and taken:
            raise StorageError(
                f"node {other.node_id} is at {taken.pop()} already; name the address at which other "
                f"nodes reach node {node_id}, with --advertise HOST:PORT"
            )


def _is_every_interface(host: str) -> bool:
    if not host:
        return True
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
