"""Conversion of test arguments: configs, topics, partitions and group states.

Invalid arguments raise ValueError; the message lists the valid ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from kbroker.client.topics import Partition
from kbroker.config import ConfigError, Scope, effect_of, property_text, unknown_name_error

Text = TypeVar("Text", bound=str)

# Kafka properties by name. A value is a string, a number, a boolean, or a list of these.
Config = Mapping[str, object]
# Topics to create: the number of partitions by topic name, or names of topics with one partition.
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
# Defaults of the test kit that differ from Kafka's. With this one, records may have timestamps in
# the future.
KIT_DEFAULTS = {"log.message.timestamp.after.max.ms": str((1 << 63) - 1)}
_FREE_PORT = "the test kit selects a free port: read bootstrap_servers"
_DATA_DIR = "pass data_dir= (in the marker: persist=True)"
# Properties that the test kit sets itself, and the replacement of each.
_SET_BY_KIT = {
    "listeners": _FREE_PORT,
    "advertised.listeners": _FREE_PORT,
    "log.dir": _DATA_DIR,
    "log.dirs": _DATA_DIR,
}
# The same for brokers in the process of the test.
_SET_IN_PROCESS = {
    "http.port": "the test kit serves neither console nor metrics: run `kbroker serve`",
    "registry.port": "pass schema_registry=True, and read schema_registry_url",
}
# States of groups that do not rebalance, so that a wait for idleness can end.
IDLE_GROUP_STATES = {"Stable", "Empty", "Dead"}


def check_number(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Check that a value is a number within limits.

    Raises:
        ValueError: The value is not a number, or is out of range. Booleans are not numbers here.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number:
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not least <= value <= most:
        limits = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} must be {limits}, not {value}")


def parse_choice(name: str, given: str, known: Sequence[Text]) -> Text:
    """Return the item of `known` that equals `given`, ignoring case.

    Raises:
        ValueError: No item equals `given`; the message lists the items.
    """
    for each in known:
        if each.lower() == given.lower():
            return each
    raise ValueError(f"invalid {name} {given!r} (valid: {', '.join(known)})")


def parse_group_state(given: str | None) -> str | None:
    """Return a group state with Kafka's capitalization; None stands for any state.

    Raises:
        ValueError: The state does not exist; the message lists the states.
    """
    return None if given is None else parse_choice("state", given, GROUP_STATES)


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
    unknown = [unknown_name_error(name, Scope.BROKER) for name in given if effect_of(name) is None]
    if unknown:
        raise ConfigError("\n".join(unknown))
    return properties(given)


def broker_properties_with_defaults(given: Config) -> dict[str, str]:
    """Convert broker properties to strings, and add the defaults of the test kit.

    Raises:
        ConfigError: A name is a property of neither Kafka nor kbroker or is set by the test kit, or
            a value has no string form.
    """
    _reject(given, _SET_BY_KIT)
    return KIT_DEFAULTS | broker_properties(given)


def in_process_properties(given: Config) -> dict[str, str]:
    """Return `broker_properties_with_defaults` of a broker in the process of the test.

    Raises:
        ConfigError: As for `broker_properties_with_defaults`, or an HTTP server is configured.
    """
    _reject(given, _SET_IN_PROCESS)
    return broker_properties_with_defaults(given)


def _reject(given: Config, replacements: Mapping[str, str]) -> None:
    for name in given:
        if name in replacements:
            raise ConfigError(f"config: {name} has no effect; {replacements[name]}")


def topics_of(given: Topics) -> dict[str, int]:
    """Return the number of partitions of each topic.

    Raises:
        ValueError: `given` is neither a mapping nor a list of names, or a number is less than 1.
    """
    topics = given if isinstance(given, Mapping) else _with_one_partition(given)
    for name, partitions in topics.items():
        check_number(f"topics[{name!r}]", partitions, 1)
    return dict(topics)


def _with_one_partition(names: Iterable[str]) -> Mapping[str, int]:
    listed = [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f'invalid topics {names!r}: pass {{"orders": 3}} or a list of names')
    return dict.fromkeys(listed, 1)


def partitions_of(given: Partitions) -> list[Partition]:
    """Return pairs of topic and partition number, sorted.

    Raises:
        ValueError: `given` is neither pairs nor a mapping of partition numbers by topic.
    """
    found: list[Partition] = []
    for each in _topic_partition_pairs(given):
        match each:
            case [str(topic), int(index)]:
                found.append((topic, index))
            case _:
                raise ValueError(
                    f'invalid partitions {given!r}: pass [("orders", 0), ...] or '
                    '{"orders": [0, 1]}'
                )
    return sorted(found)


def _topic_partition_pairs(given: Partitions) -> Iterable[object]:
    if not isinstance(given, Mapping):
        return given
    return [
        (topic, index)
        for topic, indexes in given.items()
        for index in (indexes if isinstance(indexes, Iterable) else [indexes])
    ]
