"""A partition that a node copies, and how far it is."""

from __future__ import annotations

from kbroker.partitions.replica import Replica
from kbroker.runtime.backoff import Backoff

from .follower_session import PartitionKey, Position


class Followed:
    """One partition under one leader and epoch."""

    __slots__ = ("backoff", "high_watermark", "key", "leader_epoch", "log_start", "replica")

    def __init__(self, replica: Replica, leader_epoch: int, backoff: Backoff) -> None:
        self.replica = replica
        self.key: PartitionKey = (replica.topic.id, replica.index)
        self.leader_epoch = leader_epoch
        self.backoff = backoff
        self.high_watermark = self.log_start = 0
        """As the leader told last."""

    def __str__(self) -> str:
        return f"{self.replica.topic.name}-{self.replica.index}"

    @property
    def is_current(self) -> bool:
        """Whether this node still follows, under the same leader epoch."""
        replica = self.replica
        return (
            not replica.closed
            and not replica.is_leader
            and replica.leader_epoch == self.leader_epoch
        )

    @property
    def is_durable(self) -> bool:
        """Whether everything here may be acknowledged."""
        log = self.replica.log
        return log.offline is None and self.replica.durable_end >= log.log_end_offset

    @property
    def may_go_on(self) -> bool:
        """Whether what comes next can be appended: a fetch says that this replica keeps up."""
        return self.is_durable and self.replica.log.refusal is None

    def apply_marks(self) -> None:
        """Let readers see what the leader calls committed, and forget what it has given up."""
        self.replica.committed_by_leader(self.high_watermark)
        log = self.replica.log
        start = min(self.log_start, log.high_watermark)
        if start > log.log_start_offset:
            self.replica.delete_records_before(start)

    @property
    def position(self) -> Position:
        log = self.replica.log
        return Position(
            log.log_end_offset,
            log.log_start_offset,
            self.leader_epoch,
            log.epochs.latest,
            log.high_watermark,
        )
