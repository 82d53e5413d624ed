"""Which nodes hold a new partition."""

from __future__ import annotations

from collections.abc import Sequence


def place(
    node_ids: Sequence[int], count: int, replication_factor: int, *, first: int = 0
) -> list[list[int]]:
    """Spread partitions evenly: leaders go round, followers are the next nodes on the ring.

    Parameters: `first` is the index of the first partition, so that partitions that are added to
    a topic go on where the last one stopped. Returns a list of node ids for each partition, its
    preferred leader first.
    """
    nodes = len(node_ids)
    return [
        [node_ids[(partition + replica) % nodes] for replica in range(replication_factor)]
        for partition in range(first, first + count)
    ]
