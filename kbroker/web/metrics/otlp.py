"""Export of metrics by OTLP over HTTP with the OpenTelemetry SDK.

The metrics and names are those of /metrics. Headers, certificates, compression and timeout are set with
the environment variables OTEL_EXPORTER_OTLP_* that the SDK reads. OTEL_RESOURCE_ATTRIBUTES and
OTEL_SERVICE_NAME apply to each node.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import trio
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kbroker import __version__
from kbroker.broker.local_node import LocalNode
from kbroker.config import BrokerConfig

from .loop_monitor import LoopMonitor
from .scrape import Metrics

logger = logging.getLogger(__name__)
SCOPE = InstrumentationScope("kbroker", __version__)
COUNTER, HISTOGRAM = "counter", "histogram"
BUCKET, SUM = "_bucket", "_sum"
# Label with the upper bound of a histogram bucket.
UPPER_BOUND = "le"

Labels = tuple[tuple[str, str], ...]


class OtlpService:
    """Exports the metrics of all nodes of a process; implements `kbroker.broker.service.Service`.

    Each node is exported every `otlp.interval.ms`. A failed export is not repeated, because the values
    are cumulative.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._endpoint = config.otlp_endpoint
        self._interval = config.otlp_interval_ms / 1000
        self._exporter: OTLPMetricExporter | None = None
        self._loop_monitor = LoopMonitor()
        self._sender = trio.CapacityLimiter(1)
        self._nodes: Sequence[LocalNode] = ()
        self._scope = trio.CancelScope()
        self._is_failing = False

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Store the nodes for `run`; this service has no port."""
        self._nodes, self._scope = nodes, trio.CancelScope()
        self._exporter = OTLPMetricExporter(endpoint=self._endpoint)

    async def run(self) -> None:
        """Export until `close`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._loop_monitor.run)
                for local in self._nodes:
                    nursery.start_soon(self._send_regularly, local)

    async def close(self) -> None:
        """Stop without waiting for an export in progress."""
        self._scope.cancel()
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()  # stops the retries of its thread

    async def _send_regularly(self, local: LocalNode) -> None:
        metrics, began = Metrics(local, self._loop_monitor), time.time_ns()
        while True:
            await trio.sleep(self._interval)
            text = await metrics.text()
            if not local.is_running:
                continue
            resource = resource_of(local)
            assert self._exporter is not None, "`close` cancels this task"
            send = partial(_send, self._exporter, text, resource, began, time.time_ns())
            sent = await trio.to_thread.run_sync(send, abandon_on_cancel=True, limiter=self._sender)
            self._log_outcome(is_sent=sent)

    def _log_outcome(self, *, is_sent: bool) -> None:
        """Log the first failure and the recovery."""
        if self._is_failing is not is_sent:
            return
        self._is_failing = not is_sent
        if is_sent:
            logger.info("export of metrics to otlp.endpoint works again")
        else:
            logger.warning(
                "cannot export metrics to otlp.endpoint: see the log of opentelemetry, and check that a "
                "collector listens there for OTLP over HTTP"
            )


def _send(
    exporter: OTLPMetricExporter, text: str, resource: Resource, began: int, now: int
) -> bool:
    """Return True if an export succeeds; call it in a thread, because the SDK blocks and retries."""
    scope = ScopeMetrics(SCOPE, [*metrics_of(text, began, now)], schema_url="")
    data = MetricsData([ResourceMetrics(resource, [scope], schema_url="")])
    return exporter.export(data) is MetricExportResult.SUCCESS


def resource_of(local: LocalNode) -> Resource:
    """Return the OpenTelemetry resource of a node."""
    cluster_id = local.node.cluster.id
    return Resource.create(
        {
            "service.name": "kbroker",
            "service.version": __version__,
            "service.instance.id": f"{cluster_id}-{local.id}",
            "kbroker.cluster.id": cluster_id,
            "kbroker.node.id": local.id,
        }
    )


def metrics_of(text: str, began: int, now: int) -> Iterator[Metric]:
    """Convert the text of /metrics.

    Args:
        text: Metrics in the Prometheus text format.
        began: Start time of the counters, in ns since the epoch.
        now: Time of the samples, in ns since the epoch.
    """
    for family in text_string_to_metric_families(text):
        if family.type == HISTOGRAM:
            yield _metric(family.name, family, _histogram(family.samples, began, now))
            continue
        by_name: dict[str, list[NumberDataPoint]] = {}
        for sample in family.samples:
            point = NumberDataPoint(dict(sample.labels), began, now, sample.value)
            by_name.setdefault(sample.name, []).append(point)
        for name, points in by_name.items():
            yield _metric(name, family, _number_data(family.type, points))


def _metric(name: str, family: Family, data: Sum | Gauge | Histogram) -> Metric:
    return Metric(name, family.documentation, family.unit, data)


def _number_data(kind: str, points: Sequence[NumberDataPoint]) -> Sum | Gauge:
    if kind == COUNTER:
        return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _histogram(samples: Iterable[Sample], began: int, now: int) -> Histogram:
    by_labels: dict[Labels, _Buckets] = {}
    for sample in samples:
        labels = tuple((key, it) for key, it in sample.labels.items() if key != UPPER_BOUND)
        found = by_labels.setdefault(labels, _Buckets())
        if sample.name.endswith(BUCKET):
            found.up_to[float(sample.labels[UPPER_BOUND])] = int(sample.value)
        elif sample.name.endswith(SUM):
            found.sum = sample.value
    points = [each.point(dict(labels), began, now) for labels, each in by_labels.items()]
    return Histogram(points, AggregationTemporality.CUMULATIVE)


class _Buckets:
    """A Prometheus histogram: cumulative counts by upper bound."""

    def __init__(self) -> None:
        self.up_to: dict[float, int] = {}
        self.sum = 0.0

    def point(self, labels: Mapping[str, str], began: int, now: int) -> HistogramDataPoint:
        """Return the histogram as an OpenTelemetry data point, with counts per bucket."""
        bounds = sorted(self.up_to)
        counted = [self.up_to[bound] for bound in bounds]
        counts = [count - before for before, count in zip([0, *counted], counted, strict=False)]
        return HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=began,
            time_unix_nano=now,
            count=counted[-1],
            sum=self.sum,
            bucket_counts=counts,
            explicit_bounds=[bound for bound in bounds if not math.isinf(bound)],
            min=None,  # type: ignore[arg-type]  # unknown
            max=None,  # type: ignore[arg-type]
        )
