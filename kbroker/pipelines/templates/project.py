"""Copies a template to a new project directory."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# The templates with their descriptions.
KINDS = {
    "aggregate": "Totals per hour and customer; late records go to a separate topic.",
    "sessions": "Sessions from visitors' clicks; late clicks go to a separate topic.",
    "enrich": "Join each record of a topic with a table in a compacted topic.",
    "lake": "Write each record of a topic to Parquet files by date and hour, in your own columns.",
    "custom": "Transform the records of a topic with your own function into another topic.",
}

# Directories whose files form a project, by template.
LAYERS = {
    "aggregate": ("common", "topics", "aggregate"),
    "sessions": ("common", "topics", "sessions"),
    "enrich": ("common", "topics", "enrich"),
    "lake": ("common", "lake"),
    "custom": ("common", "topics", "custom"),
}

FILES = Path(__file__).parent / "files"
PLACEHOLDER = "my_pipeline"
NAME = re.compile(r"[a-z][a-z0-9_]*")


class TemplateError(Exception):
    """The project cannot be created; the message names the next action."""


def copy_project(kind: str, name: str, parent: Path) -> Path:
    """Create a project directory from a template.

    Args:
        kind: Name of the template.
        name: Name of the project and its package.
        parent: Directory in which the project is created.

    Returns:
        The project directory.

    Raises:
        TemplateError: The template does not exist, the name is not valid for a package, or the
            directory exists.
    """
    if kind not in KINDS:
        raise TemplateError(f"unknown template {kind!r} (valid: {', '.join(KINDS)})")
    directory = parent / name
    if directory.exists():
        raise TemplateError(f"{directory} already exists: choose another name, or delete it")
    _check(name)
    try:
        for source, relative in _files(kind):
            target = directory / _named(str(relative), name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_named(source.read_text(encoding="utf-8"), name), encoding="utf-8")
    except BaseException:
        # The same command would reject the rest as an existing directory.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


def _check(name: str) -> None:
    """Reject names that cannot be imported or would hide another module."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        suggestion = re.sub(r"\W+", "_", name).lower().strip("_0123456789") or PLACEHOLDER
        raise TemplateError(
            f"{name!r} is not a valid name for a Python package: use lower-case letters, digits "
            f"and underscores, for example {suggestion}"
        )
    if name == "tests" or name in sys.stdlib_module_names or importlib.util.find_spec(name):
        raise TemplateError(
            f"a package {name!r} already exists and would be hidden: choose another name, for "
            f"example {name}_pipeline"
        )


def _files(kind: str) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a template and their relative targets."""
    for directory in (FILES / layer for layer in LAYERS[kind]):
        for path in sorted(directory.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, path.relative_to(directory)


def _named(text: str, name: str) -> str:
    return text.replace(PLACEHOLDER, name).replace(PLACEHOLDER.upper(), name.upper())
