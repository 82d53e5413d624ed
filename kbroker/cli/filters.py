"""Options that filter records by key, value, header or JSON field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import add_options

if TYPE_CHECKING:
    from kbroker.client.record_filter import RecordPredicate

Command = TypeVar("Command", bound=Callable[..., object])

OPTIONS = {
    "--filter-key": ("REGEX", "Select records whose key contains a match of REGEX."),
    "--filter-value": ("REGEX", "Select records whose value contains a match of REGEX."),
    "--filter-header": (
        "NAME[=REGEX]",
        "Select records with this header, whose value contains a match of REGEX.",
    ),
    "--filter-field": (
        "PATH=REGEX",
        "Select records with a matching field in the JSON value, for example user.country=^DE$.",
    ),
}


def filter_options(command: Command) -> Command:
    """Add the filter options to a command; it receives a tuple of strings for each."""
    options = [
        click.option(name, multiple=True, metavar=metavar, help=text)
        for name, (metavar, text) in OPTIONS.items()
    ]
    return add_options(command, options)


def chosen_filter(options: Mapping[str, Any]) -> RecordPredicate | None:
    """Return the filter of the options, or None if no filter is given.

    Raises:
        BadParameter: A filter is invalid.
    """
    from kbroker.client.record_filter import BadFilter, record_filter

    try:
        return record_filter(
            keys=options["filter_key"],
            values=options["filter_value"],
            headers=options["filter_header"],
            fields=options["filter_field"],
        )
    except BadFilter as error:
        raise click.BadParameter(str(error), param_hint="--filter-...") from None
