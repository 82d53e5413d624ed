"""Incremental changes of the settings of a resource (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from .property import ConfigError, Property, Type, Value


class Operation(IntEnum):
    """Operations on one setting, as numbered in IncrementalAlterConfigs requests."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One change of one setting; DELETE ignores ``value``."""

    name: str
    operation: Operation
    value: str = ""


def apply_changes(
    current: Mapping[str, str], changes: Iterable[Change], properties: Mapping[str, Property[Value]]
) -> dict[str, str]:
    """Return the settings after ``changes``, without validating their values.

    Raises:
        ConfigError: An APPEND or SUBTRACT names a setting that is not a list.
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
                removed = frozenset(value.split(","))
                items = _items(name, values, properties, operation)
                values[name] = ",".join(each for each in items if each not in removed)
    return values


def _items(
    name: str,
    values: Mapping[str, str],
    properties: Mapping[str, Property[Value]],
    operation: Operation,
) -> list[str]:
    """Return the current items of a list setting, or else the items of its default, as in Kafka."""
    each = properties.get(name)
    if each is None or each.type is not Type.LIST:
        raise ConfigError(f"Can't {operation.name} to key {name} because its type is not LIST.")
    return [item for item in values.get(name, each.default or "").split(",") if item]
