"""Tests of the merged metrics of several nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from kbroker.client.endpoint import Endpoint
from kbroker.runtime.time_slices import DutyCycle
from kbroker.web.metrics import server_metrics
from kbroker.web.metrics.exposition import TEXT, Format
from kbroker.web.metrics.server_metrics import ServerMetrics

FIRST = b"""\
# HELP a_total Requests.
# TYPE a_total counter
a_total 1.0
# HELP b Sizes.
# TYPE b gauge
b{path="/{x} y\\"",z="1"} 2.0
b{} 3.0
"""
SECOND = b"""\
# HELP b Sizes.
# TYPE b gauge
b{z="1"} 4.0 1700000000
# HELP c Only here.
# TYPE c gauge
c 5.0
# EOF
"""
MERGED = """\
# HELP a_total Requests.
# TYPE a_total counter
a_total{kbroker_node="1"} 1.0
# HELP b Sizes.
# TYPE b gauge
b{kbroker_node="1",path="/{x} y\\"",z="1"} 2.0
b{kbroker_node="1"} 3.0
b{kbroker_node="2",z="1"} 4.0 1700000000
# HELP c Only here.
# TYPE c gauge
c{kbroker_node="2"} 5.0
"""


class OwnMetrics:
    """Metrics of the node in this process."""

    async def pieces(self, _wanted: Format) -> list[bytes]:
        return [FIRST]


@asynccontextmanager
async def responding(body: bytes | None) -> AsyncIterator[Endpoint]:
    """Run an HTTP server with a fixed response; without a body it never responds."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(4096)
        if body is None:
            await trio.sleep_forever()
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        await stream.send_all(head.encode() + body)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield Endpoint("127.0.0.1", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def merged_text(*others: Endpoint) -> str:
    rows = dict(enumerate(others, 2))
    metrics = ServerMetrics(1, OwnMetrics(), rows)  # type: ignore[arg-type]
    return b"".join(await metrics._pieces(TEXT)).decode()


async def test_families_of_all_nodes_are_merged_with_a_label() -> None:
    async with responding(SECOND) as other:
        text = await merged_text(other)
    assert text.startswith(MERGED)
    families = {each.name: each for each in text_string_to_metric_families(text)}
    up = {
        each.labels["kbroker_node"]: each.value
        for each in families["kbroker_node_metrics_up"].samples
    }
    assert up == {"1": 1, "2": 1}
    assert families["b"].samples[0].labels["path"] == '/{x} y"'


async def test_node_that_does_not_respond_is_reported_as_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_metrics, "SECONDS_MAX", 0.05)
    async with responding(SECOND) as other, responding(None) as hanging:
        text = await merged_text(other, hanging, Endpoint("127.0.0.1", 1))
    assert text.startswith(MERGED)
    assert 'kbroker_node_metrics_up{kbroker_node="2"} 1.0' in text
    assert 'kbroker_node_metrics_up{kbroker_node="3"} 0.0' in text
    assert 'kbroker_node_metrics_up{kbroker_node="4"} 0.0' in text


async def test_metrics_are_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_metrics, "PART_BYTES", 7)
    monkeypatch.setattr(server_metrics, "LINES_AT_ONCE", 1)
    merged = server_metrics._MergedFamilies(DutyCycle())
    for number, pieces in enumerate(([FIRST], [SECOND[:50], SECOND[50:]]), 1):
        await merged.add(number, pieces)
    assert b"".join(await merged.pieces()).decode() == MERGED
