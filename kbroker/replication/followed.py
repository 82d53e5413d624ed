"""A partition that a node follows, and its fetch state."""

from __future__ import annotations

from kbroker.partitions.replica import Replica
from kbroker.runtime.backoff import Backoff

from .follower_session import PartitionKey, Position


class FollowedPartition:
    """One followed partition under one leader and leader epoch."""

    __slots__ = ("backoff", "high_watermark", "key", "leader_epoch", "log_start", "replica")

    def __init__(self, replica: Replica, leader_epoch: int, backoff: Backoff) -> None:
        self.replica = replica
        self.key: PartitionKey = (replica.topic.id, replica.index)
        self.leader_epoch = leader_epoch
        self.backoff = backoff
        # Last values from the leader.
        self.high_watermark = self.log_start = 0

    def __str__(self) -> str:
        return f"{self.replica.topic.name}-{self.replica.index}"

    @property
    def is_current(self) -> bool:
        """True if this node still follows the partition in the same leader epoch."""
        replica = self.replica
        return (
            not replica.closed
            and not replica.is_leader
            and replica.leader_epoch == self.leader_epoch
        )

    @property
    def is_durable(self) -> bool:
        """True if all records of the log are durable and may be acknowledged."""
        log = self.replica.log
        return log.offline is None and self.replica.durable_end >= log.log_end_offset

    @property
    def can_append(self) -> bool:
        """True if the log can be appended to; a fetch implies that the replica keeps up."""
        return self.is_durable and self.replica.log.read_only_reason is None

    def apply_leader_offsets(self) -> None:
        """Apply the high watermark and the log start offset of the leader."""
        self.replica.update_high_watermark(self.high_watermark)
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
