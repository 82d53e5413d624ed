"""`kbroker serve` as a process: ready signals, events, exit codes, messages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SERVE = [sys.executable, "-m", "kbroker", "serve"]
SECONDS = 30


@contextmanager
def serving(*flags: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*SERVE, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_serve(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SERVE, *flags], capture_output=True, text=True, check=False, timeout=SECONDS
    )


def wait_for(path: Path) -> str:
    give_up = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < give_up, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def test_serve_prints_ready_line_and_exits_cleanly_on_signal(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    port_file.write_text("stale:1")
    with serving(
        "--port", "0", "--data-dir", str(tmp_path / "d"), "--port-file", str(port_file)
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        address = wait_for(port_file)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=SECONDS)
    assert lines[0].startswith("kbroker 0.")
    assert f"localhost:{address.split(':')[1].strip()}" in lines[1]
    assert "new" in lines[2]
    assert lines[3].startswith("ready in ")
    assert output == "stopped\n"
    assert process.returncode == 0
    assert not port_file.exists()


@pytest.mark.slow
def test_serve_json_events_contain_banner_facts(tmp_path: Path) -> None:
    port_file = tmp_path / "port.json"
    with serving("--memory", "--port", "0", "--json", "--port-file", str(port_file)) as process:
        written = json.loads(wait_for(port_file))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    events = [json.loads(line) for line in output.splitlines()]
    assert [event["event"] for event in events] == ["starting", "ready", "stopping", "stopped"]
    assert events[1] == written
    assert written["pid"] == process.pid
    assert written["bootstrap_servers"] == written["listeners"]["PLAINTEXT"]
    assert process.returncode == 0


@pytest.mark.slow
def test_serve_writes_ready_event_to_descriptor() -> None:
    read_end, write_end = os.pipe()
    flags = ("--memory", "--port", "0", "--ready-fd", str(write_end))
    with serving(*flags, pass_fds=[write_end]), os.fdopen(read_end) as reader:
        os.close(write_end)
        event = json.loads(reader.read())
    assert event["event"] == "ready"


@pytest.mark.slow
def test_serve_rejects_directory_in_use(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    flags = ("--port", "0", "--data-dir", str(tmp_path / "d"))
    with serving(*flags, "--port-file", str(port_file)):
        wait_for(port_file)
        second = run_serve(*flags)
    assert second.returncode == 3
    assert "another broker uses this data directory" in second.stderr
    assert "--data-dir" in second.stderr


@pytest.mark.slow
def test_serve_with_port_in_use_names_option_and_creates_no_directory(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_serve("--port", port, "--data-dir", str(tmp_path / "d"))
    assert done.returncode == 3
    assert f"port {port}" in done.stderr
    assert "--port 0" in done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--memory", "--port", "0", "--strict", "--host", "0.0.0.0"], 3, "rejected by --strict"),
        (["--memory", "--port", "0", "--topic", "t:0"], 3, "use at least 1"),
        (["--memory", "--port", "0", "--topic", "t:1:foo=1"], 3, "foo"),
        (["--memory", "--host", "no.such.host.invalid"], 3, "--host"),
        (["--memory", "--port-file", "/no/such/directory/p"], 3, "--port-file"),
        (["--port", "0", "--data-dir", "/proc/none"], 3, "cannot create /proc/none"),
        (["--memory", "--port", "0", "--advertise", "nonsense"], 3, "nonsense"),
        (["--memory", "--log-level", "loud"], 3, "loud"),
        (["--memory", "-o", "num.partitions=abc"], 3, "num.partitions"),
        (["--memory", "--strict", "-o", "num.partition=3"], 3, "num.partitions"),
        (["--memory", "-o", "no-equals-sign"], 2, "KEY=VALUE"),
        (["--memory", "--data-dir", "x"], 2, "exclude"),
        (["--memory", "--as-version", "5.0"], 3, "unknown Kafka release 5.0"),
        (["--as-version", "3.9", "--control-port", "0"], 2, "exclude"),
        (["--memory", "--port", "0", "-o", "log.dir=a,b"], 3, "log.dir"),
        (["--no-such-flag"], 2, "--no-such-flag"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_serve_that_cannot_start_prints_reason_in_one_line(
    flags: list[str], status: int, message: str
) -> None:
    done = run_serve(*flags)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_serve_json_reports_failed_start_as_event() -> None:
    done = run_serve("--memory", "--json", "-o", "num.partitions=abc")
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["event"] == "error"
    assert "num.partitions" in event["message"]


@pytest.mark.slow
def test_serve_warns_of_unknown_setting_with_suggestion(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with serving(
        "--memory", "--port", "0", "-o", "num.partition=3", "--port-file", str(port_file)
    ) as process:
        wait_for(port_file)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
    assert "num.partitions" in errors


@pytest.mark.slow
def test_serve_env_config_applies_image_variables(tmp_path: Path) -> None:
    """Listeners, topics, cluster ID and log level; an unknown logger causes a warning."""
    ports = tmp_path / "port.json"
    environ = {
        **os.environ,
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:0",
        "KAFKA_NODE_ID": "5",
        "KAFKA_CREATE_TOPICS": "t1:3:1",
        "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
    }
    flags = ["--memory", "--env-config", "--port-file", str(ports)]
    with serving(*flags, env=environ) as process:
        ready = json.loads(wait_for(ports))
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=SECONDS)
    assert "in memory, 1 topic\n" in output
    assert (ready["cluster_id"], ready["node_id"]) == ("5L6g3nShT-eMCtK--X86sw", 5)
    assert "INFO" not in errors
    assert "anyone who can reach 0.0.0.0" in errors


@pytest.mark.slow
def test_serve_warns_of_unknown_logger(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    levels = ["--log-level", "kbroker.nothing=debug", "--log-level", "kbroker.node.node=debug"]
    with serving("--memory", "--port", "0", "--port-file", str(port_file), *levels) as process:
        wait_for(port_file)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
    assert "there is no logger kbroker.nothing" in errors
    assert "there is no logger kbroker.node.node" not in errors


@pytest.mark.parametrize("event", ["starting", "ready"])
def test_serve_stops_when_parent_exits(event: str) -> None:
    """The server stops even if the parent exits before the server is ready."""
    flags = [*SERVE, "--memory", "--port", "0", "--exit-with-parent", "--json"]
    script = f"import subprocess; subprocess.run({flags!r})"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        while json.loads(parent.stdout.readline())["event"] != event:
            pass
        parent.kill()
        output, _ = parent.communicate(timeout=SECONDS)  # to the end of the server's output
    assert json.loads(output.splitlines()[-1])["event"] == "stopped"


@pytest.mark.slow
def test_serve_stops_after_idle_timeout() -> None:
    with serving("--memory", "--port", "0", "--idle-timeout", "200ms") as process:
        assert process.wait(SECONDS) == 0


@pytest.mark.slow
def test_health_exit_status_shows_running_server(tmp_path: Path) -> None:
    health = [sys.executable, "-m", "kbroker", "health", "--bootstrap"]
    port_file = tmp_path / "port"
    with serving("--memory", "--port", "0", "--port-file", str(port_file)):
        address = wait_for(port_file).strip()
        done = subprocess.run([*health, address], capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert "responds" in done.stdout
    output = subprocess.run([*health, address], capture_output=True, text=True, check=False)
    assert output.returncode == 1
    assert "kbroker serve" in output.stderr
