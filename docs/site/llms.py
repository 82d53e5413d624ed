"""Plain-text forms of the documentation for language models: llms.txt and llms-full.txt.

llms.txt is a list of the pages with one line each, as https://llmstxt.org proposes. llms-full.txt
contains the text of all pages. Both follow the navigation of the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

# Navigation as in mkdocs.yml: pages, and sections with their names.
Nav: TypeAlias = Sequence[str | Mapping[str, "Nav"]]
# Name of the section of pages that are in none.
NO_SECTION = "Overview"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# The end of a sentence, but not that of an abbreviation within it.
_SENTENCE = re.compile(r"(.+?[.:])(?= (?:[A-Z`*]|kbroker)|$)")
# First characters of a paragraph that is no prose: heading, table, list, image, code, quote, HTML.
_NO_PROSE = ("#", "|", "* ", "- ", "!", "```", ">", "<", "    ")


class Page(NamedTuple):
    """A page of the site: its address relative to the site, and its text."""

    url: str
    markdown: str


def sections(nav: Nav, name: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each section with the files of its pages, in the order of the navigation.

    Args:
        nav: The navigation.
        name: Name of the section that contains it.
    """
    pages = [each for each in nav if isinstance(each, str)]
    if pages:
        yield name or NO_SECTION, pages
    for each in nav:
        if not isinstance(each, str):
            for inner, below in each.items():
                yield from sections(below, f"{name}: {inner}" if name else inner)


def title(markdown: str) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    return found[1].strip() if found else ""


def summary(markdown: str) -> str:
    """Return the first sentence of a page as plain text."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", markdown)
    paragraphs = (each.strip("\n") for each in re.split(r"\n\s*\n", prose))
    first = next((each for each in paragraphs if each and not each.startswith(_NO_PROSE)), "")
    text = " ".join(_LINK.sub(r"\1", first).split())
    found = _SENTENCE.match(text)
    return (found[1] if found else text).rstrip(":")


def list_pages(name: str, description: str, nav: Nav, pages: Mapping[str, Page]) -> str:
    """Return llms.txt: a line for each page, by section.

    Args:
        name: Name of the site.
        description: Its description.
        nav: Its navigation.
        pages: The pages by file.
    """
    lines = [f"# {name}", "", f"> {description}"]
    for section, files in sections(nav):
        lines += ["", f"## {section}", ""]
        for file in files:
            page = pages[file]
            lines.append(f"- [{title(page.markdown)}]({page.url}): {summary(page.markdown)}")
    return "\n".join(lines) + "\n"


def join_pages(nav: Nav, pages: Mapping[str, Page]) -> str:
    """Return llms-full.txt: the text of all pages, in the order of the navigation.

    Args:
        nav: The navigation of the site.
        pages: The pages by file.
    """
    files = [file for _, found in sections(nav) for file in found]
    return "\n\n".join(pages[file].markdown.strip() for file in files) + "\n"
