"""Lazy import of commands."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli.lazy import LazyGroup

COMMAND = """\
import gc
import click

IMPORTED_UNCOLLECTED = not gc.isenabled()

@click.command()
def state():
    click.echo(f"{IMPORTED_UNCOLLECTED} {gc.isenabled()}")
"""


@pytest.mark.parametrize("source", [COMMAND, "raise ImportError('gone')"])
def test_garbage_collection_is_disabled_only_during_command_import(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_command.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "one_command", raising=False)
    group = LazyGroup("all", lazy={"state": ("one_command:state", "Print the state.")})
    result = CliRunner().invoke(group, ["state"])
    if source is COMMAND:
        assert result.output == "True True\n"
    else:
        assert isinstance(result.exception, ImportError)
    assert gc.isenabled()
