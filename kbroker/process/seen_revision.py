"""The newest metadata revision that a node has seen, stored in its first log directory.

If etcd is restored to an older state, the ISR may contain replicas that lack acknowledged records, and
topics may be missing. A starting node can detect an older state only by this file.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from kbroker.data_dirs.found_directories import SEEN_REVISION
from kbroker.storage.errors import StorageError

# Seconds between two checks for a newer revision to write to the file.
STORE_SECONDS = 5.0


class Written(Protocol):
    """A metadata store with the revision of its newest transaction."""

    @property
    def written(self) -> int: ...


@asynccontextmanager
async def seen_revision(directory: str, store: Written, address: str) -> AsyncIterator[None]:
    """Check that the metadata is not older than the stored revision, and store newer revisions.

    Args:
        directory: The first log directory of the node.
        store: A store that has read the metadata.
        address: Address of the metadata, for messages.

    Raises:
        StorageError: The metadata is older, or the file cannot be read.
    """
    path = Path(directory, SEEN_REVISION)
    seen = _read(path)
    if store.written < seen:
        raise StorageError(
            f"{address} holds an older state of the metadata (revision {store.written}) than this "
            f"node has seen (revision {seen}); its ISRs may contain replicas that lack acknowledged "
            "records. Restore the newest snapshot of etcd. If there is no newer one, stop all nodes, "
            f"copy their log directories, and remove {path} on each node to start with the older "
            "state"
        )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_store_revisions, path, store, seen)
        yield
        nursery.cancel_scope.cancel()
    _write_newer(path, store.written, seen)


def _read(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise StorageError(
            f"cannot read {path}, which contains the newest metadata revision that this node has "
            f"seen: {error}; remove the file if etcd has the newest state"
        ) from None


async def _store_revisions(path: Path, store: Written, seen: int) -> None:
    while True:
        await trio.sleep(STORE_SECONDS)
        newest = store.written
        await trio.to_thread.run_sync(partial(_write_newer, path, newest, seen))
        seen = max(seen, newest)


def _write_newer(path: Path, newest: int, seen: int) -> None:
    """Replace the file. Ignore disk errors, which appends report."""
    if newest <= seen or not path.parent.is_dir():
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(f"{newest}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        return
