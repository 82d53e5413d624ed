"""What programs tell Prometheus, kafka_exporter beside a broker and a broker itself, and what it makes of it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from .brokers import free_port

SECONDS = 60
"""How long a program may take to answer, or to see what there is."""
LOOK_SECONDS = 0.1
Sample = tuple[str, frozenset[tuple[str, str]]]
"""The name of a series, and its labels."""


def text_at(url: str) -> str:
    """What a server answers. Raises OSError where it answers nothing, or an error."""
    with urlopen(url, timeout=SECONDS) as answer:
        told: bytes = answer.read()
    return told.decode()


def samples_of(text: str) -> dict[Sample, float]:
    """All series of Prometheus' text, with their values."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@contextmanager
def running(command: list[str], log: Path, url: str) -> Iterator[None]:
    """A program that answers at `url` before this goes on; it is ended with the block."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            give_up = time.monotonic() + SECONDS
            while not _answers(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < give_up, log.read_text()
                time.sleep(LOOK_SECONDS)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)


def _answers(url: str) -> bool:
    try:
        text_at(url)
    except (URLError, OSError):
        return False
    return True


@contextmanager
def kafka_exporter(program: str, directory: Path, bootstrap: str) -> Iterator[str]:
    """kafka_exporter (`program`) beside a broker; the URL of its metrics."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--kafka.server={bootstrap}",
        f"--web.listen-address={address}",
        "--refresh.metadata=1s",
        "--concurrent.enable",  # where scrapes share what was found, it may lose the last series
    ]
    url = f"http://{address}/metrics"
    with running(command, directory / "kafka_exporter.log", url):
        yield url


class Prometheus:
    """A server of Prometheus that runs; `address` is host:port.

    takes: where it takes what others send it by OTLP.
    """

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"
        self.takes = f"{self._url}/otlp/v1/metrics"

    def targets(self) -> list[dict[str, Any]]:
        """Who is scraped, and how that went."""
        return list(self._data("targets")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """All rules that it has, with what became of them the last time."""
        return [rule for group in self._data("rules")["groups"] for rule in group["rules"]]

    def series(self, question: str) -> list[dict[str, Any]]:
        """What a question in PromQL finds now: rows of `metric` (labels) and `value` (time, text)."""
        return list(self._data(f"query?{urlencode({'query': question})}")["result"])

    def _data(self, path: str) -> Any:
        answer = json.loads(text_at(f"{self._url}/{path}"))
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def prometheus(program: Path, directory: Path, configuration: Path) -> Iterator[Prometheus]:
    """A server that keeps what it scrapes below `directory`."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(program),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'series'}",
        f"--web.listen-address={address}",
        "--web.enable-otlp-receiver",
    ]
    with running(command, directory / "prometheus.log", f"http://{address}/-/ready"):
        yield Prometheus(address)
