"""Metrics that are exported to a collector equal those of /metrics."""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.sdk.metrics.export import Histogram
from prometheus_client.parser import text_string_to_metric_families

from kbroker import __version__
from kbroker.broker.local_node import LocalNode
from kbroker.config import BrokerConfig
from kbroker.web.metrics.loop_monitor import LoopMonitor
from kbroker.web.metrics.otlp import OtlpService, metrics_of
from kbroker.web.metrics.scrape import Metrics

from ...wire import Topic, batch, connected, create_topic, metadata, produce
from ..client import broker_with

HISTOGRAM = """\
# HELP seconds How long it took.
# TYPE seconds histogram
seconds_bucket{api="Fetch",le="0.1"} 2
seconds_bucket{api="Fetch",le="1.0"} 5
seconds_bucket{api="Fetch",le="+Inf"} 6
seconds_sum{api="Fetch"} 9.5
seconds_count{api="Fetch"} 6
seconds_bucket{api="Produce",le="0.1"} 1
seconds_bucket{api="Produce",le="1.0"} 1
seconds_bucket{api="Produce",le="+Inf"} 1
seconds_sum{api="Produce"} 0.05
seconds_count{api="Produce"} 1
"""


class Collector(ThreadingHTTPServer):
    """A stand-in for an OpenTelemetry collector."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportMetricsServiceRequest] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.headers["content-type"] == "application/x-protobuf"
        self.server.requests.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with serving() as found:
        yield found


@contextmanager
def serving() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def config_of(url: str) -> BrokerConfig:
    return BrokerConfig.load(options={"otlp.endpoint": url, "otlp.interval.ms": "1000"})


async def next_request(collector: Collector, node: LocalNode) -> ExportMetricsServiceRequest:
    """Return the next request that a node sends."""
    known = len(collector.requests)
    with trio.fail_after(30):
        while True:
            await trio.sleep(0.05)
            for each in collector.requests[known + 1 :]:
                if attributes_of(each)["kbroker.node.id"] == node.id:
                    return each


def attributes_of(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    """Return the attributes of the only resource."""
    (exported,) = request.resource_metrics
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in exported.resource.attributes
    }


def numbers_of(request: ExportMetricsServiceRequest) -> dict[tuple[str, frozenset[Any]], float]:
    """Return all values except histograms, by name and labels."""
    found = {}
    (exported,) = request.resource_metrics
    (scope,) = exported.scope_metrics
    for metric in scope.metrics:
        kind = str(metric.WhichOneof("data"))
        for point in () if kind == "histogram" else getattr(metric, kind).data_points:
            labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
            found[metric.name, labels] = getattr(point, str(point.WhichOneof("value")))
    return found


async def test_collector_receives_the_values_of_metrics_endpoint(collector: Collector) -> None:
    config = config_of(collector.url)
    async with (
        broker_with(OtlpService(config), config, None, 2) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "orders", partitions=1)
        await produce(wire, Topic("orders"), batch([b"x"] * 3))
        node = broker.nodes[0]
        request = await next_request(collector, node)
        scraped = await Metrics(node, LoopMonitor()).text()
        other = await next_request(collector, broker.nodes[1])
    attributes = attributes_of(request)
    assert attributes["service.name"] == "kbroker"
    assert attributes["service.version"] == __version__
    assert attributes["service.instance.id"] != attributes_of(other)["service.instance.id"]
    numbers = numbers_of(request)
    labels = frozenset({("topic", "orders"), ("partition", "0")})
    assert numbers["kafka_topic_partition_current_offset", labels] == 3
    known = {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(scraped)
        if family.type != "histogram"
        for sample in family.samples
    }
    assert len(known) > 50
    assert known == numbers.keys()


async def test_counters_are_exported_as_monotonic_sums(collector: Collector) -> None:
    config = config_of(collector.url)
    async with (
        broker_with(OtlpService(config), config, None, None) as broker,
        connected(broker.endpoint) as wire,
    ):
        await metadata(wire, [])
        request = await next_request(collector, broker.nodes[0])
    (scope,) = request.resource_metrics[0].scope_metrics
    by_name = {each.name: each for each in scope.metrics}
    counted = by_name["process_cpu_seconds_total"].sum
    assert counted.is_monotonic
    assert counted.aggregation_temporality == (
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    assert by_name["process_resident_memory_bytes"].gauge.data_points[0].as_double > 1e6
    assert by_name["kbroker_request_seconds"].histogram.data_points


def test_histogram_buckets_are_exported_non_cumulative() -> None:
    (metric,) = metrics_of(HISTOGRAM, 1, 2)
    assert (metric.name, metric.description) == ("seconds", "How long it took.")
    assert isinstance(metric.data, Histogram)
    fetch, produced = metric.data.data_points
    assert fetch.attributes == {"api": "Fetch"}
    assert (fetch.explicit_bounds, fetch.bucket_counts) == ([0.1, 1.0], [2, 3, 1])
    assert (fetch.count, fetch.sum) == (6, 9.5)
    assert produced.bucket_counts == [1, 0, 0]


async def test_failing_collector_is_logged_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kbroker.web.metrics.otlp")
    # an error without retry
    collector.status = 400
    config = config_of(collector.url)
    async with broker_with(OtlpService(config), config, None, None) as broker:
        for _ in range(2):
            await next_request(collector, broker.nodes[0])
        collector.status = 200
        await next_request(collector, broker.nodes[0])
        await next_request(collector, broker.nodes[0])
    messages = [
        each.getMessage() for each in caplog.records if each.name == "kbroker.web.metrics.otlp"
    ]
    assert len(messages) == 2
    assert "cannot export metrics" in messages[0]
    assert "again" in messages[1]


async def test_stop_does_not_wait_for_collector() -> None:
    """The OpenTelemetry library retries for seconds if the collector is unreachable."""
    config = config_of("http://127.0.0.1:9/v1/metrics")
    async with broker_with(OtlpService(config), config, None, None):
        # the export is in progress by now
        await trio.sleep(1.5)
        began = trio.current_time()
    assert trio.current_time() - began < 3


@pytest.mark.slow
def test_serve_exports_to_collector(collector: Collector, tmp_path: Path) -> None:
    arguments = ["serve", "--memory", "--port", "0", "-o", f"otlp.endpoint={collector.url}"]
    command = [sys.executable, "-m", "kbroker", *arguments, "-o", "otlp.interval.ms=1000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:
        try:
            for _ in range(600):
                if collector.requests:
                    break
                threading.Event().wait(0.05)
        finally:
            broker.terminate()
    assert attributes_of(collector.requests[0])["kbroker.node.id"] == 1


@pytest.mark.slow
def test_missing_otlp_library_is_reported_with_install_command() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from kbroker.cli import main\n"
        "sys.argv = ['kbroker', 'serve', '--memory', '-o', 'otlp.endpoint=http://127.0.0.1:9']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "pip install 'kbroker[otlp]'" in done.stderr
