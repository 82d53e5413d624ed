"""Commands that grow and shrink the data directories of a cluster."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kbroker.cli import main


def test_grow_and_shrink_without_data_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["cluster", "grow", "--to", "3", str(tmp_path)])
    assert result.exit_code == 1
    assert "there is no data" in result.output
    result = CliRunner().invoke(main, ["cluster", "shrink", str(tmp_path)])
    assert result.exit_code == 1
    assert "there are no nodes with folders here" in result.output
