"""The one table of settings, by scope and name, and the names of Kafka that stand outside of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .broker_table import SECTIONS
from .elsewhere import ELSEWHERE, elsewhere
from .group_table import CLIENT_METRICS_TABLE, GROUP_TABLE
from .property import ConfigError, Effect, Property, Scope
from .topic_table import TOPIC_TABLE


def _by_name(properties: Iterable[Property]) -> Mapping[str, Property]:
    return MappingProxyType({each.name: each for each in sorted(properties, key=_name)})


def _name(each: Property) -> str:
    return each.name


TOPIC_PROPERTIES = _by_name(TOPIC_TABLE)
GROUP_PROPERTIES = _by_name(GROUP_TABLE)
CLIENT_METRICS_PROPERTIES = _by_name(CLIENT_METRICS_TABLE)
BROKER_PROPERTIES = _by_name(each for _, section in SECTIONS for each in section)

PROPERTIES: Mapping[Scope, Mapping[str, Property]] = MappingProxyType(
    {
        Scope.BROKER: BROKER_PROPERTIES,
        Scope.TOPIC: TOPIC_PROPERTIES,
        Scope.GROUP: GROUP_PROPERTIES,
        Scope.CLIENT_METRICS: CLIENT_METRICS_PROPERTIES,
    }
)
"""Every setting that kbroker answers for, by scope and name, in the order of names."""


def find_property(scope: Scope, name: str) -> Property:
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
    other = elsewhere(name)
    return None if other is None else other.effect


def unknown_name(name: str, scope: Scope) -> str:
    """An error text for a name that no table has."""
    known = [*PROPERTIES[scope], *(ELSEWHERE if scope is Scope.BROKER else ())]
    return f"Unknown {scope} config name: {name}{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the name that this one is nearest to; empty when none is near."""
    # difflib costs more to import than everything else here, and most starts never need it.
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
