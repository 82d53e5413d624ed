"""Tables of all settings by scope and name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .broker_table import BrokerSettings
from .group_table import ClientMetricsSettings, GroupSettings
from .kafka_only import KAFKA_ONLY, find_kafka_only
from .property import ConfigError, Property, Scope, SettingEffect, Settings, Value, properties_of
from .topic_table import TopicSettings


def _by_name(owner: type[Settings]) -> Mapping[str, Property[Value]]:
    by_name = {each.name: each for each in properties_of(owner)}
    return MappingProxyType(dict(sorted(by_name.items())))


TOPIC_PROPERTIES = _by_name(TopicSettings)
GROUP_PROPERTIES = _by_name(GroupSettings)
CLIENT_METRICS_PROPERTIES = _by_name(ClientMetricsSettings)
BROKER_PROPERTIES = _by_name(BrokerSettings)

# All settings in kbroker's tables, by scope and name, sorted by name.
PROPERTIES: Mapping[Scope, Mapping[str, Property[Value]]] = MappingProxyType(
    {
        Scope.BROKER: BROKER_PROPERTIES,
        Scope.TOPIC: TOPIC_PROPERTIES,
        Scope.GROUP: GROUP_PROPERTIES,
        Scope.CLIENT_METRICS: CLIENT_METRICS_PROPERTIES,
    }
)


def find_property(scope: Scope, name: str) -> Property[Value]:
    """Return the setting with that name.

    Raises:
        ConfigError: The name is unknown; the message suggests the most similar name.
    """
    found = PROPERTIES[scope].get(name)
    if found is None:
        raise ConfigError(unknown_name_error(name, scope))
    return found


def effect_of(name: str) -> SettingEffect | None:
    """Return the effect of a broker setting, or None if neither kbroker nor Kafka has the name."""
    found = BROKER_PROPERTIES.get(name)
    if found is not None:
        return found.effect
    other = find_kafka_only(name)
    return None if other is None else other.effect


def unknown_name_error(name: str, scope: Scope) -> str:
    """Return the error message for a name that is in no table."""
    known = [*PROPERTIES[scope], *(KAFKA_ONLY if scope is Scope.BROKER else ())]
    return f"Unknown {scope} config name: {name}{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name, or "" if no name is similar."""
    # Import difflib on first use: the import is slow, and most starts do not need it.
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
