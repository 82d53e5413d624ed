"""Conversion of test arguments: configs, topics, partitions and group states.

Invalid arguments raise ValueError; the message lists the valid ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from kbroker.client.topics import Partition
from kbroker.config import ConfigError, Scope, effect_of, property_text, unknown_name

Text = TypeVar("Text", bound=str)

# Properties of Kafka: strings, numbers, booleans, or lists of them.
Config = Mapping[str, object]
# Number of partitions by topic, or names of topics with one partition.
Topics = Mapping[str, int] | Iterable[str]
# Pairs of topic and partition, or partition numbers by topic.
Partitions = Mapping[str, Iterable[int]] | Iterable[Sequence[str | int]]

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
# Broker properties of the test kit that differ from Kafka's defaults: records may have timestamps
# in the future.
KIT_DEFAULTS = {"log.message.timestamp.after.max.ms": str((1 << 63) - 1)}
# States of groups that do not rebalance.
AT_REST = {"Stable", "Empty", "Dead"}


def check_number(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Check that a value is a number within limits.

    Raises:
        ValueError: It is not a number (booleans and strings are not), or is out of range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number:
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not least <= value <= most:
        limits = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} must be {limits}, not {value}")


def one_of(name: str, given: str, known: Sequence[Text]) -> Text:
    """Return the item of `known` that equals `given`, ignoring case.

    Raises:
        ValueError: There is none.
    """
    for each in known:
        if each.lower() == given.lower():
            return each
    raise ValueError(f"invalid {name} {given!r} (valid: {', '.join(known)})")


def group_state(given: str | None) -> str | None:
    """Return a group state as Kafka writes it; None stands for any state.

    Raises:
        ValueError: There is no such state.
    """
    return None if given is None else one_of("state", given, GROUP_STATES)


def properties(given: Config) -> dict[str, str]:
    """Convert properties to strings: 3 becomes "3", and True becomes "true".

    Raises:
        ConfigError: A value has no string form.
    """
    return {name: property_text(name, value) for name, value in given.items()}


def broker_properties(given: Config) -> dict[str, str]:
    """Convert broker properties to strings, and reject unknown names.

    Raises:
        ConfigError: A name is a property of neither Kafka nor kbroker, or a value has no string
            form.
    """
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
    """Return the number of partitions of each topic.

    Raises:
        ValueError: `given` has another form, or a number is less than 1.
    """
    topics = given if isinstance(given, Mapping) else _named(given)
    for name, partitions in topics.items():
        check_number(f"topics[{name!r}]", partitions, 1)
    return dict(topics)


def _named(names: Iterable[str]) -> Mapping[str, int]:
    listed = [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f'invalid topics {names!r}: pass {{"orders": 3}} or a list of names')
    return dict.fromkeys(listed, 1)


def partitions_of(given: Partitions) -> list[Partition]:
    """Return partitions in sorted order.

    Raises:
        ValueError: `given` has another form.
    """
    found: list[Partition] = []
    for each in _pairs(given):
        match each:
            case [str(topic), int(index)]:
                found.append((topic, index))
            case _:
                raise ValueError(
                    f'invalid partitions {given!r}: pass [("orders", 0), ...] or '
                    '{"orders": [0, 1]}'
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
