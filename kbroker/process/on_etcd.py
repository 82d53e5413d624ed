"""Access of commands to cluster metadata on etcd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from kbroker.cluster import MetadataStore
from kbroker.cluster.etcd import EtcdAddress, connected

from .errors import cause_of

T = TypeVar("T")


def on_etcd(address: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Connect to a cluster's etcd, run a function with its metadata store, and return the result.

    Args:
        address: Address of the cluster's etcd.
        work: The function.

    Raises:
        ConfigError: The address is invalid.
        StorageError: The metadata cannot be read or changed.
    """
    found = EtcdAddress.parse(address)

    async def run() -> T:
        async with connected(found) as store:
            return await work(store)

    try:
        return trio.run(run, strict_exception_groups=True)
    except ExceptionGroup as group:
        raise cause_of(group) from None
