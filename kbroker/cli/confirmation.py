"""Previews, dry runs and confirmations of commands that destroy or overwrite something.

Each of these commands shows what it is about to do. It then acts with `--yes`, or after a question
on a terminal. `--dry-run` stops after the preview.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import click

from kbroker.text.printable import printable

from .options import add_options
from .output import Format, format_options, say, show
from .target import fail

Command = TypeVar("Command", bound=Callable[..., object])
Row: TypeAlias = Mapping[str, object]

# Exit status of a command that could not ask; click uses the same for an invalid command line.
NOT_CONFIRMED = 2
NOTHING_CHANGED = "Dry run: nothing was changed."


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of a command before it acts.

    Attributes:
        question: The question to the user, such as "Delete topic orders?".
        rows: The affected objects, for JSON and YAML.
        summary: Lines for people: names, and the number of affected records, offsets or members.
        details: Returns the lines of a table, which a dry run and a question show before the
            summary. The argument is True for the wide form.
        is_harmless: True if the change destroys and overwrites nothing, for example because no
            record is that old. Then the command acts without preview and question.
    """

    question: str
    rows: Sequence[Row]
    summary: Sequence[str]
    details: Callable[[bool], list[str]] | None = None
    is_harmless: bool = False

    def lines(self, wide: bool) -> list[str]:
        """Return the details and the summary."""
        return [*(self.details(wide) if self.details else ()), *self.summary]


@dataclass(frozen=True, slots=True)
class Change:
    """The options `--yes`, `--dry-run` and `--format` of a command.

    Attributes:
        is_approved: True with `--yes`.
        is_dry_run: True with `--dry-run`.
        output: Output format, one of `Format`.
    """

    is_approved: bool
    is_dry_run: bool
    output: str

    def confirm(self, preview: Preview) -> bool:
        """Show a preview and return True if the command may act.

        A dry run prints the preview as the result. In all other cases the preview goes to the
        standard error stream, because standard output has the result.

        Without `--yes` and without a terminal to ask on, the command exits with status 2.
        """
        if self.is_dry_run:
            self._show_dry_run(preview)
            return False
        if preview.is_harmless:
            return True
        if self.is_approved:
            say(*preview.summary, err=True)
            return True
        say(*preview.lines(self.output == Format.WIDE), err=True)
        if not is_terminal():
            fail(
                "nothing was changed, because standard input is not a terminal to ask on; add "
                "--yes to make this change, or --dry-run to only show it",
                NOT_CONFIRMED,
            )
        if not click.confirm(printable(preview.question), err=True):
            fail("nothing was changed")
        return True

    def _show_dry_run(self, preview: Preview) -> None:
        rows = [{**row, "dry_run": True} for row in preview.rows]
        show(self.output, rows, lambda wide: [*preview.lines(wide), NOTHING_CHANGED])

    def report(self, rows: Sequence[Row], text: Callable[[bool], list[str]]) -> None:
        """Print the result of a change; JSON and YAML have the field `dry_run` as in a dry run.

        Args:
            rows: The result for JSON and YAML.
            text: Returns the lines of the text form, or with True those of the wide form.
        """
        show(self.output, [{**row, "dry_run": False} for row in rows], text)


def is_terminal() -> bool:
    """Return True if the command can ask a question."""
    return sys.stdin.isatty()


def destructive(command: Command) -> Command:
    """Add `--yes`, `--dry-run` and `--format` to a command; it receives them as `change`."""

    @functools.partial(
        add_options,
        options=[
            click.option(
                "-y",
                "--yes",
                is_flag=True,
                help="Do not ask for confirmation. Required if standard input is not a terminal.",
            ),
            click.option(
                "--dry-run", is_flag=True, help="Only show what would be done; change nothing."
            ),
            format_options,
        ],
    )
    @functools.wraps(command)
    def with_change(
        *args: object, yes: bool, dry_run: bool, output: str, **named: object
    ) -> object:
        return command(*args, change=Change(yes, dry_run, output), **named)

    return with_change  # type: ignore[return-value]


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 record" or "2,000 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def question_about(verb: str, names: Sequence[str], noun: str, rest: str = "") -> str:
    """Return a question such as "Delete topic orders?" or "Delete these 3 topics?"."""
    what = f"{noun} {names[0]}" if len(names) == 1 else f"these {len(names):,} {noun}s"
    return f"{verb} {what}{rest}?"
