"""Parameter types of the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        """A parameter type that is generic, even in click before 8.4."""

        def __class_getitem__(cls, _converted: object) -> type:
            return cls


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Parse a duration such as 500ms, 30s, 10m or 2h; a number without unit is in seconds.

    Raises:
        ValueError: The text is invalid.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid duration {text!r}; expected one such as 500ms, 30s or 10m")
    return float(match[1]) * _SECONDS[match[2]]


class Duration(ParamType[float]):
    """A duration in the format of `parse_duration`, converted to seconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, context)


DURATION = Duration()
