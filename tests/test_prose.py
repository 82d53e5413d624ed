"""Tests of tests/prose.py."""

import pytest

from .prose import Finding, check_module, check_page, compare, updated


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""What a log is."""\n', "docstring that begins with 'What'"),
        ('def f():\n    """Return it to those who wait."""\n', "docstring with 'those who'"),
        ("# The client is told.\n", "comment with 'is told'"),
        ('X = 1\n"""Of the queue."""\n', "docstring that begins with 'Of'"),
        ("def test_who_leads():\n    pass\n", "test name test_who_leads"),
        ("async def test_a_log_that_ends():\n    pass\n", "test name test_a_log_that_ends"),
    ],
)
def test_check_module_reports_each_pattern(text: str, problem: str) -> None:
    assert [each.problem for each in check_module(text)] == [problem]


def test_check_module_accepts_plain_text() -> None:
    text = '"""Segments of a log."""\n\n# Wait for the flusher.\nNAME = "What a log is."\n'
    assert list(check_module(text)) == []


def test_check_page_counts_words_of_sentences() -> None:
    page = f"# Title\n\n{'word ' * 36}end.\n\nShort.\n\n* {'word ' * 20}\n  {'word ' * 20}\n"
    assert [each.line for each in check_page(page)] == [3, 7]


def test_check_page_skips_code_and_tables() -> None:
    words = "word " * 40
    assert list(check_page(f"```\n{words}\n```\n\n| {words} |\n\n<!-- {words} -->\n")) == []


def test_compare_rejects_more_and_fewer_findings_than_allowed() -> None:
    found = {"a.py": [Finding(3, "x"), Finding(4, "y")], "b.py": [Finding(1, "z")]}
    assert list(compare({"a.py": 2, "b.py": 1}, found)) == []
    assert list(compare({"a.py": 1, "b.py": 1}, found)) == [
        "a.py:3: x",
        "a.py:4: y",
        "a.py: 2 findings, 1 allowed by tests/prose.toml",
    ]
    (line,) = compare({"a.py": 2, "b.py": 2}, found)
    assert line.startswith("b.py: 1 findings, fewer than the 2 that are allowed")


def test_update_lowers_limits_and_adds_none() -> None:
    found = {"a.py": [Finding(3, "x")], "b.py": [Finding(1, "z")], "c.py": [Finding(1, "z")] * 5}
    assert updated({"a.py": 2, "c.py": 4, "d.py": 1}, found) == '"a.py" = 1\n"c.py" = 4\n'
