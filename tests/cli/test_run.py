"""`kbroker run`, and topics and records that are created before the broker is ready."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ..brokers import started
from ..commands import invoke
from ..limits import PROCESS_SECONDS
from ..wire import Topic, connected, fetch, values_of

RUN = [sys.executable, "-m", "kbroker", "run"]
KBROKER = f"{sys.executable} -m kbroker"


def ran(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *args], capture_output=True, text=True, check=False, timeout=PROCESS_SECONDS
    )


@pytest.mark.slow
def test_run_passes_broker_with_topics_and_records_to_command(tmp_path: Path) -> None:
    topics = tmp_path / "topics.toml"
    topics.write_text("[topics.orders]\npartitions = 3\n")
    seed = tmp_path / "seed.ndjson"
    seed.write_text(
        '{"topic": "orders", "key": "k", "value": "v"}\n\n{"topic": "new", "value": 1}\n'
    )
    script = (
        'test "$KAFKA_BOOTSTRAP_SERVERS" = "$MINE" && test "$BOOTSTRAP_SERVERS" = "$MINE" && '
        f"{KBROKER} topic list --json && {KBROKER} topic consume new orders -o :end; exit 7"
    )
    done = ran(
        *("--topics-file", str(topics), "--topic", "users:2:retention.ms=5"),
        *("--seed", str(seed), "--env", "MINE", "--", "sh", "-c", script),
    )
    assert done.returncode == 7, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["name"]: row["partitions"] for row in rows[:3]} == {
        "new": 1,
        "orders": 3,
        "users": 2,
    }
    assert sorted((row["topic"], row["key"], row["value"]) for row in rows[3:]) == [
        ("new", None, "1"),
        ("orders", "k", "v"),
    ]


@pytest.mark.slow
def test_run_with_processes_passes_one_address_and_removes_data(tmp_path: Path) -> None:
    script = (
        f"{KBROKER} topic describe orders --json && {KBROKER} cluster info --json && "
        'echo "$KAFKA_BOOTSTRAP_SERVERS"; exit 7'
    )
    done = subprocess.run(
        [*RUN, "--processes", "2", "--topic", "orders:2", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_SECONDS,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 7, done.stderr
    *rows, address = done.stdout.splitlines()
    leaders = {each["leader"] for each in json.loads(rows[0])["partitions"]}
    assert leaders == {1, 2}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert not [*tmp_path.iterdir()]
    assert done.stderr == ""


def test_run_with_processes_and_control_is_rejected() -> None:
    done = ran("--processes", "2", "--control", "--", "true")
    assert done.returncode == 2
    assert "--processes and --control exclude each other" in done.stderr


@pytest.mark.parametrize("words", [("--topics", "orders", "--", "true"), ("--topics=a", "true")])
def test_unknown_option_of_run_is_rejected_with_suggestion(words: tuple[str, ...]) -> None:
    done = ran(*words)
    assert done.returncode == 2
    assert "No such option '--topics'." in done.stderr
    assert "Did you mean" in done.stderr
    assert "'--topic'" in done.stderr


@pytest.mark.slow
def test_run_returns_exit_status_of_command(tmp_path: Path) -> None:
    assert ran("--", "sh", "-c", "kill -9 $$").returncode == 128 + 9
    missing = ran("--", "no-such-command")
    assert missing.returncode == 127
    assert "cannot run no-such-command" in missing.stderr
    assert "interpreter" not in missing.stderr
    (tmp_path / "app.py").write_text("")
    script = ran("--", str(tmp_path / "app.py"))
    assert script.returncode == 127
    assert f"`kbroker run -- python {tmp_path / 'app.py'}`" in script.stderr
    refused = ran("--topic", "t:1:retentoin.ms=1", "--", "true")
    assert refused.returncode == 3
    assert "retention.ms" in refused.stderr
    assert ran("--topic", "t:x", "--", "true").returncode == 2


@pytest.mark.slow
def test_run_with_keep_keeps_data_directory(tmp_path: Path) -> None:
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    command = [*RUN, "--keep", "--topic", "t", "--", "true"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    (directory,) = tmp_path.glob("kbroker-run-*")
    assert str(directory) in done.stderr
    assert (directory / "cluster.journal").exists()
    assert tempfile.gettempdir() != str(tmp_path)


@pytest.mark.slow
def test_run_forwards_signals_to_command() -> None:
    script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([*RUN, "--", "sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"got it\n"
    assert process.returncode == 5


SERVE = [sys.executable, "-m", "kbroker", "serve", "--port", "0", "--idle-timeout", "0s"]


@pytest.mark.slow
async def test_seed_is_not_written_again_after_restart(tmp_path: Path) -> None:
    seed, data = tmp_path / "seed.ndjson", tmp_path / "data"
    seed.write_text('{"topic": "t", "value": "a"}\n{"topic": "t", "value": "b"}\n')
    # The advertised address is unreachable; nothing in this test uses it.
    command = [
        *SERVE,
        "--data-dir",
        str(data),
        "--seed",
        str(seed),
        "--advertise",
        "nowhere.invalid:1",
    ]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True, timeout=PROCESS_SECONDS)  # noqa: ASYNC221
    async with started(data) as broker, connected(broker.endpoint) as wire:
        assert values_of(await fetch(wire, Topic("t"))) == [b"a", b"b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nonsense", "line 2: invalid JSON"),
        ('{"value": "x"}', "line 2: the topic is missing"),
        ('{"topic": "t", "partition": 8}', "no partition 8"),
        ('{"topic": "a b"}', "the topic name 'a b'"),
    ],
)
def test_invalid_seed_prevents_start(tmp_path: Path, line: str, expected: str) -> None:
    seed = tmp_path / "seed.ndjson"
    seed.write_text(f'{{"topic": "t"}}\n{line}\n')
    command = [*SERVE, "--memory", "--seed", str(seed)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROCESS_SECONDS
    )
    assert done.returncode == 3
    assert expected in done.stderr
    assert "ready" not in done.stdout


def test_invalid_setting_with_keep_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    invoke("run", "--keep", "-o", "no-value", "--", "true", status=2)
    assert not [*tmp_path.iterdir()]


def test_run_that_is_interrupted_names_kept_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("kbroker.process.running.run_command", interrupt)
    output = invoke("run", "--keep", "--", "true", status=130)
    (directory,) = tmp_path.iterdir()
    assert f"the data is in {directory}" in output.stderr
