"""Layout of tables in terminals of different widths."""

from __future__ import annotations

import pytest

from kbroker.cli.output import Column, table
from kbroker.cli.tables import wrap
from kbroker.cli.terminal import Line, display_width

COLUMNS = [Column("topic"), Column("partition"), Column("state"), Column("error", optional=True)]
ROWS = [
    {"topic": "orders-of-customers", "partition": 0, "state": "Stable", "error": None},
    {"topic": "日本", "partition": 12, "state": "Dead", "error": "the disk is full, and read-only"},
]


def lines_at(monkeypatch: pytest.MonkeyPatch, width: int | None) -> list[str]:
    monkeypatch.setattr("kbroker.cli.output.terminal_width", lambda: width)
    return table(COLUMNS, ROWS, wide=False)


@pytest.mark.parametrize("width", [None, 200])
def test_table_keeps_full_width_in_pipe_and_wide_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    assert lines_at(monkeypatch, width) == [
        "TOPIC                PARTITION  STATE   ERROR",
        "orders-of-customers          0  Stable  -",
        "日本                        12  Dead    the disk is full, and read-only",
    ]


def test_table_wraps_cells_in_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_at(monkeypatch, 50)
    assert lines == [
        "TOPIC           PARTITION  STATE   ERROR",
        "orders-of-              0  Stable  -",
        "customers",
        "日本                   12  Dead    the disk is",
        "                                   full, and read-",
        "                                   only",
    ]
    assert all(display_width(line) <= 50 for line in lines)


@pytest.mark.parametrize("width", [40, 30])
def test_table_becomes_blocks_in_very_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    lines = lines_at(monkeypatch, width)
    assert lines[:6] == [
        *("TOPIC      orders-of-customers", "PARTITION  0", "STATE      Stable", "ERROR      -"),
        *("", "TOPIC      日本"),
    ]
    assert all(display_width(line) <= width for line in lines)
    assert "".join(line[11:] for line in lines[8:]).replace(" ", "") == (
        "thediskisfull,andread-only"
    )


def test_table_colors_headings_states_and_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    heading, first, second = lines_at(monkeypatch, None)
    assert isinstance(heading, Line)
    assert isinstance(first, Line)
    assert isinstance(second, Line)
    assert heading.colored.startswith("\x1b[1mTOPIC\x1b[0m")
    assert "\x1b[32mStable\x1b[0m" in first.colored
    assert first.colored.endswith("  -"), "no value is no problem"
    assert "\x1b[31mDead\x1b[0m" in second.colored
    assert second.colored.endswith("\x1b[31mthe disk is full, and read-only\x1b[0m")


def test_empty_table_in_very_narrow_terminal_has_no_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.cli.output.terminal_width", lambda: 10)
    assert table(COLUMNS[:3], [], wide=False) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", ["short"]),
        ("", [""]),
        ("a.long.name.of.a.topic", ["a.long.", "name.of.a.", "topic"]),
        ("0123456789abc", ["0123456789", "abc"]),
        ("x 0123456789", ["x 01234567", "89"]),
        ("日本日本日本", ["日本日本日", "本"]),
    ],
)
def test_wrap_breaks_after_separators(text: str, expected: list[str]) -> None:
    assert list(wrap(text, 10)) == expected
