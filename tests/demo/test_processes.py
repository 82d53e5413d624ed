"""Worker processes report events, receive commands, and end when they are killed or orphaned."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from kbroker.demo import StartError
from kbroker.demo.processes import Event, OwnBroker, Worker

from ..limits import PROCESS_SECONDS

CHILD = """\
import subprocess, sys
from kbroker.demo.child import ParentConnection

parent = ParentConnection()
print("a library prints")
grandchild = subprocess.Popen(["sleep", "60"])
parent.emit("hello", arguments=sys.argv[1:], grandchild=grandchild.pid)
parent.wait_for("go")
parent.emit("gone", extra=parent.received("more"))
grandchild.kill()
"""
DEAF = """\
import os, time
os.close(0)
print('{"event": "deaf"}', flush=True)
time.sleep(1)
"""


@pytest.fixture
def events() -> SimpleQueue[Event]:
    return SimpleQueue()


@pytest.fixture
def worker(tmp_path: Path, events: SimpleQueue[Event]) -> Iterator[Worker]:
    (tmp_path / "talker.py").write_text(CHILD)
    child = Worker("talker", ["-x", "1"], events, tmp_path / "talker.log", tmp_path)
    yield child
    child.kill()


def alive(pid: int) -> bool:
    """Return True if a process runs. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def test_exit_of_worker_that_reads_no_commands_is_reported(
    events: SimpleQueue[Event], tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    worker = Worker("deaf", [], events, tmp_path / "deaf.log", tmp_path)
    assert events.get(timeout=PROCESS_SECONDS).name == "deaf"
    worker.send_command("anything")
    assert events.get(timeout=PROCESS_SECONDS) == Event(worker, "exit", {"code": 0})


def test_worker_reports_events_and_receives_commands(
    worker: Worker, events: SimpleQueue[Event], tmp_path: Path
) -> None:
    hello = events.get(timeout=PROCESS_SECONDS)
    assert hello.sender is worker
    assert (hello.name, hello.fields["arguments"]) == ("hello", ["-x", "1"])
    worker.send_command("other")
    worker.send_command("go")
    worker.send_command("more")
    assert events.get(timeout=PROCESS_SECONDS).name == "gone"
    assert events.get(timeout=PROCESS_SECONDS) == Event(worker, "exit", {"code": 0})
    assert "a library prints" in (tmp_path / "talker.log").read_text()
    worker.send_command("too late")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_kill_includes_child_processes_of_worker(
    worker: Worker, events: SimpleQueue[Event]
) -> None:
    grandchild = events.get(timeout=PROCESS_SECONDS).fields["grandchild"]
    assert alive(grandchild)
    worker.kill()
    assert worker.killed
    assert ends(grandchild)
    assert events.get(timeout=PROCESS_SECONDS).fields == {"code": -9}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_child_exits_when_parent_has_ended(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(CHILD)
    command = [sys.executable, "-m", "talker"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.stdin.close()
        assert child.wait(PROCESS_SECONDS) == 1
        os.killpg(child.pid, 9)  # the sleeping grandchild


def test_failed_broker_start_names_log(tmp_path: Path) -> None:
    (tmp_path / "broker").write_text("a file where the data directory should be")
    with pytest.raises(StartError, match=r"see .*broker\.log"):
        OwnBroker(tmp_path).start()


@pytest.mark.slow
def test_restarted_broker_keeps_port(tmp_path: Path) -> None:
    broker = OwnBroker(tmp_path)
    try:
        broker.start()
        bootstrap = broker.bootstrap
        assert int(bootstrap.rpartition(":")[2]) > 0
        assert not broker.ended
        broker.kill()
        assert broker.ended
        broker.start()
        assert broker.bootstrap == bootstrap
    finally:
        broker.stop()
