"""The whole demo on a slice of the data: PySpark, its Kafka connector, a broker, and interruptions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.demo import readback
from kbroker.demo.processes import OwnBroker

pytestmark = pytest.mark.spark

ROWS = 20_000


def demo(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run ``kbroker demo`` and return its exit status and its result."""
    command = [sys.executable, "-m", "kbroker", "demo", "--json", "--dir", str(directory), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Start the broker of a finished run again."""
    broker = OwnBroker(directory)
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.stop()


def produce(bootstrap: str, topic: str, record: readback.Record, value: dict[str, Any]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(
        topic,
        key=record.key,
        value=json.dumps(value).encode(),
        partition=record.partition,
        timestamp_ms=record.timestamp_ms,
    ).get(timeout=30)
    producer.close()


def failed(result: dict[str, Any]) -> dict[str, list[str]]:
    return {c["subject"]: c["differences"] for c in result["checks"] if not c["ok"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run in which Spark and the broker were killed halfway."""
    directory = tmp_path_factory.mktemp("demo")
    status, result = demo(directory, f"--rows={ROWS}", "--interrupt")
    assert (status, failed(result)) == (0, {})
    assert result["ok"] is True
    assert result["rows"] == ROWS
    interruption = result["interruption"]
    assert ROWS // 2 < interruption["produced"] < ROWS
    assert 0 < interruption["processed"] < ROWS
    assert interruption["broker_back_s"] > 0
    assert Path(result["chart"]).read_bytes().startswith(b"\x89PNG")
    print(f"figures: {result['rows_per_second']} rows/s, {result['seconds']} s, {interruption}")
    return directory


def test_killed_run_ends_with_same_results(finished: Path) -> None:
    status, result = demo(finished, "--check")
    assert (status, failed(result)) == (0, {})
    assert len(result["checks"]) == 6


def test_changed_record_fails_check(finished: Path) -> None:
    with served(finished) as bootstrap:
        departure = next(readback.records(bootstrap, "departures"))
        values = json.loads(departure.value or b"")
        changed = values | {"dep_delay": (values["dep_delay"] or 0) + 1}
        produce(bootstrap, "departures", departure, changed)
        figure = list(readback.records(bootstrap, "delays"))[-1]
        figures = json.loads(figure.value or b"")
        figures["all"]["delay_sum"] += 1
        produce(bootstrap, "delays", figure, figures)
    status, result = demo(finished, "--check")
    assert status == 1
    assert result["ok"] is False
    differences = failed(result)
    assert set(differences) == {"departures topic", "delays topic"}
    name = f"{values['time_hour']} {values['carrier']} {values['flight']}"
    assert differences["departures topic"][0].startswith(name)
    group = (figure.key or b"").decode().replace("|", " ")
    assert differences["delays topic"][0].startswith(f"group {group}: all delay_sum is ")
