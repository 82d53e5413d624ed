"""Checks whether the repository and `dist` are ready for a release, and prints what is missing.

Usage: python -m release.check [TAG]. Without TAG, the tag of the version is assumed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from .pythons import MINORS

ROOT = Path(__file__).parents[1]


def missing(root: Path, tag: str | None) -> Iterator[str]:
    """Yield what is missing for a release, each with the action that provides it.

    Args:
        root: Directory of the repository.
        tag: Tag of the release, or None for the tag of the version.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    yield from _wrong_versions(root, version, tag)
    yield from _wrong_state(root, tag or f"v{version}")
    yield from _missing_files(root / "dist", version)


def _wrong_versions(root: Path, version: str, tag: str | None) -> Iterator[str]:
    if tag is not None and tag != f"v{version}":
        yield f"tag {tag} does not match version {version}: change `version` in pyproject.toml"
    if f'__version__ = "{version}"' not in (root / "kbroker/__init__.py").read_text():
        yield f"kbroker/__init__.py has another version: set `__version__` to {version}"
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or newest[1] != version:
        yield f"the newest entry of CHANGELOG.md is not {version}: add `## {version}`"


def _wrong_state(root: Path, tag: str) -> Iterator[str]:
    if _git(root, "status", "--porcelain"):
        yield "files are not committed: run `git status`"
    if tag not in _git(root, "tag", "--points-at", "HEAD").splitlines():
        yield f"HEAD has no tag {tag}: run `git tag {tag}`"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _missing_files(dist: Path, version: str) -> Iterator[str]:
    names = [f"kbroker-{version}.tar.gz", f"kbroker-{version}-py3-none-any.whl"]
    names += [f"kbroker-{version}-cp3{minor}-cp3{minor}-*.whl" for minor in MINORS]
    for name in names:
        if not [*dist.glob(name)]:
            yield f"dist/{name} does not exist: run `make wheels`, with all Python versions installed"


def main() -> None:
    found = [*missing(ROOT, sys.argv[1] if len(sys.argv) > 1 else None)]
    for each in found:
        print(f"missing: {each}")
    print("not ready for a release" if found else "ready for a release")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
