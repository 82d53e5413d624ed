"""Projects that `kbroker init` creates pass their own tests, and survive kill -9."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.pipelines.templates import KINDS, copy_project
from kbroker.testing import LocalBroker

ROOT = Path(__file__).parents[3]
SECONDS = 600


def environ(*directories: Path) -> dict[str, str]:
    """Return an environment in which the projects and this checkout can be imported."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*directories, ROOT]))}


def plugin() -> list[str]:
    """Return the pytest options that load the plugin if kbroker is not installed."""
    known = importlib.metadata.entry_points(group="pytest11")
    name = "kbroker.testing.plugin"
    return [] if any(each.value == name for each in known) else ["-p", name]


def test_created_projects_pass_their_own_tests(tmp_path: Path) -> None:
    """One process for all saves starts of Java; docs/how-to/pipelines.md tests one project alone."""
    projects = [copy_project(kind, f"my_{kind}", tmp_path / kind) for kind in KINDS]
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", *plugin()]
    done = subprocess.run(
        [sys.executable, "-m", *words, "--durations=10", *map(str, projects)],
        cwd=tmp_path,
        env=environ(*projects),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.fixture
def shop(broker: LocalBroker, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Return a function that starts the pipeline `enrich` with small batches in a new process."""
    directory = copy_project("enrich", "shop", tmp_path)
    settings = ["--bootstrap", broker.bootstrap_servers, "--max-offsets", "20"]
    started: list[subprocess.Popen[bytes]] = []
    with (tmp_path / "log").open("ab") as log:

        def start() -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-m", "shop", *settings, "--trigger", "0 seconds"],
                cwd=directory,
                env=environ(directory),
                stderr=log,
                start_new_session=True,
            )
            started.append(process)
            return process

        yield start
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_pipeline_killed_by_sigkill_loses_and_duplicates_nothing(
    broker: LocalBroker, shop: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    for topic, partitions in {"orders": 2, "customers": 1, "enriched": 2, "rejected": 1}.items():
        broker.create_topic(topic, partitions)
    broker.produce("customers", {"name": "Ada", "country": "UK"}, key="ada")
    sent = 60
    for number in range(sent):
        order = {"id": str(number), "customer": "ada", "amount": 1.0}
        broker.produce("orders", order, partition=number % 2)

    first = shop()
    wait_until(lambda: len(broker.records("enriched")) >= 20, tmp_path / "log")
    os.killpg(first.pid, signal.SIGKILL)
    killed_at = len(broker.records("enriched"))
    second = shop()
    wait_until(lambda: len(latest(broker)) == sent, tmp_path / "log")
    second.send_signal(signal.SIGTERM)

    assert second.wait(60) == 0
    assert killed_at < sent
    orders = Counter(json.loads(text)["id"] for text in latest(broker).values())
    assert orders == Counter(str(number) for number in range(sent))


def latest(broker: LocalBroker) -> dict[bytes | None, str]:
    """Return the last value of each key, as a reader of the results sees it."""
    return {each.key: each.text for each in broker.records("enriched")}


def wait_until(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
