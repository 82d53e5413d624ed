"""Metrics of all nodes of a multi-process server, merged from the metrics of each node."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import trio
from prometheus_client.metrics_core import GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from kbroker.client.endpoint import Endpoint
from kbroker.runtime.http_client import HTTP_OK, HttpError, fetch
from kbroker.runtime.time_slices import DutyCycle
from kbroker.text.lines import Lines

from .exposition import Format, format_of, metric_pieces
from .scrape import FRESH_SECONDS, REST, Metrics, metrics_response

logger = logging.getLogger(__name__)

# Name of the label with the node ID. Labels of clients never have this prefix.
LABEL = "kbroker_node"
# Maximum time (s) to wait for the metrics of another node, and their maximum size.
SECONDS_MAX = 3
BYTES_MAX = 64 << 20
# Size of the parts in which metrics are processed, well below one time slice.
PART_BYTES = 8 * 1024
LINES_AT_ONCE = 1000


class ServerMetrics:
    """Metrics of all nodes of a server, at the address that its processes share.

    Args:
        node_id: ID of the node in this process.
        own: Metrics of that node.
        others: HTTP address of each other node, by node ID.
    """

    def __init__(self, node_id: int, own: Metrics, others: Mapping[int, Endpoint]) -> None:
        self._node_id = node_id
        self._own = own
        self._others = others
        self._lock = trio.Lock()
        self._cache: dict[Format, tuple[float, list[bytes]]] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/metrics", self._serve)]

    async def _serve(self, request: Request) -> StreamingResponse:
        wanted = format_of(request.headers.get("accept", ""))
        return metrics_response(await self._pieces(wanted), wanted)

    async def _pieces(self, wanted: Format) -> list[bytes]:
        async with self._lock:
            known = self._cache.get(wanted)
            if known is not None and trio.current_time() - known[0] < FRESH_SECONDS:
                return known[1]
            self._cache.clear()
            pieces = await self._merge(wanted)
            self._cache[wanted] = trio.current_time(), pieces
            return pieces

    async def _merge(self, wanted: Format) -> list[bytes]:
        found: dict[int, Sequence[bytes]] = {}
        async with trio.open_nursery() as nursery:
            for node_id, endpoint in self._others.items():
                nursery.start_soon(self._fetch, node_id, endpoint, wanted, found)
            found[self._node_id] = await self._own.pieces(wanted)
        merged = _MergedFamilies(DutyCycle(rest=REST))
        for node_id in sorted(found):
            await merged.add(node_id, found[node_id])
        up = GaugeMetricFamily(
            "kbroker_node_metrics_up", "1 if the metrics of a node are included.", labels=[LABEL]
        )
        for node_id in sorted({self._node_id, *self._others}):
            up.add_metric([str(node_id)], node_id in found)
        return [*await merged.pieces(), *metric_pieces(up, wanted), wanted.end]

    async def _fetch(
        self, node_id: int, endpoint: Endpoint, wanted: Format, found: dict[int, Sequence[bytes]]
    ) -> None:
        """Add the metrics of another node to `found`, unless it does not respond in time."""
        try:
            response = await fetch(
                f"http://{endpoint}/metrics",
                seconds=SECONDS_MAX,
                bytes_max=BYTES_MAX,
                trusted=None,
                headers={"Accept": wanted.content_type},
            )
        except HttpError as error:
            logger.debug("no metrics of node %d: %s", node_id, error)
        else:
            if response.status == HTTP_OK:
                found[node_id] = [response.body]


class _MergedFamilies:
    """Metric families of several nodes, each family with its header lines once."""

    def __init__(self, duty_cycle: DutyCycle) -> None:
        self._duty_cycle = duty_cycle
        self._heads: dict[bytes, list[bytes]] = {}
        self._samples: dict[bytes, list[bytes]] = {}

    async def add(self, node_id: int, pieces: Iterable[bytes]) -> None:
        """Add the metrics of a node, and label them with its ID."""
        label = f'{LABEL}="{node_id}"'.encode()
        lines = Lines()
        family = b""
        for piece in pieces:
            for first in range(0, len(piece), PART_BYTES):
                for line in lines.feed(piece[first : first + PART_BYTES]):
                    if line.startswith(b"#"):
                        family = self._add_head(line) or family
                    else:
                        self._samples[family].append(_labelled(line, label))
                await self._duty_cycle.pause()

    def _add_head(self, line: bytes) -> bytes:
        """Add a header line, and return its family; empty for the line at the end."""
        _, keyword, *words = line.split(b" ", 3)
        if keyword not in (b"HELP", b"TYPE", b"UNIT"):
            return b""
        head = self._heads.setdefault(words[0], [])
        self._samples.setdefault(words[0], [])
        if line not in head:
            head.append(line)
        return words[0]

    async def pieces(self) -> list[bytes]:
        """Return the text of all families, in pieces of whole lines."""
        found = []
        for family, head in self._heads.items():
            found.append(b"\n".join(head) + b"\n")
            samples = self._samples[family]
            for first in range(0, len(samples), LINES_AT_ONCE):
                found.append(b"\n".join(samples[first : first + LINES_AT_ONCE]) + b"\n")
                await self._duty_cycle.pause()
        return found


def _labelled(sample: bytes, label: bytes) -> bytes:
    """Return the line of a sample with an additional label."""
    name, brace, rest = sample.partition(b"{")
    if brace and b" " not in name:
        comma = b"" if rest.startswith(b"}") else b","
        return name + b"{" + label + comma + rest
    name, _, rest = sample.partition(b" ")
    return name + b"{" + label + b"} " + rest
