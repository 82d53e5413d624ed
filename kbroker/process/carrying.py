"""The metadata of a stopped cluster goes to etcd, or comes back, by the address of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import trio

from kbroker.cluster.etcd import EtcdAddress, connected
from kbroker.folders.carrying import carry_in, carry_out
from kbroker.storage.files import OsFiles

from .errors import cause_of


def carry(address: str, paths: Sequence[str], *, out: bool) -> Mapping[int, Sequence[str]]:
    """Carry the metadata of data folders to a cluster's address, or back; returns nodes' folders.

    Raises ConfigError and StorageError.
    """
    try:
        work = partial(_carry, EtcdAddress.parse(address), paths, out=out)
        return trio.run(work, strict_exception_groups=True)
    except ExceptionGroup as group:
        raise cause_of(group) from None


async def _carry(
    address: EtcdAddress, paths: Sequence[str], *, out: bool
) -> Mapping[int, Sequence[str]]:
    async with connected(address) as store:
        return await (carry_out if out else carry_in)(OsFiles(), paths, store)
