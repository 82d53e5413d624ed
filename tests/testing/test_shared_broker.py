"""One broker shared by several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.client.errors import ClientError
from kbroker.testing import ExternalKafka
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
