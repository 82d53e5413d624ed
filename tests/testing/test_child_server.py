"""A server in a child process."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from kbroker.testing import child_server

from ..limits import PROCESS_SECONDS


@pytest.mark.slow
def test_interrupted_start_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str], *, stdout: int, encoding: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, stdout=stdout, encoding=encoding))
        return started[0]

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    popen = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    monkeypatch.setattr(child_server, "subprocess", popen)
    monkeypatch.setattr(child_server, "json", SimpleNamespace(loads=interrupt))
    monkeypatch.setattr(child_server, "stop_server", lambda process: process.kill())
    with pytest.raises(KeyboardInterrupt):
        child_server.start_server(["--memory"])
    started[0].communicate(timeout=PROCESS_SECONDS)
