"""Settings of consumer, share and streams groups: group configs override broker configs.

Each function takes the broker configs and the configs of the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.config import BrokerConfig, GroupConfig
from kbroker.coordinator import (
    ConsumerGroupSettings,
    MigrationPolicy,
    ShareGroupSettings,
    StreamsGroupSettings,
)


class _Timings(NamedTuple):
    """Times of a group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def consumer(config: BrokerConfig, own: Mapping[str, str]) -> ConsumerGroupSettings:
    """Return the settings of a consumer group."""
    return ConsumerGroupSettings(
        **_timings("consumer", config, own)._asdict(),
        size_max=config.group_consumer_max_size,
        assignors=config.group_consumer_assignors,
        migration=MigrationPolicy(config.group_consumer_migration_policy.lower()),
    )


def streams(config: BrokerConfig, own: Mapping[str, str]) -> StreamsGroupSettings:
    """Return the settings of a streams group."""

    def number(name: str) -> int:
        return int(own.get(name, config.integer(f"group.{name}")))

    most_standbys = config.group_streams_max_standby_replicas
    group = GroupConfig.stored(own, config)
    return StreamsGroupSettings(
        **_timings("streams", config, own)._asdict(),
        initial_rebalance_delay_ms=number("streams.initial.rebalance.delay.ms"),
        size_max=config.group_streams_max_size,
        standby_replicas=min(number("streams.num.standby.replicas"), most_standbys),
        assignor=_assignor(group.streams_assignor_name, config.group_streams_assignors),
        rack_aware_tags=group.streams_rack_aware_assignment_tags,
    )


def _assignor(name: str, known: Sequence[str]) -> str:
    """Return the assignor that a group names, or the default one if the broker lacks it."""
    return name if name in known else known[0]


def share(config: BrokerConfig, own: Mapping[str, str]) -> ShareGroupSettings:
    """Return the settings of a share group."""
    size_max = config.group_share_max_size
    return ShareGroupSettings(**_timings("share", config, own)._asdict(), size_max=size_max)


def _timings(kind: str, config: BrokerConfig, own: Mapping[str, str]) -> _Timings:
    """Return the timings of a group, clamped to the bounds of the broker configs."""

    def timing(name: str) -> int:
        value = int(own.get(f"{kind}.{name}", config.integer(f"group.{kind}.{name}")))
        least = config.integer(f"group.{kind}.min.{name}")
        return min(max(value, least), config.integer(f"group.{kind}.max.{name}"))

    return _Timings(
        timing("session.timeout.ms"),
        timing("heartbeat.interval.ms"),
        timing("assignment.interval.ms"),
    )
