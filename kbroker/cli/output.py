"""Output of commands: tables for people, JSON and YAML for programs.

All output except the records of `consume` goes through this module. It escapes control characters,
because names and other strings come from clients: they cannot forge lines or control a terminal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import click

from kbroker.text.printable import printable

from .tables import Cell, layout
from .terminal import Line, Style, terminal_width, uses_color

Command = TypeVar("Command", bound=Callable[..., object])
Row = TypeVar("Row", bound=Mapping[str, Any])

# Maximum number of objects that a report names.
NAMES_SHOWN_MAX = 20


class Format(StrEnum):
    """Output formats; `NDJSON` prints one JSON object per line for each element of a list."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NDJSON = "ndjson"


class Column(NamedTuple):
    """A column of a table: the key of its values; `wide` limits the column to the wide form."""

    key: str
    wide: bool = False
    optional: bool = False  # omitted if no row has a value


def format_options(command: Command, *, short: bool = True) -> Command:
    """Add `-f/--format`, also named `-o`, and `--json` to a command; it receives `output`.

    If `short` is False, `-o` is not added, for commands with another `-o` option.
    """
    names = [each.value for each in Format if each != Format.NDJSON]
    command = click.option(
        "--json",
        "output",
        flag_value=Format.NDJSON.value,
        help="Print NDJSON: one JSON object per line; same as --format ndjson.",
    )(command)
    return click.option(
        "-f",
        *(["-o"] if short else []),
        "--format",
        "output",
        type=click.Choice([*names, Format.NDJSON.value]),
        default=Format.TEXT.value,
        show_default=True,
        help="Output format; wide has more columns than text.",
    )(command)


def sort_option(*keys: str) -> Callable[[Command], Command]:
    """Return the option `--sort`; the command receives `sort`, one of the keys.

    Args:
        keys: The keys; the first one is the default.
    """
    return click.option(
        "--sort",
        type=click.Choice(keys),
        default=keys[0],
        show_default=True,
        help="Sort by this column; numbers are sorted from the largest to the smallest.",
    )


def largest_first(rows: Iterable[Row], key: str) -> list[Row]:
    """Return rows sorted by a number that may be None; rows without a number come last."""

    def order(row: Row) -> tuple[bool, int]:
        number = row[key]
        return number is None, -(number or 0)

    return sorted(rows, key=order)


def say(*lines: object, err: bool = False, keep: str = "") -> None:
    """Print lines, with control characters escaped.

    Args:
        lines: One printed line each, even if a value contains line breaks.
        err: Print to the standard error stream.
        keep: Control characters to print unescaped.
    """
    has_color = uses_color(err=err)
    for line in lines:
        if has_color and isinstance(line, Line):
            click.echo(line.colored, err=err, color=True)
        else:
            click.echo(printable(str(line), keep=keep), err=err)


def say_before_change(*lines: object, keep: str = "") -> None:
    """Print lines; if standard output is a closed pipe, the change that follows is made anyway."""
    with suppress(BrokenPipeError):
        say(*lines, keep=keep)


def problem(prefix: str, message: str) -> str:
    """Return a line of an error message with a coloured prefix, for `say(..., err=True)`."""
    return Line((printable(prefix), Style.PROBLEM), (printable(message), Style.PLAIN))


def prompt(text: str) -> None:
    """Print a prompt on the standard error stream, without a line break."""
    click.echo(printable(text), nl=False, err=True)


def print_document(text: str) -> None:
    """Print a document that may be saved to a file: unchanged in a pipe, escaped on a terminal."""
    if sys.stdout.isatty():
        say(text, keep="\n\t")
    else:
        click.echo(text)


def show(output: str, value: object, text: Callable[[bool], list[str]]) -> None:
    """Print a result.

    Args:
        output: A `Format`.
        value: The result for JSON and YAML.
        text: Returns the lines of the text form, or with True those of the wide form.
    """
    form = Format(output)
    if form in (Format.TEXT, Format.WIDE):
        say(*text(form == Format.WIDE))
    elif form == Format.JSON:
        click.echo(to_json(value, indent=2))
    elif form == Format.YAML:
        click.echo(to_yaml(value))
    else:
        for row in value if isinstance(value, list) else [value]:
            say(to_json(row))


def paragraphs(parts: Iterable[list[str]]) -> list[str]:
    """Return the lines of all parts, separated by empty lines."""
    lines: list[str] = []
    for part in parts:
        lines += ["", *part] if lines else part
    return lines


def table(
    columns: Sequence[Column], rows: Iterable[Mapping[str, object]], *, wide: bool
) -> list[str]:
    """Return the lines of a table: a heading, then one line per row; numbers are right-aligned.

    On a terminal that is too narrow, cells take several lines, or each row becomes a block of lines.
    """
    listed = [{key: printable(_cell(value)) for key, value in row.items()} for row in rows]
    shown = [
        column.key
        for column in columns
        if (wide or not column.wide)
        and not (column.optional and all(row.get(column.key) in ("", "-") for row in listed))
    ]
    numeric = [all(_NUMBER.fullmatch(row.get(key, "-")) for row in listed) for key in shown]
    cells = [
        [Cell(row.get(key, "-"), _style(key, row.get(key, "-"))) for key in shown] for row in listed
    ]
    return layout([_heading(key) for key in shown], cells, numeric, terminal_width())


# Numbers, and sizes such as "1.2 GB" of `kbroker.text.sizes`.
_NUMBER = re.compile(r"-|-?[\d.]+( [kMGTPE]?B)?")


# Columns whose values are problems.
_PROBLEM_COLUMNS = frozenset({"error", "problem", "offline", "lost"})
_STATE_COLUMNS = frozenset({"state", "status", "severity"})
# Styles of states of groups, transactions and nodes, in lower case.
_STATES = {
    **dict.fromkeys(("stable", "running", "online", "completecommit", "active", "ok"), Style.GOOD),
    **dict.fromkeys(
        (
            *("preparingrebalance", "completingrebalance", "assigning", "reconciling", "warning"),
            *(
                "notready",
                "preparecommit",
                "prepareabort",
                "preparefencing",
                "starting",
                "stopping",
            ),
        ),
        Style.WARNING,
    ),
    **dict.fromkeys(("dead", "crashed", "stopped", "failed", "offline", "error"), Style.PROBLEM),
}


def _style(key: str, text: str) -> Style:
    """Return the style of a cell."""
    if key in _PROBLEM_COLUMNS and text not in ("-", "0", ""):
        return Style.PROBLEM
    if key in _STATE_COLUMNS:
        return _STATES.get(text.lower(), Style.PLAIN)
    return Style.PLAIN


def _heading(key: str) -> str:
    return key.upper().replace("_", "-")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in value.items()) or "-"
    return str(value)


def to_json(value: object, *, indent: int | None = None) -> str:
    r"""Return JSON with readable strings; unprintable characters are escaped (`\u009b`)."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def to_yaml(value: object, indent: int = 0) -> str:
    """Return YAML in block style, with all strings in double quotes as in JSON."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "\n".join(
            f"{pad}{_yaml_key(key)}:{_yaml_child(each, indent)}" for key, each in value.items()
        )
    if isinstance(value, list) and value:
        return "\n".join(f"{pad}- {to_yaml(each, indent + 1).lstrip(' ')}" for each in value)
    return pad + _yaml_scalar(value)


def _yaml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][\w.-]*", key) else _yaml_scalar(key)


def _yaml_scalar(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _yaml_child(value: object, indent: int) -> str:
    if isinstance(value, dict | list) and value:
        return "\n" + to_yaml(value, indent + 1)
    return " " + _yaml_scalar(value)


class Progress:
    """A progress line on the standard error stream, if that is a terminal.

    Args:
        label: Label of the count.
        is_visible: False to hide the line, if the terminal shows the result itself.
    """

    def __init__(self, label: str, *, is_visible: bool = True) -> None:
        self._label = label
        self._shown_at = 0.0
        self._began_at: float | None = None
        self._is_visible = is_visible and sys.stderr.isatty()

    def show(self, done: int, total: int | None, now: float) -> None:
        """Print the progress, at most ten times per second.

        Args:
            done: Number of items done.
            total: Number of all items, if known.
            now: Monotonic time in seconds.
        """
        if self._began_at is None:
            self._began_at = now
        if self._is_visible and now - self._shown_at >= 0.1:
            self._shown_at = now
            of = f" of {total:,} ({done * 100 // max(total, 1)} %)" if total is not None else ""
            passed = now - self._began_at
            rate = f", {done / passed:,.0f}/s" if passed >= 1 else ""
            click.echo(f"\r\x1b[K{self._label}: {done:,}{of}{rate}", nl=False, err=True)

    def clear(self) -> None:
        """Erase the progress line."""
        if self._is_visible and self._shown_at:
            click.echo("\r\x1b[K", nl=False, err=True)


# -- reports of commands that end early


@contextmanager
def said_on_error(line: str, *, err: bool = True) -> Iterator[None]:
    """Print a line if an error or Ctrl+C ends the block.

    Args:
        line: What is changed already, and what to do about it.
        err: True for the error stream, False for the output.
    """
    try:
        yield
    except BaseException:
        say(line, err=err)
        raise


@contextmanager
def reported_changes(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield a list for the names of the objects that are changed.

    If an error or Ctrl+C ends the changes, print which objects are changed: the error message names
    at most the object whose change failed.

    Args:
        names: Names of all objects to change. If there is only one, the error message is enough.
    """
    changed: list[str] = []
    try:
        yield changed
    except BaseException:
        if len(names) > 1:
            say(*_report(names, changed), err=True)
        raise


@dataclass(slots=True)
class WrittenLines:
    """The lines of an input that are written as records.

    Attributes:
        read: Number of lines that were read.
        written: Number of lines whose records are acknowledged.
        is_writing: True while the records of the following lines are sent.
    """

    read: int = 0
    written: int = 0
    is_writing: bool = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Send the records of all lines that were read."""
        self.is_writing = True
        yield
        self.is_writing, self.written = False, self.read

    def report(self) -> None:
        """Print up to which line an input was written, after an error or Ctrl+C."""
        if not self.read:
            return
        if not self.written and not self.is_writing:
            say("kbroker: no line of the input was written", err=True)
            return
        later = ", and maybe some of the following lines" if self.is_writing else ""
        say(
            f"kbroker: the input was written up to line {self.written:,}{later}; continue after it, "
            "so that no line is written twice",
            err=True,
        )


def _report(names: Sequence[str], changed: Sequence[str]) -> list[str]:
    rest = [name for name in names if name not in changed]
    return [
        f"kbroker: changed: {_shown(changed) if changed else 'nothing'}",
        f"kbroker: not confirmed as changed: {_shown(rest)}; repeat the command for these",
    ]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
