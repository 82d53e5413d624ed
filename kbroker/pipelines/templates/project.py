"""Copying a template into a directory of its own."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path

KINDS = {
    "aggregate": "Totals per hour and customer; records that come too late are kept aside.",
    "sessions": "Visitors' clicks become sessions; clicks that come too late are kept aside.",
    "enrich": "Each record of a topic, with its row of a table that is a compacted topic.",
    "lake": "Each record of a topic into Parquet files by date and hour, in columns of yours.",
    "custom": "A topic, a function of yours, another topic.",
}
"""The templates, and what each does."""

LAYERS = {
    "aggregate": ("common", "topics", "aggregate"),
    "sessions": ("common", "topics", "sessions"),
    "enrich": ("common", "topics", "enrich"),
    "lake": ("common", "lake"),
    "custom": ("common", "topics", "custom"),
}
"""The directories whose files make up a project."""

FILES = Path(__file__).parent / "files"
PLACEHOLDER = "my_pipeline"
NAME = re.compile(r"[a-z][a-z0-9_]*")


class TemplateError(Exception):
    """There can be no such project; the message says what can be done."""


def copy_project(kind: str, name: str, parent: Path) -> Path:
    """Make the project directory `name` in `parent` from the template `kind`; returns the directory.

    Raises:
        TemplateError: there is no such template, the name cannot be a package's, or the directory exists.
    """
    if kind not in KINDS:
        raise TemplateError(f"there is no template {kind!r}; there are: {', '.join(KINDS)}")
    directory = parent / name
    if directory.exists():
        raise TemplateError(f"{directory} exists already: choose another name, or remove it")
    _check(name)
    for source, relative in _files(kind):
        target = directory / _named(str(relative), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_named(source.read_text(encoding="utf-8"), name), encoding="utf-8")
    return directory


def _check(name: str) -> None:
    """Refuse what cannot be imported, and what would hide another module."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        suggestion = re.sub(r"\W+", "_", name).lower().strip("_0123456789") or PLACEHOLDER
        raise TemplateError(
            f"{name!r} cannot be the name of a Python package: take lower-case letters, digits and "
            f"underscores, for instance {suggestion}"
        )
    if name == "tests" or name in sys.stdlib_module_names or importlib.util.find_spec(name):
        raise TemplateError(
            f"a package {name!r} exists already and would be hidden: choose another name, for "
            f"instance {name}_pipeline"
        )


def _files(kind: str) -> Iterator[tuple[Path, Path]]:
    """The files of a template, and where each goes."""
    for directory in (FILES / layer for layer in LAYERS[kind]):
        for path in sorted(directory.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, path.relative_to(directory)


def _named(text: str, name: str) -> str:
    return text.replace(PLACEHOLDER, name).replace(PLACEHOLDER.upper(), name.upper())
