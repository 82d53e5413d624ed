"""Pytest plug-in for the suite: a Kafka for all tests, as with testcontainers, and test times."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.brokers import KFAKE, Kafka, free_port, nodes_known

if TYPE_CHECKING:
    from kbroker.testing.external import ExternalKafka

RESULT_VARIABLE = "KBROKER_KIT_RESULT"
START_SECONDS = 30


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalKafka]:
    """Yield Apache Kafka in a process that all tests share."""
    from kbroker.testing.external import ExternalKafka

    process = Kafka(tmp_path_factory.mktemp("kafka"), durable=False)
    handle = ExternalKafka(process.address)
    yield handle
    handle.close()
    process.stop()


@pytest.fixture(scope="session")
def kfake() -> Iterator[str]:
    """Yield the address of kfake in a process that all tests share."""
    port = free_port()
    process = subprocess.Popen([str(KFAKE), str(port)])
    deadline = time.monotonic() + START_SECONDS
    while not nodes_known(port):
        assert process.poll() is None, "kfake did not start"
        assert time.monotonic() < deadline, "kfake did not respond"
        time.sleep(0.005)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait()


class Stopwatch:
    """Recorder of the seconds of each test, and of the memory at the end of the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: list[float] = []
        self._resident = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.perf_counter()
        result = yield
        self._seconds.append(time.perf_counter() - began)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield
        if item is item.session.items[-1]:
            self._resident = resident_bytes(os.getpid())

    def pytest_sessionfinish(self) -> None:
        report = {"seconds": self._seconds, "resident": self._resident}
        self._path.write_text(json.dumps(report))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and all its descendants."""
    directory = Path(f"/proc/{pid}")
    pages = int((directory / "statm").read_text().split()[1])
    children = {
        int(child)
        for task in (directory / "task").iterdir()
        for child in (task / "children").read_text().split()
    }
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident_bytes, children))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Stopwatch(Path(os.environ[RESULT_VARIABLE])))
