"""`kbroker cluster resize`: the data directories of a stopped server."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.storage.errors import StorageError


def test_resize_without_data_directory_fails(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cluster", "resize", "--nodes", "3", str(tmp_path)])
    assert result.exit_code == 1
    assert "the directories are empty" in result.output
    result = CliRunner().invoke(main, ["cluster", "resize", "--nodes", "1", str(tmp_path)])
    assert result.exit_code == 1
    assert "found no directories of nodes" in result.output


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_interrupted_resize_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.data_dirs.resize.grow", interrupt)
    result = CliRunner().invoke(main, ["cluster", "resize", "--nodes", "3", str(tmp_path)])
    assert result.exit_code == 130
    assert "interrupted; repeat the command to finish" in result.stderr


@pytest.mark.parametrize("has_begun", [True, False])
def test_failed_migration_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    def fail(*_: object) -> None:
        if has_begun:
            (tmp_path / "cluster.journal.leaving").touch()
        raise StorageError("etcd does not respond")

    monkeypatch.setattr("kbroker.process.on_etcd.on_etcd", fail)
    arguments = ["--to", "etcd://127.0.0.1:2379/c", str(tmp_path)]
    result = CliRunner().invoke(main, ["cluster", "migrate-metadata", *arguments])
    assert result.exit_code == 1
    assert "etcd does not respond" in result.stderr
    assert ("repeat the same command to finish it" in result.stderr) == has_begun
