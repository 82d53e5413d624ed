"""Paths that are read from data."""

from __future__ import annotations

import os
from pathlib import Path


def below(root: Path, relative: str) -> Path:
    """Return a path that data names, if it is below a directory.

    Args:
        root: Directory that the path must not leave.
        relative: Path as the data has it.

    Raises:
        ValueError: The path is absolute, leads elsewhere by `..` or a symbolic link, or has a loop of
            symbolic links.
    """
    path = root / relative
    # Path.resolve raises RuntimeError for a loop up to Python 3.12, and nothing since 3.13.
    top, found = Path(os.path.realpath(root)), Path(os.path.realpath(path))
    if any(os.path.islink(each) for each in (found, *found.parents)):
        raise ValueError(f"{relative!r} has a loop of symbolic links")
    if found == top or not found.is_relative_to(top):
        raise ValueError(f"{relative!r} is not below {root}")
    return path
