"""The directories in which brokers keep logs, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest

from .cluster import ClusterClient
from .errors import check, error_code
from .topics import Partition


@dataclass(frozen=True, slots=True)
class LogDir:
    """One directory of one broker; sizes are bytes, -1 where the broker does not say."""

    node_id: int
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    sizes: dict[Partition, int]

    @property
    def used(self) -> float:
        """The part of the disk that cannot be used any more; 0 where the broker does not say."""
        return 1 - self.usable_bytes / self.total_bytes if self.total_bytes > 0 else 0.0


async def describe_log_dirs(
    cluster: ClusterClient, node_ids: Iterable[int] | None = None
) -> list[LogDir]:
    """All directories of these brokers, None for all of them. Raises KafkaError, NotReachable."""
    if node_ids is None:
        node_ids = [row.node_id for row in (await cluster.metadata([])).brokers]
    found = []
    for node_id in sorted(node_ids):
        answer = await (await cluster.node(node_id)).ask(DescribeLogDirsRequest(topics=None))
        check(answer.error_code)
        found += [
            LogDir(
                node_id,
                row.log_dir,
                error_code(row.error_code),
                row.total_bytes,
                row.usable_bytes,
                {
                    (topic.name, part.partition_index): part.partition_size
                    for topic in row.topics
                    for part in topic.partitions
                },
            )
            for row in answer.results
        ]
    return found
