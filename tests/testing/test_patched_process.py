"""Brokers in test processes that patch clocks or IDs, fork, or block threads or sockets."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from unittest import mock

import freezegun
import pytest
import time_machine
from confluent_kafka import Producer

from kbroker.protocol.errors import KafkaError
from kbroker.testing import LocalBroker, WaitTimeout
from kbroker.testing.real_time import wall_ns

PAST, FUTURE = "2020-01-01", "2040-01-01"
SECONDS_MAX = 60
_ONE_HOUR_NS = 3600 * 10**9


def patched_time() -> AbstractContextManager[object]:
    stack = ExitStack()
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"):
        stack.enter_context(mock.patch(f"time.{name}", return_value=1))
    return stack


PATCHES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "freezegun-past": lambda: freezegun.freeze_time(PAST),
    "freezegun-future": lambda: freezegun.freeze_time(FUTURE),
    "time-machine-past": lambda: time_machine.travel(PAST),
    "time-machine-future": lambda: time_machine.travel(FUTURE),
    "mock-time": patched_time,
    "mock-uuid": lambda: mock.patch("uuid.uuid4", return_value=uuid.UUID(int=7)),
}


def use(broker: LocalBroker) -> None:
    """Create topics, produce with librdkafka and the kit, and wait, once until a timeout."""
    broker.create_topic("first")
    broker.create_topic("second")
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("first", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush()
    assert errors == [None]
    assert [each.value for each in broker.wait_for("first", count=1)] == [b"x"]
    broker.produce("second", "y")
    with pytest.raises(WaitTimeout):
        broker.wait_for("second", count=2, timeout=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES)
def test_broker_works_while_clocks_and_ids_are_patched(patch: str) -> None:
    with LocalBroker() as before:
        with PATCHES[patch](), LocalBroker() as within:
            use(before)
            use(within)
        before.produce("first", "z")
        assert len(before.wait_for("first", count=2)) == 2


@pytest.mark.parametrize("patch", PATCHES)
def test_record_of_kit_has_real_time_while_clocks_are_patched(patch: str) -> None:
    now_ms = time.time_ns() // 10**6
    with LocalBroker(topics={"t": 1}) as broker, PATCHES[patch]():
        timestamp = broker.produce("t", "x").timestamp
    assert now_ms <= timestamp <= time.time_ns() // 10**6


def test_record_from_the_future_is_accepted_unless_config_limits_it() -> None:
    ahead = time.time_ns() // 10**6 + 10**10
    limit = {"log.message.timestamp.after.max.ms": 1000}
    with LocalBroker(topics={"t": 1}) as broker:
        assert broker.produce("t", "x", timestamp=ahead).timestamp == ahead
    with (
        LocalBroker(topics={"t": 1}, config=limit) as broker,
        pytest.raises(KafkaError, match="INVALID_TIMESTAMP"),
    ):
        broker.produce("t", "x", timestamp=ahead)


def test_wall_clock_is_real_while_another_thread_starts_and_stops_travelling() -> None:
    stop = threading.Event()

    def travel() -> None:
        while not stop.is_set():
            with time_machine.travel(FUTURE):
                pass

    travelling = threading.Thread(target=travel)
    real = wall_ns()
    travelling.start()
    try:
        read = [wall_ns() for _ in range(20_000)]
    finally:
        stop.set()
        travelling.join()
    assert max(read) - real < _ONE_HOUR_NS


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


FORK = """
import os, sys
from kbroker.testing import LocalBroker

def child(broker):
    action = sys.argv[1]
    if action == "use":
        broker.topics()
    if action == "raise":
        raise ValueError("of the child")
    if action == "exit":
        sys.exit(3)

with LocalBroker(topics={"t": 1}) as broker:
    pid = os.fork()
    if pid == 0:
        child(broker)
    else:
        print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if pid != 0:
    print("end")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize(
    ("action", "status", "error"),
    [
        ("leave", 0, ""),
        ("exit", 3, ""),
        ("raise", 1, "ValueError: of the child"),
        ("use", 1, "connect clients to bootstrap_servers"),
    ],
)
def test_forked_child_ends_and_parent_keeps_its_broker(
    action: str, status: int, error: str
) -> None:
    finished = run_python(FORK, action)
    assert finished.stdout.splitlines() == [f"child: {status}", "end"], finished.stderr
    assert error in finished.stderr


RESTART_BESIDE_CHILD = """
import os, signal, time
from kbroker.testing import LocalBroker

with LocalBroker(topics={"t": 1}) as broker:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    broker.restart()
    print(broker.topics())
    os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_broker_restarts_on_its_port_while_a_forked_child_lives() -> None:
    finished = run_python(RESTART_BESIDE_CHILD)
    assert finished.stdout == "{'t': 1}\n", finished.stderr


NO_FILES = """
import os, resource
from kbroker.testing import LocalBroker
import kbroker.testing.local
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
try:
    while True:
        os.open(os.devnull, os.O_RDONLY)
except OSError:
    LocalBroker()
"""
PATCHED_THREADS = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import os; os.environ['EVENTLET_NO_GREENDNS'] = 'yes'\n"  # dnspython may import trio
    "import eventlet; eventlet.monkey_patch()",
}
USE = "; from kbroker.testing import LocalBroker; LocalBroker()"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_broker_without_file_descriptors_fails_at_once() -> None:
    finished = run_python(NO_FILES)
    assert finished.returncode == 1
    assert "raise the limit of open files" in finished.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("library", PATCHED_THREADS)
def test_broker_under_patched_threads_names_the_way_out(library: str) -> None:
    finished = run_python(PATCHED_THREADS[library] + USE)
    assert finished.returncode == 1
    assert library in finished.stderr
    assert "kbroker run -- COMMAND" in finished.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "outcome"),
    [
        ("--disable-socket", "allow connections to this machine with --allow-hosts"),
        ("--allow-hosts=127.0.0.1,::1", "1 passed"),
    ],
)
def test_plugin_with_blocked_sockets_says_how_to_allow_them(
    tmp_path: Path, option: str, outcome: str
) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(kbroker): kbroker.create_topic('t')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", option]
    finished = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert outcome in finished.stdout
