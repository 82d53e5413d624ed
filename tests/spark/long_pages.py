"""The page about Spark, whose commands start it several times; see soak.toml."""

from __future__ import annotations

from pathlib import Path

from tests.pages import check_page

SECONDS = 600


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    check_page("how-to/spark", tmp_path, SECONDS)
