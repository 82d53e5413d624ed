"""What the site of the documentation has that the folder of pages has not.

Its first page is the README. What pages say of files that are not pages, as examples and tests, is no
link there: the site has none of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FIRST_PAGE = "index.md"
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Make the first page of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, FIRST_PAGE, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Make text of the links that lead out of the folder of pages."""
    is_first = page.file.src_uri == FIRST_PAGE
    return _LINK.sub(lambda link: _inside(link, is_first), _COMMENT.sub("", markdown))


def _inside(link: re.Match[str], is_first: bool) -> str:
    target = link["target"].partition("#")[0]
    is_elsewhere = "://" in target or not target
    leads_out = not (ROOT / "docs" / target).is_file() if is_first else target.startswith("../")
    if is_elsewhere or not leads_out:
        return link[0]
    path = target if is_first else target.removeprefix("../")
    if path == "README.md":
        return f"[{link['text']}]({FIRST_PAGE})"
    return link["text"] if link["text"].strip("`") == path else f"{link['text']} (`{path}`)"
