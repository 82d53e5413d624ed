"""Values of settings with units, such as `retention.ms=2d` and `segment.bytes=1GiB`.

Brokers read plain numbers only, so values are converted before they are sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kbroker.text.durations import MS_PER_UNIT
from kbroker.text.sizes import BYTES_PER_UNIT

from .kafka_only import LISTENER_PREFIX
from .property import ConfigError, Scope
from .tables import PROPERTIES

_WITH_UNIT = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))? ?([a-z]{1,10})", re.IGNORECASE | re.ASCII)
# Units of settings of time, in ms.
_MS: Final[Mapping[str, int]] = MappingProxyType(
    {"ms": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000}
)
# Size of the unit of a setting, and the units that its values may have.
_OWN_UNITS: Final[Mapping[str, tuple[int, Mapping[str, int]]]] = MappingProxyType(
    {
        **{unit: (ms, MS_PER_UNIT) for unit, ms in _MS.items()},
        "bytes": (1, BYTES_PER_UNIT),
        "bytes per second": (1, BYTES_PER_UNIT),
    }
)
_BYTES_OF_LOWER_CASE: Final[Mapping[str, int]] = MappingProxyType(
    {unit.lower(): size for unit, size in BYTES_PER_UNIT.items()}
)


def plain_number(scope: Scope, name: str, text: str) -> str:
    """Convert a value with a unit to the plain number that brokers read.

    Args:
        scope: Kind of resource that has the setting.
        name: Name of the setting.
        text: The value. Values of settings without time or size, and texts that are not a number
            with a unit, are returned unchanged: the broker checks them.

    Returns:
        The number in the unit of the setting.

    Raises:
        ConfigError: The unit is unknown, or the value is not a whole number of the setting's unit.
    """
    own = _unit(scope, name)
    match = _WITH_UNIT.fullmatch(text.strip())
    if own not in _OWN_UNITS or match is None:
        return text
    own_size, units = _OWN_UNITS[own]
    whole, fraction, given = match[1], match[2] or "", match[3]
    size = units.get(given) or (None if own in _MS else _BYTES_OF_LOWER_CASE.get(given.lower()))
    if size is None:
        raise ConfigError(
            f"Invalid value {match[0]} for configuration {name}: unknown unit {given!r} "
            f"(valid: {', '.join(units)}, or a number of {own})"
        )
    number, remainder = divmod(int(whole + fraction) * size, own_size * 10 ** len(fraction))
    if remainder:
        raise ConfigError(
            f"Invalid value {match[0]} for configuration {name}: not a whole number of {own}"
        )
    return str(number)


def plain_numbers(scope: Scope, values: Mapping[str, str]) -> dict[str, str]:
    """Convert values by name with `plain_number`. Raises ConfigError."""
    return {name: plain_number(scope, name, text) for name, text in values.items()}


def numbers_with_units(scope: Scope, values: Mapping[str, str]) -> dict[str, str]:
    """Return those values, by name, that have a form with a unit, as `with_unit` returns it."""
    shown = {name: with_unit(scope, name, text) for name, text in values.items()}
    return {name: text for name, text in shown.items() if text != values[name]}


def with_unit(scope: Scope, name: str, text: str) -> str:
    """Return a number and its form in the largest fitting unit, such as "172800000 (2d)".

    Args:
        scope: Kind of resource that has the setting.
        name: Name of the setting.
        text: The value as a broker stores it.

    Returns:
        The text, unchanged if the setting is not a time or size, or no unit fits without fraction.
    """
    own = _unit(scope, name)
    if own not in _OWN_UNITS or re.fullmatch(r"[1-9]\d{0,18}", text, re.ASCII) is None:
        return text
    own_size, units = _OWN_UNITS[own]
    number = int(text) * own_size
    counts = {
        unit: number // size
        for unit, size in units.items()
        if size > own_size and number % size == 0
    }
    if not counts:
        return text
    unit = min(counts, key=lambda each: counts[each])
    return f"{text} ({counts[unit]}{unit})"


def _unit(scope: Scope, name: str) -> str:
    """Return the unit of a setting, or "" if the setting is unknown or has no unit.

    The prefix `listener.name.NAME.` of a broker setting is ignored.
    """
    if scope is Scope.BROKER and name.startswith(LISTENER_PREFIX):
        name = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    found = PROPERTIES[scope].get(name)
    return found.unit if found else ""
