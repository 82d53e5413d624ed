"""The commands of the pages about Spark do what the pages say, in this environment.

A page's first block may start a broker on localhost:9092, which stands for a free port.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import commands_of, run_page

DOCS = Path(__file__).parents[2] / "docs"

PAGES = ["spark", "lake", "pipelines", "spark-files"]
"""Add yours: a file of docs/ without its ending."""

SECONDS = 180
"""A page that starts Spark more than once or twice is too long for the budget."""


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    page = (DOCS / f"{name}.md").read_text()
    assert commands_of(page)
    wrong = run_page(page, folder, SECONDS)
    assert not wrong, "\n\n".join(wrong)
