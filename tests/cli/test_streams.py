"""Commands with closed standard streams, and with output that cannot be written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from click.testing import CliRunner

from kbroker.broker import Broker
from kbroker.cli import main

KBROKER = f"{sys.executable} -m kbroker"
pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="/dev/full exists only on Linux"
)


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", ["config explain flush.policy", "--help", "version -o json", "completion bash"]
)
def test_full_disk_is_reported_without_traceback(arguments: str) -> None:
    done = run(f"{KBROKER} {arguments} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "kbroker: cannot write the output: No space left on device\n"


async def test_full_disk_is_reported_by_commands_with_connection(broker: Broker) -> None:
    server = f"-b {broker.bootstrap_servers}"
    command = f"{KBROKER} topic create {server} t; {KBROKER} topic produce {server} t x"
    await trio.to_thread.run_sync(run, command)
    command = f"{KBROKER} topic consume {server} t -o :end >/dev/full"
    done = await trio.to_thread.run_sync(run, command)
    assert done.returncode == 1
    assert done.stderr == "kbroker: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("streams", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_fail_commands(streams: str) -> None:
    done = run(f"{KBROKER} config explain flush.policy {streams}")
    assert (done.returncode, done.stderr) == (0, "")


def test_error_with_full_disk_keeps_exit_status_and_message() -> None:
    done = run(f"{KBROKER} config explain no.such >/dev/full")
    assert (done.returncode, done.stderr) == (1, "Error: Unknown setting: no.such\n")


def test_closed_pipe_ends_command_silently() -> None:
    done = run(f"{KBROKER} config show | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_command_without_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(name: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("kbroker.config.explain.explain", explain)
    done = CliRunner().invoke(main, ["config", "explain", "flush.policy"])
    assert (done.exit_code, done.output) == (128 + signal.SIGINT, "")
