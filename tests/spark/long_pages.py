"""The page about Spark, whose commands start Spark several times. See soak.toml."""

from __future__ import annotations

from pathlib import Path

from tests.pages import check_page

SECONDS = 600


def test_commands_of_spark_page_work(tmp_path: Path) -> None:
    check_page("how-to/spark", tmp_path, SECONDS)
