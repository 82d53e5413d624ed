"""Commands in docs/reference/cli.md."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cli import COMMANDS

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
KBROKER = f'kbroker() {{ {sys.executable} -m kbroker "$@"; }}\n'


@pytest.mark.long
async def test_every_shell_block_of_cli_page_runs(broker: Broker, tmp_path: Path) -> None:
    """The blocks run in order, in one shell that exits at the first failing command."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    script = KBROKER + "set -eo pipefail\n" + "".join(blocks)
    # `run` looks for a program, not for the shell's function.
    script = script.replace("-- kbroker", f"-- {sys.executable} -m kbroker")
    environ = os.environ | {
        "KBROKER_BOOTSTRAP": broker.bootstrap_servers,
        "KBROKER_PROFILES": str(tmp_path / "profiles.toml"),
    }
    done = await trio.run_process(
        ["bash", "-c", script],
        env=environ,
        cwd=tmp_path,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert b"customer-1=first order" in done.stdout


def test_cli_page_describes_every_command() -> None:
    text = PAGE.read_text()
    assert [name for name in COMMANDS if f"`kbroker {name}" not in text and name != "demo"] == []
