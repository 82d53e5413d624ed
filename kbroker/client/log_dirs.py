"""Log directories of brokers and their contents."""

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
    """A log directory of a broker; sizes are in bytes, -1 if the broker does not report them."""

    node_id: int
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    sizes: dict[Partition, int]

    @property
    def used(self) -> float:
        """Fraction of the disk that is not usable any more; 0 if the broker does not report it."""
        return 1 - self.usable_bytes / self.total_bytes if self.total_bytes > 0 else 0.0


async def describe_log_dirs(
    cluster: ClusterClient, node_ids: Iterable[int] | None = None
) -> list[LogDir]:
    """Return the log directories of the given brokers, or of all brokers for None.

    Raises:
        KafkaError: A broker rejects the request.
        NotReachable: A broker cannot be reached.
    """
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
