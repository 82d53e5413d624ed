"""Colours of the output, and the width of the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from enum import StrEnum
from typing import Final, Self

import click

# Values of `--color`.
COLOR_CHOICES: Final = {"auto": None, "always": True, "never": False}
_RESET = "\x1b[0m"


class Style(StrEnum):
    """Styles of text, as parameters of the escape sequence SGR."""

    PLAIN = ""
    HEADING = "1"
    GOOD = "32"
    WARNING = "33"
    PROBLEM = "31"


class Line(str):
    """A line whose parts have styles; as a string, it has no escape sequences.

    Attributes:
        parts: The parts of the line with their styles.
    """

    parts: tuple[tuple[str, Style], ...]

    def __new__(cls, *parts: tuple[str, Style]) -> Self:
        """Create a line of printable parts."""
        line = super().__new__(cls, "".join(text for text, _ in parts))
        line.parts = parts
        return line

    @property
    def colored(self) -> str:
        """The line with escape sequences."""
        return "".join(paint(text, style) for text, style in self.parts)


def paint(text: str, style: Style) -> str:
    """Return text between the escape sequences of a style."""
    return f"\x1b[{style}m{text}{_RESET}" if style and text else text


def uses_color(*, err: bool = False) -> bool:
    """Return True if output gets colours.

    `--color` decides, then the environment variables NO_COLOR and FORCE_COLOR, then whether the
    stream is a terminal.

    Args:
        err: Ask for the standard error stream instead of standard output.
    """
    context = click.get_current_context(silent=True)
    if context is not None and (chosen := context.find_root().color) is not None:
        return chosen
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Return the number of columns if standard output is a terminal, else None."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def display_width(text: str) -> int:
    """Return the number of columns that printable text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
