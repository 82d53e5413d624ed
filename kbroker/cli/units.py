"""Parameter types of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbroker.text.durations import parse_duration

if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        """A parameter type that is generic, even in click before 8.4."""

        def __class_getitem__(cls, _converted: object) -> type:
            return cls


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
