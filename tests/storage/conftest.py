"""Fixtures that run each log test with files on disk and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.files import Files, MemFiles, OsFiles


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """Return a file system and the path of a data directory that does not exist yet."""
    if request.param == "disk":
        return OsFiles(), (tmp_path / "data").as_posix()
    return MemFiles(), "data"
