"""What a client's changes make of the settings that a resource has (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from .property import ConfigError, Property, Type, Value


class Operation(IntEnum):
    """What to do with one setting, as numbered in IncrementalAlterConfigs requests."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One change of one setting; ``value`` is not looked at when it is deleted."""

    name: str
    operation: Operation
    value: str = ""


def altered(
    current: Mapping[str, str], changes: Iterable[Change], properties: Mapping[str, Property[Value]]
) -> dict[str, str]:
    """The settings after ``changes``; whether their values are good is not looked at.

    Raises ConfigError for an item of a setting that is no list.
    """
    values = dict(current)
    for name, operation, value in changes:
        match operation:
            case Operation.SET:
                values[name] = value
            case Operation.DELETE:
                values.pop(name, None)
            case Operation.APPEND:
                items = _items(name, values, properties, operation)
                values[name] = ",".join(dict.fromkeys([*items, *value.split(",")]))
            case Operation.SUBTRACT:
                gone = frozenset(value.split(","))
                items = _items(name, values, properties, operation)
                values[name] = ",".join(each for each in items if each not in gone)
    return values


def _items(
    name: str,
    values: Mapping[str, str],
    properties: Mapping[str, Property[Value]],
    operation: Operation,
) -> list[str]:
    """The items that a list setting has now: its own, else those of its default, as in Kafka."""
    each = properties.get(name)
    if each is None or each.type is not Type.LIST:
        raise ConfigError(f"Can't {operation.name} to key {name} because its type is not LIST.")
    return [item for item in values.get(name, each.default or "").split(",") if item]
