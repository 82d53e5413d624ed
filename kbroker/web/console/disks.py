"""Disks of a node, for the overview and the page of the storage."""

from __future__ import annotations

from kbroker.node.node import Node
from kbroker.storage.errors import StorageError


def disk_rows(node: Node) -> list[dict[str, object]]:
    """Return a row per log directory of a node; sizes are in bytes, -1 if unknown."""
    rows = []
    for manager in node.partitions.logs.managers:
        try:
            total, free = manager.usage()
        except StorageError:
            total = free = -1
        reason = manager.failed or manager.read_only_reason
        rows.append(
            {
                "node": node.id,
                "directory": manager.data_dir,
                "total": total,
                "free": free,
                "read_only_reason": reason or None,
            }
        )
    return rows
