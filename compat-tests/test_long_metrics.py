"""Prometheus' own tool on what a broker tells, and on the rules that ask for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from harness.places import environment

from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.runtime.http_client import fetch
from kbroker.testing import LocalBroker
from kbroker.web.service import HttpService

ROOT = Path(__file__).parents[1]
RULES = ROOT / "examples/monitoring/kbroker.rules.yml"
CONFIGURATION = ROOT / "examples/monitoring/prometheus.yml"
DASHBOARD = ROOT / "examples/monitoring/grafana-dashboard.json"
FAITHFUL = ("kafka_", "process_")
"""Names that are as others spell them, whatever the tool thinks of that."""
BYTES_MAX = 100_000_000


def promtool(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [str(environment("promtool") / "promtool"), *words]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def metrics() -> Iterator[bytes]:
    """What a broker tells that was used, in the format that the tool reads."""
    config = BrokerConfig.load(options={"http.port": "0"})
    service = HttpService(config)
    with LocalBroker(topics={"orders": 3}, config=config, service=service) as broker:
        for number in range(10):
            broker.produce("orders", str(number), key=str(number))
        there = service.endpoint_of(1)
        yield trio.run(_fetched, there)


async def _fetched(there: Endpoint) -> bytes:
    answer = await fetch(
        f"http://{there}/metrics",
        seconds=30,
        bytes_max=BYTES_MAX,
        trusted=None,
    )
    assert answer.status == 200
    return answer.body


def test_the_tool_reads_all_of_it(metrics: bytes) -> None:
    """And finds fault with names only that are not ours to choose."""
    done = promtool("check", "metrics", given=metrics)
    said = done.stderr.decode().splitlines()
    assert done.returncode in (0, 3), said
    assert [line for line in said if not line.startswith(FAITHFUL)] == []


def test_the_rules_are_good() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stderr.decode()


def test_the_configuration_is_good() -> None:
    done = promtool("check", "config", "--syntax-only", str(CONFIGURATION))
    assert done.returncode == 0, done.stderr.decode()


def test_what_the_dashboard_asks_is_understood() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(asked) > 20
    for each in asked:
        filled = each.replace("$job", "kbroker").replace("$__rate_interval", "1m")
        done = promtool("promql", "format", "--experimental", filled)
        assert done.returncode == 0, done.stderr.decode()
