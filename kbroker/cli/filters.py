"""The options that say which records are wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kbroker.client.record_filter import RecordPredicate

Command = TypeVar("Command", bound=Callable[..., object])

OPTIONS = {
    "--filter-key": ("REGEX", "Only keys with this in them."),
    "--filter-value": ("REGEX", "Only values with this in them."),
    "--filter-header": ("NAME[=REGEX]", "Only with such a header."),
    "--filter-field": ("PATH=REGEX", "Only JSON with such a field: user.country=^DE$."),
}


def filter_options(command: Command) -> Command:
    """Give a command the options; it receives one tuple of texts for each, for `chosen_filter`."""
    for name, (metavar, text) in reversed(OPTIONS.items()):
        command = click.option(name, multiple=True, metavar=metavar, help=text)(command)
    return command


def chosen_filter(asked: Mapping[str, Any]) -> RecordPredicate | None:
    """What the options say; None without any. Raises BadParameter."""
    from kbroker.client.record_filter import BadFilter, record_filter

    try:
        return record_filter(
            keys=asked["filter_key"],
            values=asked["filter_value"],
            headers=asked["filter_header"],
            fields=asked["filter_field"],
        )
    except BadFilter as error:
        raise click.BadParameter(str(error), param_hint="--filter-...") from None
