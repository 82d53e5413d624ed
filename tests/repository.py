"""Files of this repository, and copies of it for tests that change or compile it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tracked_files(*patterns: str) -> list[str]:
    """Return the paths of the files that git tracks, or of those that match a pattern."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name]


def copy_repository(to: Path) -> None:
    """Copy the current versions of all files that git tracks."""
    for name in tracked_files():
        source, target = ROOT / name, to / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
