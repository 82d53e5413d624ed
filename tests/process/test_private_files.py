"""Tests of files that only their owner can read."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kbroker.process.private_files import write_private


def test_private_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "password"
    for text in ("first", "second"):
        write_private(path, text)
        assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["password"]


@pytest.mark.parametrize("step", ["write", "replace"])
def test_failed_write_leaves_no_secret(tmp_path: Path, step: str) -> None:
    path = tmp_path / "password"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if step == "replace":
        path.mkdir()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        with pytest.raises(OSError):  # noqa: PT011  # the text depends on the system
            write_private(path, "secret")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == (["password"] if step == "replace" else [])
