"""Checks whether the repository and `dist` are ready for a release, and prints what is missing.

Usage: python -m release.check [TAG]. Without TAG, the newest entry of CHANGELOG.md gives the tag.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .pythons import MINORS

ROOT = Path(__file__).parents[1]
# Packages for other package managers, which do not take their version from the tag.
VERSIONED_JSON = (
    "release/channels/npm/package.json",
    "release/channels/devcontainer/src/kbroker/devcontainer-feature.json",
)


def missing(root: Path, tag: str | None) -> Iterator[str]:
    """Yield what is missing for a release, each with the action that provides it.

    Args:
        root: Directory of the repository.
        tag: Tag of the release, or None for the version of the newest entry of CHANGELOG.md.
    """
    newest = _newest_entry(root)
    if tag is None and not _is_version(newest):
        yield f"the newest entry of CHANGELOG.md is {newest}: rename it to the new version"
        return
    tag = tag or f"v{newest}"
    version = tag[1:]
    if not _is_version_tag(tag):
        yield f"{tag} is not a version tag: tag releases as vX.Y.Z"
        return
    if newest != version:
        yield f"the newest entry of CHANGELOG.md is not {version}: add `## {version}`"
    semantic = semantic_version(version)
    for name in VERSIONED_JSON:
        if f'"version": "{semantic}"' not in (root / name).read_text():
            yield f"{name} has another version: set `version` to {semantic}"
    yield from _wrong_state(root, tag)
    yield from _missing_files(root / "dist", version)


def _newest_entry(root: Path) -> str:
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    return newest[1] if newest else "missing"


def _is_version(text: str) -> bool:
    """Return True if a text is a version in the form that file names of distributions have."""
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


def semantic_version(version: str) -> str:
    """Return a version of Python in the form that npm accepts: three numbers, then a prerelease."""
    parsed = Version(version)
    numbers = ".".join(map(str, (parsed.major, parsed.minor, parsed.micro)))
    return numbers if parsed.pre is None else f"{numbers}-{parsed.pre[0]}.{parsed.pre[1]}"


def _is_version_tag(tag: str) -> bool:
    """Return True if a tag is `v` and a version."""
    return tag.startswith("v") and _is_version(tag[1:])


def _wrong_state(root: Path, tag: str) -> Iterator[str]:
    if _git(root, "status", "--porcelain"):
        yield "files are not committed: run `git status`"
    tags = _git(root, "tag", "--points-at", "HEAD").splitlines()
    if tag not in tags:
        yield f"HEAD has no tag {tag}: run `git tag {tag}`"
    # A build takes one of them as its version.
    for other in sorted({*tags} - {tag}):
        if _is_version_tag(other):
            yield f"HEAD has another version tag: run `git tag --delete {other}`"


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
