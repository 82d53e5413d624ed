"""The one table of settings, by scope and name, and the names of Kafka that stand outside of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .broker_table import BrokerSettings
from .group_table import ClientMetricsSettings, GroupSettings
from .kafka_only import KAFKA_ONLY, find_kafka_only
from .property import ConfigError, Effect, Property, Scope, Settings, Value, properties_of
from .topic_table import TopicSettings


def _by_name(owner: type[Settings]) -> Mapping[str, Property[Value]]:
    by_name = {each.name: each for each in properties_of(owner)}
    return MappingProxyType(dict(sorted(by_name.items())))


TOPIC_PROPERTIES = _by_name(TopicSettings)
GROUP_PROPERTIES = _by_name(GroupSettings)
CLIENT_METRICS_PROPERTIES = _by_name(ClientMetricsSettings)
BROKER_PROPERTIES = _by_name(BrokerSettings)

PROPERTIES: Mapping[Scope, Mapping[str, Property[Value]]] = MappingProxyType(
    {
        Scope.BROKER: BROKER_PROPERTIES,
        Scope.TOPIC: TOPIC_PROPERTIES,
        Scope.GROUP: GROUP_PROPERTIES,
        Scope.CLIENT_METRICS: CLIENT_METRICS_PROPERTIES,
    }
)
"""Every setting that kbroker answers for, by scope and name, in the order of names."""


def find_property(scope: Scope, name: str) -> Property[Value]:
    """The setting of that name; raises ConfigError with the nearest name there is."""
    found = PROPERTIES[scope].get(name)
    if found is None:
        raise ConfigError(unknown_name(name, scope))
    return found


def effect_of(name: str) -> Effect | None:
    """What becomes of a broker setting; ``None`` when neither kbroker nor Kafka knows the name."""
    found = BROKER_PROPERTIES.get(name)
    if found is not None:
        return found.effect
    other = find_kafka_only(name)
    return None if other is None else other.effect


def unknown_name(name: str, scope: Scope) -> str:
    """An error text for a name that no table has."""
    known = [*PROPERTIES[scope], *(KAFKA_ONLY if scope is Scope.BROKER else ())]
    return f"Unknown {scope} config name: {name}{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the name that this one is nearest to; empty when none is near."""
    # difflib costs more to import than everything else here, and most starts never need it.
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
