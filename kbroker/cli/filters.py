"""Options that filter records by key, value, header, JSON field or expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import add_options

if TYPE_CHECKING:
    from kbroker.client.record_filter import RecordPredicate
    from kbroker.text.expression import Test as FieldsTest

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

    given = {part: options[f"filter_{part}"] for part in EXAMPLES}
    for part, texts in given.items():
        try:
            record_filter(**{f"{part}s": texts})
        except BadFilter as error:
            name = f"--filter-{part}"
            message = f"{error}; for example {name} '{EXAMPLES[part]}'"
            raise click.BadParameter(message, param_hint=name) from None
    return record_filter(**{f"{part}s": texts for part, texts in given.items()})


def where_option(command: Command) -> Command:
    """Add `--where` to a command; it receives a function that tests fields, or None, as `where`."""

    def convert(_: click.Context, __: click.Parameter, text: str | None) -> FieldsTest | None:
        from kbroker.text.expression import BadExpression, parse

        try:
            return None if text is None else parse(text)
        except BadExpression as error:
            raise click.BadParameter(
                f"{error} at character {error.position + 1}; for example "
                "--where 'value.amount > 100 and headers.source == \"web\"'"
            ) from None

    return click.option(
        "--where",
        metavar="EXPRESSION",
        callback=convert,
        help="Select records by fields of key, value, headers, topic, partition, offset, timestamp and "
        "size: 'value.amount > 100 and not key ~ \"test\"'.",
    )(command)
