"""Attacks with many concurrent live views of the console, and with expensive client metrics."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from http import HTTPStatus
from urllib.parse import quote

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.primitives import write_uvarint
from kbroker.web.console.api import LIVE_MAX

from ..web.client import HttpClient, get, open_http_client
from ..wire import connected, request
from .planted import BOMBS, bombs

# Number of views beyond the limit of the console.
BEYOND_MAX = 15
PUSHES = 5
CLIENT_ID = "hostile"


async def live_views(http: tuple[str, int], hold_seconds: float) -> Counter[int]:
    """Open more live views than allowed, and return the number of responses by HTTP status."""
    statuses: Counter[int] = Counter()
    filters = ("", "contains=nope", f"where={quote('value.a == 1')}")
    async with trio.open_nursery() as nursery:
        for number in range(LIVE_MAX + BEYOND_MAX):
            nursery.start_soon(
                _view, Endpoint(*http), filters[number % len(filters)], hold_seconds, statuses
            )
    return statuses


async def _view(http: Endpoint, query: str, hold_seconds: float, statuses: Counter[int]) -> None:
    """Open a view that starts at the first planted batches."""
    path = f"/api/v1/topics/{BOMBS.name}/live?{query}"
    positions = json.dumps({str(index): 0 for index in range(len(bombs()))})
    async with open_http_client(http) as client:
        response = await client.head_of(path, {"last-event-id": positions})
        statuses[response.status] += 1
        if response.status == HTTPStatus.OK:
            await _read(client, hold_seconds)


async def _read(client: HttpClient, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while await client.stream.receive_some(1 << 16):
            pass


# -- client metrics


def _message(number: int, content: bytes) -> bytes:
    return write_uvarint(number << 3 | 2) + write_uvarint(len(content)) + content


@cache
def pushes() -> list[bytes]:
    """Return client metrics that expand to 4 MiB of fields in a metric, a point or an attribute."""
    fields = b"\x78\x00" * 2_000_000
    contents = (
        fields,
        _message(5, _message(1, fields)),
        _message(5, _message(1, _message(7, fields))),
    )
    return [
        compress(Codec.ZSTD, _message(1, _message(2, _message(2, content)))) for content in contents
    ]


async def read_pushed_metrics(
    bootstrap: tuple[str, int], http: tuple[str, int], hold_seconds: float
) -> None:
    """Push expensive metrics and read the pages that show them."""
    for number in range(PUSHES):
        async with connected(bootstrap) as wire:
            key = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
            subscription = await wire.ask(key, 0, request(key))
            push = request(
                ApiKey.PUSH_TELEMETRY,
                client_instance_id=subscription.client_instance_id,
                subscription_id=subscription.subscription_id,
                compression_type=Codec.ZSTD,
                metrics=pushes()[number % len(pushes())],
            )
            await wire.ask(ApiKey.PUSH_TELEMETRY, 0, push)
    for path in ("/metrics", "/api/v1/explain/client/test"):
        with trio.move_on_after(2 * hold_seconds):
            await get(Endpoint(*http), path)
