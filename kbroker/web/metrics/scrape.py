"""The /metrics endpoint, generated in time slices between client requests.

Requests that arrive during a scrape or within a second share its result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from kbroker.broker.local_node import LocalNode
from kbroker.runtime.time_slices import DutyCycle
from kbroker.web.chunks import Chunks

from .client_metrics import PushedMetrics
from .exposition import TEXT, Family, Format, format_of, metric_pieces
from .group_metrics import GroupMetrics
from .loop_monitor import LoopMonitor
from .node_metrics import NodeMetrics
from .partition_metrics import PartitionMetrics

FRESH_SECONDS = 1
# Time that the event loop gets for other work, per unit of time spent on a scrape.
REST = 1


def metrics_response(pieces: Sequence[bytes], wanted: Format) -> StreamingResponse:
    """Return the response with metrics in a format."""
    headers = {
        "content-type": wanted.content_type,
        "content-length": str(sum(map(len, pieces))),
        "vary": "accept",
    }
    return StreamingResponse(Chunks(pieces), headers=headers)


class Metrics:
    """Metrics of one node, with its own registry."""

    def __init__(self, local: LocalNode, loop_monitor: LoopMonitor) -> None:
        self._local = local
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._node_metrics = NodeMetrics(local, loop_monitor)
        self._pushed: PushedMetrics | None = None
        self._lock = trio.Lock()
        self._cache: dict[Format, tuple[float, list[bytes]]] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/metrics", self._serve)]

    async def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return b"".join(await self.pieces(TEXT)).decode()

    async def _serve(self, request: Request) -> StreamingResponse:
        wanted = format_of(request.headers.get("accept", ""))
        return metrics_response(await self.pieces(wanted), wanted)

    async def pieces(self, wanted: Format) -> list[bytes]:
        """Return all metrics in a format, in pieces of whole lines."""
        async with self._lock:
            known = self._cache.get(wanted)
            if known is not None and trio.current_time() - known[0] < FRESH_SECONDS:
                return known[1]
            self._cache.clear()  # the other format is stale too
            duty_cycle = DutyCycle(rest=REST)
            pieces = [piece async for piece in self._generate(wanted, duty_cycle)]
            self._cache[wanted] = trio.current_time(), pieces
            return pieces

    async def _generate(self, wanted: Format, duty_cycle: DutyCycle) -> AsyncIterator[bytes]:
        for metric in self._registry.collect():
            for piece in metric_pieces(metric, wanted):
                yield piece
                await duty_cycle.pause()
        if self._local.is_running:
            for metric in self._node_metrics.collect():
                for piece in metric_pieces(metric, wanted):
                    yield piece
                    await duty_cycle.pause()
            for family in await self._families(duty_cycle):
                for piece in family.pieces(wanted):
                    yield piece
                    await duty_cycle.pause()
        if wanted.end:
            yield wanted.end

    async def _families(self, duty_cycle: DutyCycle) -> list[Family]:
        """Return the families with many samples."""
        node = self._local.node
        partitions, groups = PartitionMetrics(node), GroupMetrics(node)
        await partitions.collect(duty_cycle)
        await groups.collect(duty_cycle)
        if self._pushed is None or not self._pushed.belongs_to(node):
            self._pushed = PushedMetrics(node)
        pushed, dropped_pushes = await self._pushed.family()
        dropped_series = Family(
            "kbroker_metrics_dropped_series", "gauge", "Series dropped by the cardinality limits."
        )
        dropped_series.add('{what="groups"}', groups.dropped_series)
        dropped_series.add('{what="client_metrics"}', dropped_pushes)
        return [*partitions.families(), *groups.families(), pushed, dropped_series]
