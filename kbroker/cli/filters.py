"""Options that filter records by key, value, header, JSON field or expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .confirmation import count_of
from .options import add_options
from .output import say

if TYPE_CHECKING:
    from kbroker.client.record_filter import Selection

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
# An example of each filter, for errors.
EXAMPLES = {
    "key": "^customer-1$",
    "value": "error|failed",
    "header": "source=^web$",
    "field": "user.country=^DE$",
}


def filter_options(command: Command) -> Command:
    """Add the filter options and `--where` to a command.

    The command receives a tuple of strings for each filter, and an expression or None as `where`.
    """
    options = [
        click.option(name, multiple=True, metavar=metavar, help=text)
        for name, (metavar, text) in OPTIONS.items()
    ]
    where = click.option(
        "--where",
        metavar="EXPRESSION",
        help="Select records by fields of key, value, headers, topic, partition, offset, timestamp and "
        "size: 'value.amount > 100 and not key ~ \"test\"'.",
    )
    return add_options(command, [*options, where])


def chosen_selection(options: Mapping[str, Any]) -> Selection | None:
    """Return the selection of the options, or None if they select all records.

    Raises:
        BadParameter: A filter or the expression is invalid.
    """
    from kbroker.client.record_filter import BadFilter, Selection, record_filter
    from kbroker.text.expression import BadExpression, parse

    given = {part: options[f"filter_{part}"] for part in EXAMPLES}
    for part, texts in given.items():
        try:
            record_filter(**{f"{part}s": texts})
        except BadFilter as error:
            name = f"--filter-{part}"
            message = f"{error}; for example {name} '{EXAMPLES[part]}'"
            raise click.BadParameter(message, param_hint=name) from None
    wanted = record_filter(**{f"{part}s": texts for part, texts in given.items()})
    text = options["where"]
    try:
        where = None if text is None else parse(text)
    except BadExpression as error:
        raise click.BadParameter(
            f"{error} at character {error.position + 1}; for example "
            "--where 'value.amount > 100 and headers.source == \"web\"'",
            param_hint="--where",
        ) from None
    return None if wanted is None and where is None else Selection(wanted, where)


def report_too_large(selection: Selection | None) -> None:
    """Print how many records the expression did not search completely, if any."""
    if selection is not None and selection.too_large:
        records = count_of(selection.too_large, "record")
        say(f"--where did not search {records} completely: too large", err=True)
