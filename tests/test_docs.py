"""The documentation says what the program does."""

import re
import tomllib
from pathlib import Path

import pytest

from kbroker.registry import load_apis

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "compat-tests/README.md"]


def test_the_readme_lists_exactly_the_served_apis() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.split("<!-- apis:")[1].split("<!-- /apis -->")[0]
    rows = re.findall(r"\| (\d+) \| (\w+) \| ([\d-]+) \|", table)
    served = []
    for api in load_apis().values():
        first, last = api.versions.start, api.versions.stop - 1
        versions = f"{first}-{last}" if last > first else str(first)
        served.append((str(int(api.key)), api.key.api_name, versions))
    assert rows == served


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_parts_of_the_test_run_fit_the_budget() -> None:
    budget = tomllib.loads((ROOT / "tests/budget.toml").read_text())
    assert sum(part["minutes"] for part in budget["part"]) <= 35 < budget["limit_minutes"]
