"""Colours of the output, and the width of text."""

from __future__ import annotations

import click
import pytest

from kbroker.cli.terminal import Line, Style, display_width, terminal_width, uses_color


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make both streams terminals, without settings of colours."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    return monkeypatch


def test_color_is_used_only_on_terminals(terminal: pytest.MonkeyPatch) -> None:
    assert uses_color()
    assert uses_color(err=True)
    terminal.setattr("sys.stdout.isatty", lambda: False)
    assert not uses_color()
    assert uses_color(err=True)
    terminal.setenv("TERM", "dumb")
    assert not uses_color(err=True)


def test_environment_overrides_terminal(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("NO_COLOR", "1")
    assert not uses_color()
    terminal.setenv("FORCE_COLOR", "1")
    assert not uses_color(), "NO_COLOR takes precedence"
    terminal.delenv("NO_COLOR")
    terminal.setattr("sys.stdout.isatty", lambda: False)
    assert uses_color()


@pytest.mark.parametrize("choice", [True, False])
def test_option_overrides_environment(terminal: pytest.MonkeyPatch, choice: bool) -> None:
    terminal.setenv("NO_COLOR" if choice else "FORCE_COLOR", "1")
    context = click.Context(click.Command("kbroker"))
    context.color = choice
    with context, click.Context(click.Command("topic"), parent=context):
        assert uses_color() is choice


def test_terminal_width_is_unknown_in_pipe(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("COLUMNS", "40")
    assert terminal_width() == 40
    terminal.setattr("sys.stdout.isatty", lambda: False)
    assert terminal_width() is None


def test_line_is_plain_string_with_colored_form() -> None:
    line = Line(("state ", Style.PLAIN), ("Dead", Style.PROBLEM), ("", Style.GOOD))
    assert line == "state Dead"
    assert line.colored == "state \x1b[31mDead\x1b[0m"


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("grün", 4), ("日本", 4), ("e\u0301", 1)])
def test_display_width_counts_columns_of_terminal(text: str, width: int) -> None:
    assert display_width(text) == width
