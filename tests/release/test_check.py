"""Conditions of a release: `release.check`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from release.check import missing
from release.pythons import MINORS

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", root, *AUTHOR, *arguments], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository that is ready for the release of version 1.2.3."""
    texts = {
        "pyproject.toml": '[project]\nversion = "1.2.3"\n',
        "kbroker/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3\n",
        ".gitignore": "/dist/\n",
    }
    wheels = [f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64.whl" for minor in MINORS]
    names = ["kbroker-1.2.3.tar.gz", *(f"kbroker-1.2.3-{x}" for x in ("py3-none-any.whl", *wheels))]
    for name, text in (texts | {f"dist/{name}": "" for name in names}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "release")
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


@pytest.mark.parametrize("tag", [None, "v1.2.3"])
def test_complete_release_lacks_nothing(root: Path, tag: str | None) -> None:
    assert [*missing(root, tag)] == []


def test_tag_of_another_version_is_reported(root: Path) -> None:
    git(root, "tag", "v1.2.4")
    assert [*missing(root, "v1.2.4")] == [
        "tag v1.2.4 does not match version 1.2.3: change `version` in pyproject.toml"
    ]


@pytest.mark.parametrize(
    ("name", "text", "report"),
    [
        ("kbroker/__init__.py", '__version__ = "1.2.2"\n', "set `__version__` to 1.2.3"),
        ("CHANGELOG.md", "## 1.2.2\n\n## 1.2.3\n", "add `## 1.2.3`"),
    ],
)
def test_file_with_another_version_is_reported(
    root: Path, name: str, text: str, report: str
) -> None:
    (root / name).write_text(text)
    found = [*missing(root, None)]
    assert [each for each in found if report in each and name in each]


def test_uncommitted_files_are_reported(root: Path) -> None:
    (root / "new").touch()
    assert [*missing(root, None)] == ["files are not committed: run `git status`"]


def test_untagged_commit_is_reported(root: Path) -> None:
    git(root, "tag", "-d", "v1.2.3")
    assert [*missing(root, None)] == ["HEAD has no tag v1.2.3: run `git tag v1.2.3`"]


def test_each_missing_distribution_is_reported(root: Path) -> None:
    for file in (root / "dist").iterdir():
        file.unlink()
    found = [*missing(root, None)]
    assert len(found) == 2 + len(MINORS)
    assert all("make wheels" in each for each in found)
