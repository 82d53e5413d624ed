"""Group settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of classic groups and offsets. Defaults are Kafka's, except the initial delay (3 s).

    Attributes:
        session_timeout_min_ms, session_timeout_max_ms: Bounds for the session timeout of a member
            (`group.min.session.timeout.ms`, `group.max.session.timeout.ms`).
        initial_rebalance_delay_ms: How long the first rebalance of an empty group waits for more
            members (`group.initial.rebalance.delay.ms`).
        group_size_max: Maximum number of members of a group (`group.max.size`).
        member_metadata_bytes_max: Maximum size in bytes of the metadata of one member, over all its
            protocols (`group.member.metadata.max.bytes`).
        group_metadata_bytes_max: Maximum size in bytes of the metadata of all members of a group
            (`group.metadata.max.bytes`).
        new_member_join_timeout_ms: How long the JoinGroup of a member without a member ID may stay
            pending. Such a member cannot send heartbeats, and cannot rejoin if its connection is
            lost.
        offset_metadata_length_max: Maximum length of the metadata string of a commit, in characters
            (`offset.metadata.max.bytes`).
        offsets_retention_ms: How long unused offsets are kept (`offsets.retention.minutes`).
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
    """Permitted conversions of a group that has members (`group.consumer.migration.policy`)."""

    DISABLED = "disabled"
    # Permit conversion from the classic protocol to the consumer protocol (KIP-848).
    UPGRADE = "upgrade"
    # Permit conversion from the consumer protocol to the classic protocol.
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
    """Current settings of one consumer group (KIP-848). Defaults are Kafka's.

    Attributes:
        session_timeout_ms: Time without a heartbeat after which a member is removed
            (`consumer.session.timeout.ms`).
        heartbeat_interval_ms: Interval between the heartbeats of a member
            (`consumer.heartbeat.interval.ms`).
        assignment_interval_ms: Minimum time between two target assignments, so that members which
            join one after another are assigned together (`consumer.assignment.interval.ms`).
        size_max: Maximum number of members of a group (`group.consumer.max.size`).
        assignors: Assignors that members may select. The first one is the default
            (`group.consumer.assignors`).
        migration: Permitted conversions while the group has members.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL


@dataclass(frozen=True, slots=True)
class StreamsGroupSettings:
    """Current settings of one streams group (KIP-1071). Defaults are Kafka's.

    Attributes:
        session_timeout_ms: Time without a heartbeat after which a member is removed
            (`streams.session.timeout.ms`).
        heartbeat_interval_ms: Interval between the heartbeats of a member
            (`streams.heartbeat.interval.ms`).
        assignment_interval_ms: Minimum time between two target assignments
            (`streams.assignment.interval.ms`).
        initial_rebalance_delay_ms: How long an empty group waits for more members after the first
            one has joined (`streams.initial.rebalance.delay.ms`).
        size_max: Maximum number of members of a group (`group.streams.max.size`).
        standby_replicas: Number of standby tasks per stateful task
            (`streams.num.standby.replicas`).
        assignor: Task assignor of the group (`streams.assignor.name`).
        rack_aware_tags: Keys of the client tags that each member should have
            (`streams.rack.aware.assignment.tags`).
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = 2**31 - 1
    standby_replicas: int = 0
    assignor: str = "sticky"
    rack_aware_tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """Current settings of one share group (KIP-932). Defaults are Kafka's.

    Attributes:
        session_timeout_ms: Time without a heartbeat after which a member is removed
            (`share.session.timeout.ms`).
        heartbeat_interval_ms: Interval between the heartbeats of a member
            (`share.heartbeat.interval.ms`).
        assignment_interval_ms: Minimum time between two target assignments
            (`share.assignment.interval.ms`).
        size_max: Maximum number of members of a group (`group.share.max.size`).
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 200
