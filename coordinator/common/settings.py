"""What an operator can set about groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Defaults are Kafka's, except for the initial delay (Kafka: 3 s).

    Attributes:
      session_timeout_min_ms, session_timeout_max_ms: Bounds of what a member may ask for
        (`group.min.session.timeout.ms`, `group.max.session.timeout.ms`).
      initial_rebalance_delay_ms: How long the first rebalance of an empty group waits for more
        members (`group.initial.rebalance.delay.ms`).
      group_size_max: Most members of a group (`group.max.size`).
      member_metadata_bytes_max: Maximum size in bytes of the metadata of one member, over all its
        protocols (`group.member.metadata.max.bytes`).
      group_metadata_bytes_max: Maximum size in bytes of the metadata of all members of a group
        (`group.metadata.max.bytes`).
      new_member_join_timeout_ms: How long a member that has not been told its id may stay parked
        in a join. It cannot send heartbeats, and after a lost connection nobody else knows it.
      offset_metadata_length_max: Longest metadata string of a commit, in characters
        (`offset.metadata.max.bytes`).
      offsets_retention_ms: How long offsets outlive their use (`offsets.retention.minutes`).
    """

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    group_size_max: int = 2**31 - 1
    member_metadata_bytes_max: int = 1024 * 1024
    group_metadata_bytes_max: int = 16 * 1024 * 1024
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_length_max: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


class MigrationPolicy(StrEnum):
    """Which way a group may go while it has members (`group.consumer.migration.policy`)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    """From the classic protocol to that of KIP-848."""
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Of one consumer group of KIP-848, as they are now. Defaults are Kafka's.

    Attributes:
      session_timeout_ms: Silence after which a member is removed (`consumer.session.timeout.ms`).
      heartbeat_interval_ms: How often members are asked to send heartbeats
        (`consumer.heartbeat.interval.ms`).
      assignment_interval_ms: Shortest time between two targets, so that members which come one
        after the other are given their shares together (`consumer.assignment.interval.ms`).
      size_max: Most members of a group (`group.consumer.max.size`).
      assignors: Assignors that members may ask for, the first one for groups whose members do not
        (`group.consumer.assignors`).
      migration: Which way the group may go while it has members.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL


@dataclass(frozen=True, slots=True)
class StreamsGroupSettings:
    """Of one streams group of KIP-1071, as they are now. Defaults are Kafka's.

    Attributes:
      session_timeout_ms: Silence after which a member is removed (`streams.session.timeout.ms`).
      heartbeat_interval_ms: How often members are asked to send heartbeats
        (`streams.heartbeat.interval.ms`).
      assignment_interval_ms: Shortest time between two targets (`streams.assignment.interval.ms`).
      initial_rebalance_delay_ms: How long a group without members waits for more of them when one has
        come (`streams.initial.rebalance.delay.ms`).
      size_max: Most members of a group (`group.streams.max.size`).
      standby_replicas: Copies of the state of each task (`streams.num.standby.replicas`).
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2**31 - 1
    standby_replicas: int = 0


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """Of one share group of KIP-932, as they are now. Defaults are Kafka's.

    Attributes:
      session_timeout_ms: Silence after which a member is removed (`share.session.timeout.ms`).
      heartbeat_interval_ms: How often members are asked to send heartbeats
        (`share.heartbeat.interval.ms`).
      assignment_interval_ms: Shortest time between two targets (`share.assignment.interval.ms`).
      size_max: Most members of a group (`group.share.max.size`).
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 200
