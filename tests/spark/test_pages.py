"""The commands of the pages about Spark work as documented, in this environment.

A page's first block may start a broker on localhost:9092; the test replaces the port by a free one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import check_page

# Paths below docs/ without ".md". long_pages.py runs the pages that take longer.
PAGES = ["how-to/lake", "how-to/pipelines", "how-to/spark-files"]

# Time limit of a page in seconds. Pages that start Spark more than twice exceed the budget.
SECONDS = 180


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_page_work(name: str, tmp_path: Path) -> None:
    check_page(name, tmp_path, SECONDS)
