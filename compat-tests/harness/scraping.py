"""Prometheus and kafka_exporter processes, and access to the metrics of brokers and exporters."""

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

# Timeout of a response or of a program's start, in seconds.
SECONDS = 60
POLL_SECONDS = 0.1
# Name and labels of a series.
Sample = tuple[str, frozenset[tuple[str, str]]]


def fetch_text(url: str) -> str:
    """Return the body of an HTTP response.

    Raises:
        OSError: The server did not respond, or responded with an error.
    """
    with urlopen(url, timeout=SECONDS) as answer:
        body: bytes = answer.read()
    return body.decode()


def samples_of(text: str) -> dict[Sample, float]:
    """Return all series in Prometheus' text format, with their values."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@contextmanager
def running(command: list[str], log: Path, url: str) -> Iterator[None]:
    """Run a program, wait until it responds at `url`, and end it with the block."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            give_up = time.monotonic() + SECONDS
            while not _answers(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < give_up, log.read_text()
                time.sleep(POLL_SECONDS)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)


def _answers(url: str) -> bool:
    try:
        fetch_text(url)
    except (URLError, OSError):
        return False
    return True


@contextmanager
def kafka_exporter(program: str, directory: Path, bootstrap: str) -> Iterator[str]:
    """Run kafka_exporter (`program`) for a broker and yield the URL of its metrics."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--kafka.server={bootstrap}",
        f"--web.listen-address={address}",
        "--refresh.metadata=1s",
        "--concurrent.enable",  # shared scrapes may lose the last series
    ]
    url = f"http://{address}/metrics"
    with running(command, directory / "kafka_exporter.log", url):
        yield url


class Prometheus:
    """A running Prometheus server.

    Args:
        address: host:port of the server.

    Attributes:
        otlp_url: URL of its OTLP receiver.
    """

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"
        self.otlp_url = f"{self._url}/otlp/v1/metrics"

    def targets(self) -> list[dict[str, Any]]:
        """Return all scrape targets and the results of their last scrapes."""
        return list(self._data("targets")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules and the results of their last evaluation."""
        return [rule for group in self._data("rules")["groups"] for rule in group["rules"]]

    def series(self, query: str) -> list[dict[str, Any]]:
        """Evaluate a PromQL query; rows have `metric` (labels) and `value` (time, string)."""
        return list(self._data(f"query?{urlencode({'query': query})}")["result"])

    def _data(self, path: str) -> Any:
        answer = json.loads(fetch_text(f"{self._url}/{path}"))
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def prometheus(program: Path, directory: Path, configuration: Path) -> Iterator[Prometheus]:
    """Run a Prometheus server that stores its data in `directory`."""
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
