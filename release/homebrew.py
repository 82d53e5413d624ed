"""Prints the Homebrew formula of a release, for a tap.

Usage: python -m release.homebrew SOURCE_DISTRIBUTION URL HOMEPAGE

URL is the public address of the source distribution.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

TEMPLATE = Path(__file__).parent / "channels/homebrew/kbroker.rb"


def formula(source_distribution: Path, url: str, homepage: str) -> str:
    """Return the text of the formula.

    Args:
        source_distribution: The file that Homebrew downloads; the formula contains its checksum.
        url: Public address of this file.
        homepage: Address of the project's page.
    """
    words = {
        "<HOMEPAGE>": homepage,
        "<URL>": url,
        "<SHA256>": hashlib.sha256(source_distribution.read_bytes()).hexdigest(),
    }
    text = TEMPLATE.read_text().partition("\n")[2]
    for word, value in words.items():
        text = text.replace(word, value)
    return text


if __name__ == "__main__":
    print(formula(Path(sys.argv[1]), *sys.argv[2:]), end="")
