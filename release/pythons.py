"""Finds the installed Python versions that kbroker supports."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Supported minor versions of Python 3.
MINORS = (11, 12, 13, 14)


def find_python(minor: int) -> str | None:
    """Return the path of a working Python 3.`minor`, or None."""
    for path in _candidates(minor):
        result = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info.minor)"],
            capture_output=True,
            text=True,
            check=False,
        )
        # A shim of pyenv exists even if its version is not active.
        if result.stdout.strip() == str(minor):
            return path
    return None


def _candidates(minor: int) -> Iterator[str]:
    name = f"python3.{minor}"
    yield from filter(None, [shutil.which(name)])
    yield from map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))
