"""The commands of pages that have very many of them; see soak.toml."""

from pathlib import Path

import pytest

from .pages import commands_of, run_page

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["security"])
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    page = (DOCS / f"{name}.md").read_text()
    wrong = run_page(page, tmp_path)
    assert not wrong, "\n\n".join(wrong)
    print(f"\nfigures: {len(commands_of(page))} blocks of {name}.md do what they say")
