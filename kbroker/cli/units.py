"""Parameter types of the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        """A type of parameters that says what it converts to, also before click 8.4."""

        def __class_getitem__(cls, _converted: object) -> type:
            return cls


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Read a time such as 500ms, 30s, 10m, 2h; a bare number counts seconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 500ms, 30s or 10m")
    return float(match[1]) * _SECONDS[match[2]]


class Duration(ParamType[float]):
    """A time as `parse_duration` reads it. Converts to seconds."""

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
