"""Validated settings of groups and of metrics subscriptions."""

from __future__ import annotations

from collections.abc import Mapping

from .group_table import ClientMetricsSettings, GroupSettings
from .property import ConfigError, Scope
from .tables import BROKER_PROPERTIES
from .values import BrokerConfig, ResourceConfig


class GroupConfig(ResourceConfig, GroupSettings):
    """Settings of one group: the values of the group, or else the values of the broker."""

    __slots__ = ()

    scope = Scope.GROUP


class ClientMetricsConfig(ResourceConfig, ClientMetricsSettings):
    """Settings of one client metrics subscription (KIP-714)."""

    __slots__ = ()

    scope = Scope.CLIENT_METRICS


def validate_group_configs(values: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check all new settings of a group: each one, their combination, and the broker's limits.

    Raises:
        ConfigError: A value is invalid or outside the broker's limits.
    """
    group = GroupConfig(values, broker)
    for name in values:
        kind, _, rest = name.partition(".")
        minimum = f"group.{kind}.min.{rest}"
        maximum = f"group.{kind}.max.{rest.removeprefix('num.')}"
        if minimum in BROKER_PROPERTIES and group.integer(name) < broker.integer(minimum):
            raise ConfigError(f"{name} must be greater than or equal to {minimum}")
        if maximum in BROKER_PROPERTIES and group.integer(name) > broker.integer(maximum):
            raise ConfigError(f"{name} must be less than or equal to {maximum}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if group.integer(session) <= group.integer(heartbeat):
            raise ConfigError(f"{session} must be greater than {heartbeat}")


def validate_client_metrics(values: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check all new settings of a metrics subscription.

    Raises:
        ConfigError: A value is invalid.
    """
    ClientMetricsConfig(values, broker)
