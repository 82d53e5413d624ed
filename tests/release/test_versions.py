"""Versions from git tags: `tool.setuptools_scm` in pyproject.toml, and `kbroker.__version__`."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ..repository import ROOT
from .test_check import git

INIT = str(ROOT / "kbroker/__init__.py")
SETTINGS = ("pyproject.toml", ".gitattributes", ".git_archival.txt")


def version_of(directory: Path) -> str:
    """Return the version that a build in a directory would have."""
    # These variables would override the tags.
    environment = {name: value for name, value in os.environ.items() if "SCM" not in name}
    return subprocess.check_output(
        [sys.executable, "-m", "setuptools_scm"], cwd=directory, env=environment, text=True
    ).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of one commit with the settings of this one."""
    directory = tmp_path / "repository"
    directory.mkdir()
    git(directory, "init", "-q")
    for name in SETTINGS:
        shutil.copy(ROOT / name, directory)
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "first")
    return directory


@pytest.mark.slow
def test_version_of_tagged_commit_is_its_tag(repository: Path) -> None:
    git(repository, "tag", "v1.2.3")
    assert version_of(repository) == "1.2.3"


@pytest.mark.slow
def test_commit_after_tag_has_development_version(repository: Path) -> None:
    git(repository, "tag", "v1.2.3")
    git(repository, "commit", "--allow-empty", "-qm", "second")
    assert re.fullmatch(r"1\.2\.4\.dev1\+g[0-9a-f]+", version_of(repository))


@pytest.mark.slow
def test_clone_without_tags_has_development_version(repository: Path) -> None:
    assert re.fullmatch(r"0\.0\.1\.dev1\+g[0-9a-f]+", version_of(repository))


@pytest.mark.slow
def test_exported_archive_has_version_of_its_tag(repository: Path, tmp_path: Path) -> None:
    git(repository, "tag", "v1.2.3")
    git(repository, "archive", "--output", str(tmp_path / "archive.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "archive.tar", tmp_path / "unpacked")
    assert version_of(tmp_path / "unpacked") == "1.2.3"


@pytest.mark.slow
def test_copy_without_git_has_fallback_version(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert version_of(tmp_path) == "0.0.0"


def test_sources_that_were_never_built_have_fallback_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kbroker._version", None)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]
    assert runpy.run_path(INIT)["__version__"] == settings["fallback_version"]


def test_version_comes_from_file_of_build(monkeypatch: pytest.MonkeyPatch) -> None:
    written = type(sys)("kbroker._version")
    vars(written)["VERSION"] = "1.2.3"
    monkeypatch.setitem(sys.modules, "kbroker._version", written)
    assert runpy.run_path(INIT)["__version__"] == "1.2.3"
