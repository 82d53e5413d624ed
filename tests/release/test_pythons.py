"""Search for installed Python versions: `release.pythons`."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.pythons import find_python


def install(directory: Path, minor: int, *, prints: str) -> str:
    """Create a program named like a Python that prints a text, and return its path."""
    program = directory / f"python3.{minor}"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\nprintf '%s' '{prints}'\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory without any Python, and hide the installed ones."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "home"


def test_python_on_path_is_preferred(home: Path, tmp_path: Path) -> None:
    install(home / ".pyenv/versions/3.12.1/bin", 12, prints="12")
    on_path = install(tmp_path / "bin", 12, prints="12")
    assert find_python(12) == on_path


def test_shim_without_active_version_is_skipped(home: Path, tmp_path: Path) -> None:
    install(tmp_path / "bin", 12, prints="pyenv: version '3.12' is not installed")
    in_pyenv = install(home / ".pyenv/versions/3.12.1/bin", 12, prints="12")
    assert find_python(12) == in_pyenv


def test_missing_python_is_not_found(home: Path) -> None:
    install(home / ".pyenv/versions/3.12.1/bin", 12, prints="12")
    assert find_python(13) is None
