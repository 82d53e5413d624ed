"""`kbroker cluster resize`: the data directories of a stopped server."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kbroker.cli import main


def test_resize_without_data_directory_fails(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cluster", "resize", "--nodes", "3", str(tmp_path)])
    assert result.exit_code == 1
    assert "the directories are empty" in result.output
    result = CliRunner().invoke(main, ["cluster", "resize", "--nodes", "1", str(tmp_path)])
    assert result.exit_code == 1
    assert "found no directories of nodes" in result.output
