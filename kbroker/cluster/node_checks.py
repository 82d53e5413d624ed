"""Checks of a node ID and its addresses in a shared cluster, before the node starts."""

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

CHECK_SECONDS = 0.5


async def wait_for_node_id(store: MetadataStore, node_id: int, *, seconds: float) -> None:
    """Wait until no other process runs a node. A crashed process counts until its lease expires.

    Raises:
        StorageError: The node still runs after `seconds`.
    """
    ends_at = trio.current_time() + seconds
    warned = False
    while (other := await _registration(store, node_id)) is not None:
        hosts = ", ".join(map(str, other.listeners.values()))
        if trio.current_time() > ends_at:
            raise StorageError(
                f"node {node_id} already runs at {hosts} with other log directories; stop that process, "
                "or start this one with another --node-id"
            )
        if not warned:
            text = "node %d seems to run at %s; waiting up to %g s until its lease expires"
            logger.warning(text, node_id, hosts, seconds)
            warned = True
        await trio.sleep(CHECK_SECONDS)


async def _registration(store: MetadataStore, node_id: int) -> Registration | None:
    entry = await entry_at(store, live_key(node_id))
    return None if entry is None else Registration.from_entry(node_id, entry, ready=False)


async def end_registration(
    store: MetadataStore, node_id: int, directories: Collection[str]
) -> bool:
    """End the registration of a node whose process has terminated, before its lease expires.

    Args:
        store: The metadata store.
        node_id: The node.
        directories: IDs of its log directories. The caller holds their locks, so that no other
            process can use them.

    Returns:
        True if the node was registered.

    Raises:
        StorageError: The registered node has other log directories.
    """
    while (entry := await entry_at(store, live_key(node_id))) is not None:
        known = await known_node(store, node_id)
        if known.directories.keys().isdisjoint(directories):
            raise StorageError(f"node {node_id} runs with other log directories; stop it first")
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
    """Check the advertised addresses of a node.

    Args:
        store: The metadata store.
        node_id: The node.
        addresses: Advertised addresses by listener.

    Raises:
        StorageError: An address is a wildcard, or belongs to another node.
    """
    for name, address in addresses.items():
        if _is_wildcard(address.host):
            raise StorageError(
                f"listener {name}: other nodes cannot connect to the wildcard address {address}; set a "
                "reachable address with --advertise HOST:PORT"
            )
    live = (await store.range(LIVE)).entries
    for key, entry in live.items():
        other = Registration.from_entry(int(key.removeprefix(LIVE)), entry, ready=False)
        taken = set(other.listeners.values()) & set(addresses.values())
        if other.node_id != node_id and taken:
            raise StorageError(
                f"node {other.node_id} already uses the address {taken.pop()}; set the address of node "
                f"{node_id} with --advertise HOST:PORT"
            )


def _is_wildcard(host: str) -> bool:
    if not host:
        return True
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
