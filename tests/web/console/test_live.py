"""Live views of records in the console."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import trio

from kbroker.client.producer import Producer
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.record_stream import OversizedRecord, stream_records
from kbroker.protocol.records import BatchHeader, Record
from kbroker.web.console import scan
from kbroker.web.console.api import LIVE_MAX

from ...wire import until
from ..client import HttpClient, open_http_client
from .consoles import API, Console, console, record


async def test_live_view_shows_new_records_and_resumes() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"before"))
        stream = client.http.stream
        path = f"{API}/topics/t/live?contains=wanted"
        host = b"Host: localhost\r\n\r\n"
        await stream.send_all(f"GET {path} HTTP/1.1\r\n".encode() + host)
        text = b""
        while b'"records":[]' not in text:
            text += bytes(await stream.receive_some(65_536))
        await Producer(client.cluster).write({("t", 0): [record(b"other"), record(b"wanted 1")]})
        while b"wanted 1" not in text:
            text += bytes(await stream.receive_some(65_536))
        assert b"before" not in text
        assert b"other" not in text
        assert b'id: {"0":3}' in text


class LiveView:
    """A stream of events as the page receives it."""

    def __init__(self, client: Console, **query: str) -> None:
        self._stream = client.http.stream
        self._path = f"{API}/topics/t/live?{urlencode(query)}"
        self._text = b""

    async def begin(self) -> None:
        """Send the request and wait for the first event."""
        await self._stream.send_all(
            f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await self.event()

    async def event(self) -> Any:
        """Return the next event."""
        while not (found := re.search(rb"^data: (.*)\n\n", self._text, re.MULTILINE)):
            self._text += bytes(await self._stream.receive_some(65_536))
        self._text = self._text[found.end() :]
        return json.loads(found[1])


@pytest.mark.parametrize("query", [{}, {"contains": "v"}])
async def test_live_view_keeps_newest_records_if_too_many_arrive(query: dict[str, str]) -> None:
    async with console() as client:
        await client.create_topic("t")
        view = LiveView(client, **query)
        await view.begin()
        records = [record(b"v%d" % n) for n in range(5_000)]
        await Producer(client.cluster).write({("t", 0): records})
        events: list[Any] = []
        while sum(each["received"] for each in events) < 5_000:
            events.append(await view.event())
        rows = [each for event in events for each in event["records"]]
        dropped = sum(each["dropped"] for each in events)
        assert rows[-1]["value"] == "v4999"
        assert len(rows) + dropped == sum(each["received"] for each in events) == 5_000
        assert max(len(each["records"]) for each in events) <= 200


async def test_live_view_decompresses_only_shown_records(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(
        batch: Buffer, header: BatchHeader, *, start_offset: int, record_bytes_max: int
    ) -> Iterator[Record | OversizedRecord | None]:
        opened.append(header.record_count)
        return stream_records(
            batch, header, start_offset=start_offset, record_bytes_max=record_bytes_max
        )

    monkeypatch.setattr(scan, "stream_records", counted)
    async with console() as client:
        await client.create_topic("t")
        view = LiveView(client)
        await view.begin()
        producer = Producer(client.cluster)
        for n in range(50):
            await producer.write({("t", 0): [record(b"v%d" % n)] * 100})
        seen = 0
        while seen < 5_000:
            seen += (await view.event())["received"]
        assert sum(opened) < 5_000


async def test_concurrently_opened_live_views_are_limited() -> None:
    async with console() as viewer:
        await viewer.create_topic("t")
        endpoint, statuses = viewer.service.endpoint_of(1), []
        done = trio.Event()

        async def open_one() -> None:
            async with open_http_client(endpoint) as client:
                statuses.append((await client.head_of(f"{API}/topics/t/live")).status)
                await done.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(LIVE_MAX + 15):
                nursery.start_soon(open_one)
            await until(lambda: len(statuses) == LIVE_MAX + 15)
            done.set()
        assert Counter(statuses) == {200: LIVE_MAX, 429: 15}
        # slots of ended streams are free again
        async with open_http_client(endpoint) as client:
            await wait_until_live_view_opens(client)


async def wait_until_live_view_opens(client: HttpClient) -> None:
    while (await client.head_of(f"{API}/topics/t/live")).status != 200:  # noqa: ASYNC110
        await trio.sleep(0.01)
