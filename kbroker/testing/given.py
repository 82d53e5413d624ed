"""What a test gives, in the forms that come naturally, as the kit takes it.

What cannot be meant raises ValueError, with what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from kbroker.client.topics import Partition
from kbroker.config import ConfigError, Scope, effect_of, property_text, unknown_name

Text = TypeVar("Text", bound=str)

Config = Mapping[str, object]
"""Kafka's properties: text, numbers, True and False, lists of them."""
Topics = Mapping[str, int] | Iterable[str]
"""Topics with the number of their partitions, or the names of topics with one partition."""
Partitions = Mapping[str, Iterable[int]] | Iterable[Sequence[str | int]]
"""Pairs of topic and partition, or topics with their partitions."""

GROUP_STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Stable",
    "Dead",
)
KIT_DEFAULTS = {"log.message.timestamp.after.max.ms": str((1 << 63) - 1)}
"""Defaults of brokers under test that differ from Kafka's: a test may give its clients any time."""
AT_REST = {"Stable", "Empty", "Dead"}
"""The states of groups that do not rebalance."""


def check_number(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Raise ValueError for what is no number from `least` to `most`; True and "2" are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number:
        raise ValueError(f"{name} is a number, not {value!r}")
    if not least <= value <= most:
        limits = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} is {limits}, not {value}")


def one_of(name: str, given: str, known: Sequence[Text]) -> Text:
    """The one of `known` that is meant, in whatever case. Raises ValueError."""
    for each in known:
        if each.lower() == given.lower():
            return each
    raise ValueError(f"{name} is one of {', '.join(known)}, not {given!r}")


def group_state(given: str | None) -> str | None:
    """A state of groups as Kafka writes it; None for any. Raises ValueError."""
    return None if given is None else one_of("state", given, GROUP_STATES)


def properties(given: Config) -> dict[str, str]:
    """Properties as text: 3 is "3", and True is "true". Raises ConfigError."""
    return {name: property_text(name, value) for name, value in given.items()}


def broker_properties(given: Config) -> dict[str, str]:
    """The same of a broker. Raises ConfigError for names that neither Kafka nor kbroker has."""
    unknown = [unknown_name(name, Scope.BROKER) for name in given if effect_of(name) is None]
    if unknown:
        raise ConfigError("\n".join(unknown))
    return properties(given)


def kit_properties(given: Config) -> dict[str, str]:
    """Convert the broker properties of a test to text, on top of the defaults of the test kit.

    Raises:
        ConfigError: A name is a property of neither Kafka nor kbroker, or a value has no text.
    """
    return KIT_DEFAULTS | broker_properties(given)


def topics_of(given: Topics) -> dict[str, int]:
    """Topics with the number of their partitions. Raises ValueError."""
    topics = given if isinstance(given, Mapping) else _named(given)
    for name, partitions in topics.items():
        check_number(f"topics[{name!r}]", partitions, 1)
    return dict(topics)


def _named(names: Iterable[str]) -> Mapping[str, int]:
    listed = [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f'topics are {{"orders": 3}}, or a list of names, not {names!r}')
    return dict.fromkeys(listed, 1)


def partitions_of(given: Partitions) -> list[Partition]:
    """Partitions in their order. Raises ValueError."""
    found: list[Partition] = []
    for each in _pairs(given):
        match each:
            case [str(topic), int(index)]:
                found.append((topic, index))
            case _:
                raise ValueError(
                    f'partitions are [("orders", 0), ...] or {{"orders": [0, 1]}}, not {given!r}'
                )
    return sorted(found)


def _pairs(given: Partitions) -> Iterable[object]:
    if not isinstance(given, Mapping):
        return given
    return [
        (topic, index)
        for topic, indexes in given.items()
        for index in (indexes if isinstance(indexes, Iterable) else [indexes])
    ]
