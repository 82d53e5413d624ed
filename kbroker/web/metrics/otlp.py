"""Metrics sent by OTLP over HTTP to whoever collects them, as OpenTelemetry's own library sends them.

They are what /metrics says, by the same names. What a collector asks for (headers, certificates,
compression, time) stands in the variables OTEL_EXPORTER_OTLP_* that the library reads; OTEL_RESOURCE_ATTRIBUTES
and OTEL_SERVICE_NAME are told of each node as well.
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

from .beat import Beat
from .scrape import Metrics

logger = logging.getLogger(__name__)
SCOPE = InstrumentationScope("kbroker", __version__)
COUNTER, HISTOGRAM = "counter", "histogram"
BUCKET, SUM = "_bucket", "_sum"
UPPER_BOUND = "le"
"""The label of a bucket that says up to where it counts."""

Labels = tuple[tuple[str, str], ...]


class OtlpService:
    """Sends the metrics of all nodes of a process; a `kbroker.broker.Service`.

    Each node is asked and its metrics sent every `otlp.interval.ms`. What does not get through is not
    sent again: the next time says all of it.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._endpoint = config.otlp_endpoint
        self._interval = config.otlp_interval_ms / 1000
        self._exporter: OTLPMetricExporter | None = None
        self._beat = Beat()
        self._sender = trio.CapacityLimiter(1)
        self._nodes: Sequence[LocalNode] = ()
        self._scope = trio.CancelScope()
        self._is_failing = False

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Take note of the nodes; no address is taken."""
        self._nodes, self._scope = nodes, trio.CancelScope()
        self._exporter = OTLPMetricExporter(endpoint=self._endpoint)

    async def run(self) -> None:
        """Send until `close`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat.run)
                for local in self._nodes:
                    nursery.start_soon(self._send_regularly, local)

    async def close(self) -> None:
        """End it; what is just being sent is not waited for."""
        self._scope.cancel()
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()  # its thread tries no more

    async def _send_regularly(self, local: LocalNode) -> None:
        metrics, began = Metrics(local, self._beat), time.time_ns()
        while True:
            await trio.sleep(self._interval)
            text = await metrics.text()
            if not local.is_running:
                continue
            resource = resource_of(local)
            assert self._exporter is not None, "`close` ends this as well"
            send = partial(_send, self._exporter, text, resource, began, time.time_ns())
            sent = await trio.to_thread.run_sync(send, abandon_on_cancel=True, limiter=self._sender)
            self._note(is_sent=sent)

    def _note(self, *, is_sent: bool) -> None:
        """Say once that it fails, and that it goes on."""
        if self._is_failing is not is_sent:
            return
        self._is_failing = not is_sent
        if is_sent:
            logger.info("metrics get through to otlp.endpoint again")
        else:
            logger.warning(
                "metrics do not get through to otlp.endpoint: see what opentelemetry logs, and whether a "
                "collector listens there for OTLP over HTTP"
            )


def _send(
    exporter: OTLPMetricExporter, text: str, resource: Resource, began: int, now: int
) -> bool:
    """Whether it came through; in a thread, because the library waits and tries again."""
    scope = ScopeMetrics(SCOPE, [*metrics_of(text, began, now)], schema_url="")
    told = MetricsData([ResourceMetrics(resource, [scope], schema_url="")])
    return exporter.export(told) is MetricExportResult.SUCCESS


def resource_of(local: LocalNode) -> Resource:
    """Who sends, by OpenTelemetry's names."""
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
    """What a text of /metrics says. `began` and `now` are in ns since 1970."""
    for family in text_string_to_metric_families(text):
        if family.type == HISTOGRAM:
            yield _metric(family.name, family, _histogram(family.samples, began, now))
            continue
        by_name: dict[str, list[NumberDataPoint]] = {}
        for sample in family.samples:
            point = NumberDataPoint(dict(sample.labels), began, now, sample.value)
            by_name.setdefault(sample.name, []).append(point)
        for name, points in by_name.items():
            yield _metric(name, family, _numbers(family.type, points))


def _metric(name: str, family: Family, data: Sum | Gauge | Histogram) -> Metric:
    return Metric(name, family.documentation, family.unit, data)


def _numbers(kind: str, points: Sequence[NumberDataPoint]) -> Sum | Gauge:
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
    """A histogram as /metrics tells it: how many there are up to each bound."""

    def __init__(self) -> None:
        self.up_to: dict[float, int] = {}
        self.sum = 0.0

    def point(self, labels: Mapping[str, str], began: int, now: int) -> HistogramDataPoint:
        """The same as OpenTelemetry tells it: how many there are in each bucket."""
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
            min=None,  # type: ignore[arg-type]  # nobody knows
            max=None,  # type: ignore[arg-type]
        )
