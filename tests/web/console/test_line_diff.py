"""Line-by-line comparison of texts."""

from __future__ import annotations

import pytest

from kbroker.web.console import line_diff
from kbroker.web.console.line_diff import compare_lines


async def _marked(before: str, after: str) -> str:
    signs = {"same": " ", "removed": "-", "added": "+"}
    rows = await compare_lines(before.split(), after.split())
    return "".join(f"{signs[str(row['change'])]}{row['text']}" for row in rows)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a b c", "a b c", " a b c"),
        ("a b c", "a x c", " a-b+x c"),
        ("a c", "a b c", " a+b c"),
        ("a b c", "a c", " a-b c"),
        ("a a", "a", " a-a"),
        ("x a b y", "a b z", "-x a b-y+z"),
        ("", "a", "+a"),
        ("a", "", "-a"),
        ("", "", ""),
    ],
)
async def test_comparison_keeps_the_longest_common_lines(
    before: str, after: str, expected: str
) -> None:
    assert await _marked(before, after) == expected


async def test_large_change_counts_as_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_diff, "PAIRS_MAX", 8)
    assert await _marked("s a b c e", "s x b y e") == " s-a-b-c+x+b+y e"
