"""The commands of the pages about Spark do what the pages say, in this environment.

A page's first block may start a broker on localhost:9092, which stands for a free port.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import check_page

# Paths below docs/ without ".md". long_pages.py runs the pages that take longer.
PAGES = ["how-to/lake", "how-to/pipelines", "how-to/spark-files"]

SECONDS = 180
"""A page that starts Spark more than once or twice is too long for the budget."""


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    check_page(name, tmp_path, SECONDS)
