"""Commands of pages with very many commands; see soak.toml."""

from pathlib import Path

import pytest

from .pages import check_page


@pytest.mark.parametrize("name", ["how-to/tls", "how-to/authentication", "how-to/acls-and-quotas"])
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    count = check_page(name, tmp_path)
    print(f"\nfigures: {count} commands of {name}.md do what it says")
