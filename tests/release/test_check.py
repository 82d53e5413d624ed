"""Conditions of a release: `release.check`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from release.check import VERSIONED_JSON, missing, semantic_version
from release.pythons import MINORS

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", root, *AUTHOR, *arguments], check=True, capture_output=True)


def json_of(version: str) -> str:
    return f'{{\n  "version": "{version}"\n}}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository that is ready for the release of version 1.2.3."""
    texts = {
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 (2026-11-30)\n",
        ".gitignore": "/dist/\n",
        **{name: json_of("1.2.3") for name in VERSIONED_JSON},
    }
    wheels = [f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64.whl" for minor in MINORS]
    names = ["kbroker-1.2.3.tar.gz", *(f"kbroker-1.2.3-{x}" for x in ("py3-none-any.whl", *wheels))]
    for name, text in (texts | {f"dist/{name}": "" for name in names}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "release")
    git(tmp_path, "tag", "v1.2.3")
    return tmp_path


@pytest.mark.parametrize("tag", [None, "v1.2.3"])
def test_complete_release_lacks_nothing(root: Path, tag: str | None) -> None:
    assert [*missing(root, tag)] == []


@pytest.mark.parametrize("tag", ["release", "1.2", "v1.02.3", "v1.2.3-rc1"])
def test_tag_without_version_is_reported(root: Path, tag: str) -> None:
    git(root, "tag", tag)
    assert [*missing(root, tag)] == [f"{tag} is not a version tag: tag releases as vX.Y.Z"]


@pytest.mark.parametrize("tag", [None, "v1.2.3rc1"])
def test_prerelease_is_accepted(root: Path, tag: str | None) -> None:
    rename_release(root, "1.2.3rc1")
    assert [*missing(root, tag)] == []


def rename_release(root: Path, version: str) -> None:
    """Turn the release of version 1.2.3 into one of another version."""
    (root / "CHANGELOG.md").write_text(f"## {version}\n")
    for name in VERSIONED_JSON:
        (root / name).write_text(json_of(semantic_version(version)))
    git(root, "commit", "-qam", "release")
    git(root, "tag", f"v{version}")
    for each in (root / "dist").iterdir():
        each.rename(each.with_name(each.name.replace("1.2.3", version)))


def test_changelog_of_another_version_is_reported(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("## 1.2.2\n\n## 1.2.3\n")
    git(root, "commit", "-qam", "changes")
    git(root, "tag", "-f", "v1.2.3")
    assert [*missing(root, "v1.2.3")] == [
        "the newest entry of CHANGELOG.md is not 1.2.3: add `## 1.2.3`"
    ]


@pytest.mark.parametrize("name", VERSIONED_JSON)
def test_package_of_another_version_is_reported(root: Path, name: str) -> None:
    (root / name).write_text(json_of("1.2.2"))
    git(root, "commit", "-qam", "changes")
    git(root, "tag", "-f", "v1.2.3")
    assert [*missing(root, None)] == [f"{name} has another version: set `version` to 1.2.3"]


@pytest.mark.parametrize(
    ("version", "semantic"), [("1.2", "1.2.0"), ("1.2.3", "1.2.3"), ("1.2.3rc1", "1.2.3-rc.1")]
)
def test_semantic_version_has_three_numbers(version: str, semantic: str) -> None:
    assert semantic_version(version) == semantic


def test_unreleased_changelog_is_reported(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2.2\n")
    assert [*missing(root, None)] == [
        "the newest entry of CHANGELOG.md is Unreleased: rename it to the new version"
    ]


def test_second_version_tag_is_reported(root: Path) -> None:
    git(root, "tag", "v1.2.4")
    git(root, "tag", "nightly")
    assert [*missing(root, None)] == ["HEAD has another version tag: run `git tag --delete v1.2.4`"]


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
