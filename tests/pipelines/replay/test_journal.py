"""Replays that are stopped, fail or are killed: the next run duplicates no record."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.cli.target import ENVIRONMENT
from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.pipelines.replay.journal import ends_of
from kbroker.testing import LocalBroker
from kbroker.testing.kafka_record import KafkaRecord

from ...limits import PROCESS_SECONDS

pytestmark = pytest.mark.usefixtures("no_settings_of_this_machine")


KILLS = int(os.environ.get("KBROKER_REPLAY_KILLS", "2"))
COUNT = 3_000 * KILLS
RATE = 4_000


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"copy": 3, "two": 2}) as opened:
        yield opened


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of COUNT records in three partitions, in which every seventh record has no key."""
    rows = [
        {
            "partition": at % 3,
            "offset": at // 3,
            "timestamp": 1_700_000_000_000 + at * (7919 % (at % 5 + 1)),
            "key": None if at % 7 == 0 else f"k{at % 101}",
            "value": f"{at}",
        }
        for at in range(COUNT)
    ]
    path = tmp_path / "orders.ndjson"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Command:
    """`kbroker replay` in its own process."""

    def __init__(self, broker: LocalBroker, *args: str) -> None:
        self._words = [sys.executable, "-m", "kbroker", "replay", *args]
        self._environ = os.environ | {ENVIRONMENT: broker.bootstrap_servers}

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._words,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self) -> tuple[int, str]:
        """Run the command to its end. Return the exit status and the standard error."""
        return ended(self.start())


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=PROCESS_SECONDS)
    return process.returncode, stderr


def order_of(records: list[KafkaRecord]) -> dict[int, list[bytes | None]]:
    """Return the values of each partition, in order."""
    found: dict[int, list[bytes | None]] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        found.setdefault(record.partition, []).append(record.value)
    return found


def written(broker: LocalBroker, topic: str) -> int:
    """Return the number of records in a topic."""

    async def ask() -> int:
        async with open_cluster([Endpoint.parse(broker.bootstrap_servers)]) as cluster:
            (row,) = await cluster.topics([topic])
            return sum((await ends_of(cluster, topic, len(row.partitions))).values())

    return trio.run(ask)


def wait_for_some(broker: LocalBroker, topic: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while written(broker, topic) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize(
    ("topic", "source"), [("copy", "topic"), ("two", "topic"), ("two", "lines")]
)
def test_replay_killed_at_any_moment_resumes_without_duplicates(
    broker: LocalBroker, lines: Path, tmp_path: Path, topic: str, source: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Cover kept partitions, several partitions by key, and NDJSON."""
    chance = random.Random(request.config.getoption("--seed"))
    broker.create_topic("orders", 3)
    broker.create_topic("whole", 3 if topic == "copy" else 2)
    assert Command(broker, "--ndjson", str(lines), "--to-topic", "orders").run()[0] == 0
    given = ["orders"] if source == "topic" else ["--ndjson", str(lines)]
    # The timestamp order in which partitions are merged must not change either.
    whole = [*given, "--to-topic", "whole", "--rate", "1000000", "--partitioner"]
    place = "keep" if topic == "copy" else "key"
    assert Command(broker, *whole, place).run()[0] == 0
    args = [*given, "--to-topic", topic, "--partitioner", place, "--rate", str(RATE)]
    command = Command(broker, *args, "--progress", str(tmp_path / "progress"))
    for _ in range(KILLS):
        process = command.start()
        before = written(broker, topic)
        wait_for_some(broker, topic, min(before + chance.randrange(1200), COUNT - 1))
        process.kill()
        ended(process)
        if chance.random() < 0.3:
            broker.stop()
            broker.start()
    already_written = written(broker, topic)
    status, stderr = command.run()
    assert status == 0, stderr
    assert f"{already_written:,} records are already written" in stderr
    assert order_of(broker.records(topic)) == order_of(broker.records("whole"))
    assert "is finished" in command.run()[1]


@pytest.mark.slow
def test_replay_waits_for_restarted_broker(broker: LocalBroker, lines: Path) -> None:
    """Source and target are on the same broker."""
    broker.create_topic("orders", 3)
    assert Command(broker, "--ndjson", str(lines), "--to-topic", "orders").run()[0] == 0
    process = Command(broker, "orders", "--to-topic", "copy", "--rate", str(RATE)).start()
    wait_for_some(broker, "copy", 100)
    broker.stop()
    time.sleep(0.5)
    assert process.poll() is None
    broker.start()
    status, stderr = ended(process)
    assert status == 0, stderr
    assert order_of(broker.records("copy")) == order_of(broker.records("orders"))


@pytest.mark.slow
def test_replay_stopped_by_signal_prints_resume_options(broker: LocalBroker, lines: Path) -> None:
    broker.create_topic("orders", 3)
    assert Command(broker, "--ndjson", str(lines), "--to-topic", "orders").run()[0] == 0
    process = Command(broker, "orders", "--to-topic", "copy", "--rate", "500").start()
    wait_for_some(broker, "copy", 50)
    process.send_signal(signal.SIGINT)
    status, stderr = ended(process)
    assert status == 128 + signal.SIGINT
    options = [text.split() for text in stderr.splitlines() if text.startswith("to resume: ")]
    assert len(options) == 3
    for words in options:
        done = Command(broker, "orders", "--to-topic", "copy", *words[2:]).run()
        assert done[0] == 0, done
    assert order_of(broker.records("copy")) == order_of(broker.records("orders"))


@pytest.mark.slow
def test_failed_target_write_ends_replay_with_resume_hint(
    broker: LocalBroker, lines: Path, tmp_path: Path
) -> None:
    fault = broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic="copy")
    args = ["--ndjson", str(lines), "--to-topic", "copy"]
    status, stderr = Command(broker, *args).run()
    assert (status, fault.hits) == (1, 1)
    assert "skip the first 0 lines" in stderr
    assert "--progress FILE" in stderr
    broker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic="copy")
    command = Command(broker, *args, "--progress", str(tmp_path / "p"))
    status, stderr = command.run()
    assert status == 1
    assert "run the same command to resume" in stderr
    assert command.run()[0] == 0
    assert len(broker.records("copy")) == COUNT


@pytest.mark.slow
def test_progress_file_of_other_replay_is_rejected(
    broker: LocalBroker, lines: Path, tmp_path: Path
) -> None:
    progress = tmp_path / "p"
    args = ["--ndjson", str(lines), "--progress", str(progress), "--to-topic"]
    assert Command(broker, *args, "copy").run()[0] == 0
    status, stderr = Command(broker, *args, "two", "--partitioner", "key").run()
    assert status == 1
    assert "belongs to another replay" in stderr
    assert str(progress) in stderr
    progress.write_text("{}")
    assert "is not a progress file of a replay" in Command(broker, *args, "copy").run()[1]


@pytest.mark.slow
def test_second_replay_with_same_progress_file_is_rejected(
    broker: LocalBroker, lines: Path, tmp_path: Path
) -> None:
    """The second run must not repeat the work of the first."""
    progress = str(tmp_path / "p")
    command = Command(
        broker,
        "--ndjson",
        str(lines),
        "--progress",
        progress,
        "--to-topic",
        "copy",
        "--rate",
        "500",
    )
    first = command.start()
    wait_for_some(broker, "copy", 1)
    status, stderr = command.run()
    first.kill()
    ended(first)
    assert status == 1
    assert f"another replay is using {progress}" in stderr


@pytest.mark.slow
def test_recreated_target_topic_is_rejected(
    broker: LocalBroker, lines: Path, tmp_path: Path
) -> None:
    progress = tmp_path / "p"
    command = Command(
        broker, "--ndjson", str(lines), "--progress", str(progress), "--to-topic", "copy"
    )
    assert command.run()[0] == 0
    state: dict[str, Any] = json.loads(progress.read_text())
    progress.write_text(json.dumps(state | {"finished": False}))
    broker.delete_topic("copy")
    broker.create_topic("copy", 3)
    status, stderr = command.run()
    assert status == 1
    assert "topic copy was deleted and created again" in stderr
