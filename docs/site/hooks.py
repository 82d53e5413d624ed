"""Hooks of the documentation site: generated pages and files, and links that lead out of docs/.

The first page is the README, and the change log becomes a page. The site has no copy of examples and
tests, so links to such files become text. `llms.py` creates the texts for language models.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from llms import Page, join_pages, list_pages
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIRST_PAGE = "index.md"
# Pages by the name of the file that they show.
PAGES = {"README.md": FIRST_PAGE, "CHANGELOG.md": "project/changelog.md"}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page, and the change log."""
    for name, page in PAGES.items():
        up = "../" * page.count("/")
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", f"]({up}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Replace links that lead out of docs/ by text, and hide developer pages from the search."""
    path = page.file.src_uri
    if path.startswith("dev/"):
        page.meta["search"] = {"exclude": True}
    return _LINK.sub(lambda link: _rewrite_link(link, path), _COMMENT.sub("", markdown))


def on_env(env: Any, config: Any, files: Files) -> Any:
    """Add llms.txt and llms-full.txt, once the text of all pages is known."""
    pages = {
        file.src_uri: Page(file.url, file.page.markdown or "")
        for file in files.documentation_pages()
        if file.page is not None
    }
    listed = list_pages(config["site_name"], config["site_description"], config["nav"], pages)
    for name, content in (
        ("llms.txt", listed),
        ("llms-full.txt", join_pages(config["nav"], pages)),
    ):
        files.append(File.generated(config, name, content=content))
    return env


def _rewrite_link(link: re.Match[str], page: str) -> str:
    """Return the link if it leads to a page or another server, else its text and path."""
    target = link["target"].partition("#")[0]
    file = (DOCS / page).parent.joinpath(target).resolve()
    if "://" in target or not target or (file.is_relative_to(DOCS) and file.is_file()):
        return link[0]
    path = target if page == FIRST_PAGE else str(file.relative_to(ROOT))
    if path in PAGES:
        return f"[{link['text']}]({posixpath.relpath(PAGES[path], posixpath.dirname(page) or '.')})"
    return link["text"] if link["text"].strip("`") == path else f"{link['text']} (`{path}`)"
