"""What the site of the documentation has that the folder of pages has not.

Its first page is the README. What pages say of files that are not pages, as examples and tests, is no
link there: the site has none of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIRST_PAGE = "index.md"
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Make the first page of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, FIRST_PAGE, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Replace links that lead out of the directory of pages by text."""
    path = page.file.src_uri
    return _LINK.sub(lambda link: _inside(link, path), _COMMENT.sub("", markdown))


def _inside(link: re.Match[str], page: str) -> str:
    """Return the link if it leads to a page or another server, else its text and path."""
    target = link["target"].partition("#")[0]
    file = (DOCS / page).parent.joinpath(target).resolve()
    if "://" in target or not target or (file.is_relative_to(DOCS) and file.is_file()):
        return link[0]
    path = target if page == FIRST_PAGE else str(file.relative_to(ROOT))
    if path == "README.md":
        return f"[{link['text']}]({FIRST_PAGE})"
    return link["text"] if link["text"].strip("`") == path else f"{link['text']} (`{path}`)"
