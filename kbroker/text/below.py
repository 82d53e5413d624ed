"""Paths that are read from data."""

from __future__ import annotations

from pathlib import Path


def below(root: Path, relative: str) -> Path:
    """Return a path that data names, if it is below a folder.

    Args:
        root: Folder that the path must not leave.
        relative: Path as the data has it.

    Raises:
        ValueError: The path is absolute or leads elsewhere, by `..` or by a symbolic link.
    """
    path = root / relative
    top, found = root.resolve(), path.resolve()
    if found == top or not found.is_relative_to(top):
        raise ValueError(f"{relative!r} is not below {root}")
    return path
