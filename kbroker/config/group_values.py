"""Validated settings of groups and of metrics subscriptions."""

from __future__ import annotations

from collections.abc import Mapping

from .group_table import ClientMetricsSettings, GroupSettings
from .property import ConfigError, Scope, Value
from .tables import BROKER_PROPERTIES
from .values import BrokerConfig, ResourceConfig


class GroupConfig(ResourceConfig, GroupSettings):
    """Settings of one group: the values of the group, or else the values of the broker."""

    __slots__ = ()

    scope = Scope.GROUP

    def effective(self, name: str) -> Value:
        """Return the group's own value, or else the broker's, or else the default.

        Raises:
            KeyError: The name is unknown.
        """
        value = super().effective(name)
        if name == GroupConfig.streams_assignor_name.name and isinstance(value, tuple):
            return value[0]  # the broker setting is a list, whose first assignor is the default
        return value


class ClientMetricsConfig(ResourceConfig, ClientMetricsSettings):
    """Settings of one client metrics subscription (KIP-714)."""

    __slots__ = ()

    scope = Scope.CLIENT_METRICS


def _limits(name: str, broker: BrokerConfig) -> tuple[int | None, int | None]:
    """Return the broker's minimum and maximum of a group setting; None without a limit."""
    kind, _, rest = name.partition(".")
    minimum = f"group.{kind}.min.{rest}"
    maximum = f"group.{kind}.max.{rest.removeprefix('num.')}"
    return (
        broker.integer(minimum) if minimum in BROKER_PROPERTIES else None,
        broker.integer(maximum) if maximum in BROKER_PROPERTIES else None,
    )


def _check_limits(name: str, value: int, minimum: int | None, maximum: int | None) -> None:
    """Check a value against limits. The messages are those of Kafka.

    Raises:
        ConfigError: The value is outside the limits.
    """
    is_low = minimum is not None and value < minimum
    is_high = maximum is not None and value > maximum
    if not (is_low or is_high):
        return
    if minimum is not None and maximum is not None:
        raise ConfigError(f"{name} must be in the range {minimum} to {maximum} inclusive.")
    if is_low:
        raise ConfigError(f"{name} must be greater than or equal to {minimum}")
    raise ConfigError(f"{name} must be less than or equal to {maximum}")


def validate_group_configs(values: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check all new settings of a group: each one, their combination, and the broker's limits.

    Raises:
        ConfigError: A value is invalid or outside the broker's limits.
    """
    group = GroupConfig(values, broker)
    for name in values:
        minimum, maximum = _limits(name, broker)
        if minimum is not None or maximum is not None:
            _check_limits(name, group.integer(name), minimum, maximum)
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if group.integer(session) <= group.integer(heartbeat):
            raise ConfigError(f"{session} must be greater than {heartbeat}")
    _check_assignor(group)
    _check_dead_letter_topic(group)


def _check_assignor(group: GroupConfig) -> None:
    """Raise ConfigError if the broker lacks the task assignor of a streams group."""
    name, known = group.streams_assignor_name, group.broker.group_streams_assignors
    if name not in known:
        raise ConfigError(
            f"streams.assignor.name '{name}' is not a registered task assignor. "
            f"Registered assignors are: [{', '.join(known)}]."
        )


def _check_dead_letter_topic(group: GroupConfig) -> None:
    """Raise ConfigError if the dead-letter queue topic of a share group is an internal topic."""
    name = GroupConfig.errors_deadletterqueue_topic_name.name
    if group.errors_deadletterqueue_topic_name.startswith("__"):
        raise ConfigError(f"{name}: DLQ topic name must not start with '__'")


def validate_client_metrics(values: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check all new settings of a metrics subscription.

    Raises:
        ConfigError: A value is invalid.
    """
    ClientMetricsConfig(values, broker)
