"""Soak tests of the metrics with Prometheus, promtool and kafka_exporter.

No package registry has kafka_exporter or Strimzi's dashboards. Set KBROKER_COMPAT_KAFKA_EXPORTER
(default: the command on PATH) and KBROKER_COMPAT_DASHBOARDS to their paths.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import yaml
from confluent_kafka import Consumer, TopicPartition
from harness.brokers import Broker, free_port
from harness.clients import eventually
from harness.places import environment
from harness.scraping import Prometheus, Sample, fetch_text, kafka_exporter, prometheus, samples_of

from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.runtime.http_client import fetch
from kbroker.testing import LocalBroker
from kbroker.web.service import HttpService

ROOT = Path(__file__).parents[1]
RULES = ROOT / "examples/monitoring/kbroker.rules.yml"
CONFIGURATION = ROOT / "examples/monitoring/prometheus.yml"
DASHBOARD = ROOT / "examples/monitoring/grafana-dashboard.json"
# Prefixes of names that are kept for compatibility, although promtool warns about them.
FAITHFUL = ("kafka_", "process_")
BYTES_MAX = 100_000_000
EXPORTER = os.environ.get("KBROKER_COMPAT_KAFKA_EXPORTER") or shutil.which("kafka_exporter")
# Directory of Strimzi's example metrics.
DASHBOARDS = os.environ.get("KBROKER_COMPAT_DASHBOARDS")
EXPORTER_PREFIXES = ("kafka_brokers", "kafka_broker_info", "kafka_topic_", "kafka_consumergroup_")
# Value of kafka_exporter for a partition without a committed offset.
NOTHING_COMMITTED = -1
READ_SECONDS = 60
SCRAPE_SECONDS = 1
# Window of rates, as many scrapes as with the default settings of Prometheus.
RATE_SECONDS = 4 * SCRAPE_SECONDS
PAGES = ("strimzi-kafka.json", "strimzi-kafka-exporter.json")
SERIES = re.compile(r"\b(?:kafka|kbroker|process)_[a-z_]+\b")


def promtool(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [str(environment("prometheus") / "promtool"), *words]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def metrics() -> Iterator[bytes]:
    """Return the metrics of a broker with traffic, in the text format that promtool reads."""
    config = BrokerConfig.load(options={"http.port": "0"})
    service = HttpService(config)
    with LocalBroker(topics={"orders": 3}, config=config, service=service) as broker:
        for number in range(10):
            broker.produce("orders", str(number), key=str(number))
        yield trio.run(_fetched, service.endpoint_of(1))


async def _fetched(endpoint: Endpoint) -> bytes:
    answer = await fetch(
        f"http://{endpoint}/metrics",
        seconds=30,
        bytes_max=BYTES_MAX,
        trusted=None,
    )
    assert answer.status == 200
    return answer.body


def test_promtool_accepts_metrics(metrics: bytes) -> None:
    """promtool may warn only about names that are kept for compatibility."""
    done = promtool("check", "metrics", given=metrics)
    warnings = done.stderr.decode().splitlines()
    assert done.returncode in (0, 3), warnings
    assert [line for line in warnings if not line.startswith(FAITHFUL)] == []


def test_promtool_accepts_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stderr.decode()


def test_promtool_accepts_example_configuration() -> None:
    done = promtool("check", "config", "--syntax-only", str(CONFIGURATION))
    assert done.returncode == 0, done.stderr.decode()


def dashboard_queries() -> list[str]:
    """Return the queries of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > 20
    return [
        each.replace("$job", "kbroker").replace("$__rate_interval", f"{RATE_SECONDS}s")
        for each in queries
    ]


def test_promtool_parses_dashboard_queries() -> None:
    for each in dashboard_queries():
        done = promtool("promql", "format", "--experimental", each)
        assert done.returncode == 0, done.stderr.decode()


def read_all(consumer: Consumer, count: int) -> None:
    """Read this many records and commit them."""
    give_up = time.monotonic() + READ_SECONDS
    while count:
        record = consumer.poll(0.5)
        assert time.monotonic() < give_up
        if record is not None:
            assert record.error() is None, record.error()
            count -= 1
    consumer.commit(asynchronous=False)


@pytest.fixture
def active_broker() -> Iterator[tuple[str, str]]:
    """Start a broker with an active and an empty group. Return its address and its metrics URL."""
    config = BrokerConfig.load(options={"http.port": "0"})
    service = HttpService(config)
    with LocalBroker(topics={"orders": 3, "empty": 1}, config=config, service=service) as broker:
        for number in range(20):
            broker.produce("orders", str(number), key=str(number))
        settings = {"bootstrap.servers": broker.bootstrap_servers, "enable.auto.commit": False}
        reader = Consumer({**settings, "group.id": "reads", "auto.offset.reset": "earliest"})
        missing = Consumer({**settings, "group.id": "away"})
        reader.subscribe(["orders"])
        read_all(reader, 20)
        missing.commit(offsets=[TopicPartition("orders", 1, 2)], asynchronous=False)
        broker.produce("orders", "behind", key="behind")
        yield broker.bootstrap_servers, f"http://{service.endpoint_of(1)}/metrics"
        reader.close()
        missing.close()


def program() -> Path:
    return environment("prometheus") / "prometheus"


@contextmanager
def scraping(
    directory: Path, url: str, protocol: str = "PrometheusText1.0.0"
) -> Iterator[Prometheus]:
    """Start Prometheus with the example configuration for one broker, scraping every second."""
    settings = yaml.safe_load(CONFIGURATION.read_text())
    seconds = f"{SCRAPE_SECONDS}s"
    settings["global"].update(scrape_interval=seconds, evaluation_interval=seconds)
    settings["global"]["scrape_protocols"] = [protocol]
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [urlsplit(url).netloc]
    shutil.copy(RULES, directory)
    (directory / CONFIGURATION.name).write_text(yaml.safe_dump(settings))
    with prometheus(program(), directory, directory / CONFIGURATION.name) as server:
        wanted = 2 * RATE_SECONDS
        eventually(lambda: scrapes_of(server), lambda count: count >= wanted, "scrapes")
        yield server


def scrapes_of(server: Prometheus) -> int:
    """Return the number of scrapes of the broker within the last minute."""
    return sum(int(row["value"][1]) for row in server.series("sum_over_time(up[1m])"))


def states_of(server: Prometheus) -> dict[str, str]:
    """Return the state of each active rule. Fails if a rule cannot be evaluated."""
    rules = server.rules()
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    return {rule["name"]: rule["state"] for rule in rules if rule["state"] != "inactive"}


@pytest.mark.parametrize("protocol", ["OpenMetricsText1.0.0", "PrometheusText0.0.4"])
def test_prometheus_scrapes_all_metrics(
    protocol: str, active_broker: tuple[str, str], tmp_path: Path
) -> None:
    """All series are scraped, no rule fails or fires, and each dashboard query has a result."""
    _, url = active_broker
    with scraping(tmp_path, url, protocol) as server:
        (target,) = server.targets()
        assert (target["health"], target["lastError"]) == ("up", "")
        expected = {name for name, _ in samples_of(fetch_text(url))}
        names = {row["metric"]["__name__"] for row in server.series('{job="kbroker"}')}
        assert expected - names == set()
        silent = [query for query in dashboard_queries() if not server.series(query)]
        assert silent == []
        assert states_of(server) == {}
        (scraped,) = server.series("scrape_samples_scraped")
    print(f"\nfigures: {scraped['value'][1]} series in Prometheus as {protocol}")
    print(f"figures: {len(dashboard_queries())} queries of the dashboard have results")


def test_prometheus_alerts_when_broker_is_down(tmp_path: Path) -> None:
    config = BrokerConfig.load(options={"http.port": "0"})
    service = HttpService(config)
    with ExitStack() as ended:
        with LocalBroker(config=config, service=service):
            url = f"http://{service.endpoint_of(1)}/metrics"
            server = ended.enter_context(scraping(tmp_path, url))
            assert states_of(server) == {}
        down = {"KbrokerNodeDown": "pending"}
        eventually(lambda: states_of(server), lambda states: down.items() <= states.items(), "down")


def test_prometheus_receives_metrics_by_otlp(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """The names received by OTLP are the names of scraped metrics."""
    (tmp_path / "prometheus.yml").write_text("global: {}")
    with prometheus(program(), tmp_path, tmp_path / "prometheus.yml") as server:
        port = free_port()
        sends = {
            "otlp.endpoint": server.otlp_url,
            "otlp.interval.ms": "1000",
            "http.port": str(port),
        }
        make_broker("sends", sends).start()
        expected = {name for name, _ in samples_of(fetch_text(f"http://127.0.0.1:{port}/metrics"))}
        query = '{job="kbroker"}'
        names = eventually(
            lambda: {row["metric"]["__name__"] for row in server.series(query)}, bool, "series"
        )
        (one,) = server.series("kafka_brokers")
        assert expected - names == set()
    assert one["value"][1] == "1"
    print(f"\nfigures: {len(names)} metric names received by OTLP")


def exporter_samples(samples: dict[Sample, float]) -> dict[Sample, float]:
    """Return the samples with metric names of kafka_exporter."""
    return {key: value for key, value in samples.items() if key[0].startswith(EXPORTER_PREFIXES)}


def test_kafka_exporter_metrics_have_same_values(
    active_broker: tuple[str, str], tmp_path: Path
) -> None:
    """kbroker omits partitions without committed offsets, also from sums."""
    if EXPORTER is None:
        print("figures: kafka_exporter is not installed")
        pytest.skip(
            "no package registry has kafka_exporter: set KBROKER_COMPAT_KAFKA_EXPORTER to its path"
        )
    bootstrap, url = active_broker
    with kafka_exporter(EXPORTER, tmp_path, bootstrap) as its_url:
        theirs = exporter_samples(samples_of(fetch_text(its_url)))
    ours = exporter_samples(samples_of(fetch_text(url)))
    nothing = {key for key, value in theirs.items() if value == NOTHING_COMMITTED}
    expected = {key: value for key, value in theirs.items() if key not in nothing}
    labels = frozenset({("consumergroup", "away"), ("topic", "orders")})
    # kafka_exporter's sum includes the -1 of two partitions.
    expected["kafka_consumergroup_current_offset_sum", labels] += 2
    assert ours == expected
    assert {name for name, _ in nothing} == {
        "kafka_consumergroup_current_offset",
        "kafka_consumergroup_lag",
    }
    print(
        f"\nfigures: {len(ours)} series equal those of kafka_exporter, {len(nothing)} of its series are -1"
    )


def queries_of(page: Any) -> Iterator[str]:
    """Return all queries of a dashboard."""
    if isinstance(page, dict):
        for name, value in page.items():
            if name in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from queries_of(value)
    elif isinstance(page, list):
        for each in page:
            yield from queries_of(each)


def test_strimzi_dashboards_find_their_series(active_broker: tuple[str, str]) -> None:
    """Quorum, JVM and Kubernetes series are not expected."""
    if DASHBOARDS is None:
        print("figures: Strimzi's dashboards are not installed")
        pytest.skip(
            "no package registry has Strimzi's dashboards: set KBROKER_COMPAT_DASHBOARDS to their directory"
        )
    _, url = active_broker
    names = {name for name, _ in samples_of(fetch_text(url))}
    pages = [each for each in sorted(Path(DASHBOARDS).rglob("*.json")) if each.name in PAGES]
    queries = {
        name
        for page in pages
        for query in queries_of(json.loads(page.read_text()))
        for name in SERIES.findall(re.sub(r'"[^"]*"', "", query))
    }
    assert queries - names == set()
    print(f"\nfigures: {len(queries)} names in {len(pages)} dashboards of Strimzi exist")
