"""One broker shared by several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.client.errors import ClientError
from kbroker.testing import ExternalKafka
from kbroker.testing import shared_broker as shared_broker_module
from kbroker.testing.shared_broker import shared_broker

from ..limits import PROCESS_SECONDS

USER = """
import sys
from pathlib import Path
from kbroker.testing.shared_broker import shared_broker

with shared_broker(Path(sys.argv[1])) as bootstrap:
    print(bootstrap, flush=True)
    sys.stdin.readline()
"""


class User:
    """Another process that uses the broker until it is stopped."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.bootstrap = self.process.stdout.readline().strip()

    def leave(self) -> int:
        self.process.communicate("\n", timeout=PROCESS_SECONDS)
        return self.process.returncode

    def is_running(self) -> bool:
        return self.process.poll() is None


def is_reachable(bootstrap: str) -> bool:
    kafka = ExternalKafka(bootstrap)
    try:
        return kafka.topics() is not None
    finally:
        kafka.close()


@pytest.mark.slow
def test_shared_broker_runs_until_last_user_leaves(tmp_path: Path) -> None:
    first, second = User(tmp_path), User(tmp_path)
    assert first.bootstrap == second.bootstrap
    assert first.process.stdin is not None
    first.process.stdin.write("\n")
    first.process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(0.5)
    assert is_reachable(second.bootstrap)
    assert second.leave() == 0
    assert first.leave() == 0
    with pytest.raises(ClientError):
        is_reachable(second.bootstrap)


@pytest.mark.slow
def test_killed_user_counts_as_left(tmp_path: Path) -> None:
    with shared_broker(tmp_path) as bootstrap:
        user = User(tmp_path)
        assert user.bootstrap == bootstrap
        user.process.kill()
        user.process.communicate()
    assert not (tmp_path / "kbroker.address").exists()
    with shared_broker(tmp_path) as again:
        assert is_reachable(again)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Replace the server, and return the list of stopped servers."""
    stopped: list[object] = []
    monkeypatch.setattr(
        shared_broker_module, "start_server", lambda options: ("process", "127.0.0.1:2")
    )
    monkeypatch.setattr(shared_broker_module, "stop_server", stopped.append)
    return stopped


def test_broker_of_crashed_process_is_replaced(tmp_path: Path, stopped: list[object]) -> None:
    """The broker of a process stops together with the process."""
    (tmp_path / "kbroker.address").write_text("127.0.0.1:1\n999999999", encoding="utf-8")
    with shared_broker(tmp_path) as bootstrap:
        assert bootstrap == "127.0.0.1:2"
    assert stopped == ["process"]


def test_server_is_stopped_if_its_address_cannot_be_written(
    tmp_path: Path, stopped: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="full"), shared_broker(tmp_path):
        pass
    assert stopped == ["process"]
