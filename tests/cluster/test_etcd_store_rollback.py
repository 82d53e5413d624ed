"""A store keeps its entries while etcd holds an older state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.storage.errors import StorageError

from ..wire import until
from .contract import Copy, must_put, put
from .etcd import Etcd, Network, network_to
from .test_etcd_store import WAIT_SECONDS, store_at

pytestmark = pytest.mark.slow

FOREIGN_WRITES = 60


def raise_revision(etcd: Etcd) -> None:
    """Write keys of another application that shares the etcd."""
    for _ in range(FOREIGN_WRITES):
        etcd.ask("kv/put", {"key": "Zm9yZWlnbg==", "value": ""})


def restore_older(etcd: Etcd, copied: Path) -> None:
    etcd.restore(copied)


def restore_and_write(etcd: Etcd, copied: Path) -> None:
    etcd.restore(copied)
    raise_revision(etcd)


def restore_write_and_compact(etcd: Etcd, copied: Path) -> None:
    restore_and_write(etcd, copied)
    etcd.compact(keep=0)


def empty(etcd: Etcd, copied: Path) -> None:
    lost = copied.with_name("empty")
    lost.mkdir()
    etcd.restore(lost)


@pytest.mark.parametrize(
    "restore", [restore_older, restore_and_write, restore_write_and_compact, empty]
)
@pytest.mark.parametrize(
    "others_write",
    [pytest.param(False, id="alone", marks=pytest.mark.long), pytest.param(True, id="with-others")],
)
async def test_older_state_is_ignored_until_newest_state_returns(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    restore: Callable[[Etcd, Path], None],
    others_write: bool,
) -> None:
    etcd = Etcd(tmp_path)
    try:
        async with (
            network_to(etcd.endpoints[0]) as network,
            store_at([network.endpoint], "a") as store,
        ):
            copy = await Copy(store).open()
            first = await must_put(store, "changed", 1)
            deleted = await must_put(store, "deleted", 1)
            copied = etcd.copy()
            async with store_at(etcd.endpoints, "a") as other:
                await must_put(other, "changed", 2, first)
                await must_put(other, "deleted", None, deleted)
                await copy.wait_for_revision(await must_put(other, "new", 1))
            known = dict(copy.entries)
            newest = etcd.copy()
            await _go_back(etcd, network, restore, copied, others_write)
            await until(lambda: "older state" in str(store.problem), WAIT_SECONDS)
            with pytest.raises(StorageError, match="older state"):
                await put(store, "later", 1)
            with pytest.raises(StorageError, match="older state"):
                await store.grant(5, holder="node 1")
            assert copy.entries == known
            assert "restore the newest snapshot" in caplog.text
            etcd.restore(newest)
            await until(lambda: store.problem is None, WAIT_SECONDS)
            async with store_at(etcd.endpoints, "a") as other:
                await copy.wait_for_revision(await must_put(other, "later", 1))
            assert copy.entries.keys() == {*known, "later"}
    finally:
        etcd.stop()


async def _go_back(
    etcd: Etcd,
    network: Network,
    restore: Callable[[Etcd, Path], None],
    copied: Path,
    others_write: bool,
) -> None:
    """Reconnect the store after etcd was restored and other clients have written to it."""
    await network.cut()
    restore(etcd, copied)
    if others_write:
        async with store_at(etcd.endpoints, "a") as other:
            await must_put(other, "other", 1)
    network.heal()
