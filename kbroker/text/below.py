"""Safe resolution of untrusted relative paths."""

from __future__ import annotations

import os
from pathlib import Path


def below(root: Path, relative: str) -> Path:
    """Resolve an untrusted path that must be below a directory.

    Args:
        root: Directory that the path must not leave.
        relative: Untrusted relative path.

    Raises:
        ValueError: The path is absolute, leaves the directory through `..` or a symbolic link, or
            contains a loop of symbolic links.
    """
    path = root / relative
    # os.path.realpath, because Path.resolve treats loops differently in Python 3.12 and 3.13.
    top, found = Path(os.path.realpath(root)), Path(os.path.realpath(path))
    if any(os.path.islink(each) for each in (found, *found.parents)):
        raise ValueError(f"{relative!r} contains a loop of symbolic links")
    if found == top or not found.is_relative_to(top):
        raise ValueError(f"{relative!r} is not below {root}")
    return path
