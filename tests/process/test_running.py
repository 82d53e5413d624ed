"""Tests of the command of `kbroker run`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from kbroker.process import running
from kbroker.process.running import _run_child

from ..wire import until

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("ignored", ["", "trap '' TERM; "])
async def test_command_ends_if_broker_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    monkeypatch.setattr(running, "TERMINATE_SECONDS", 0.2)
    file = tmp_path / "pid"
    script = f"{ignored}echo $$ > {file}.tmp; mv {file}.tmp {file}; exec sleep 60"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_child, ["sh", "-c", script], dict(os.environ))
        await until(file.exists)
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
