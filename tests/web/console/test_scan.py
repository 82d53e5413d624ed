"""Scans of records in the console."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from starlette.requests import Request
from trio.testing import MockClock

from kbroker.client.cluster import ClusterClient
from kbroker.client.endpoint import Endpoint
from kbroker.client.producer import Producer
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.web.console import messages
from kbroker.web.console.filters import RecordFilter
from kbroker.web.console.scan import FIRST_WINDOW, Budget, PartitionScan, Reader, Remaining

from ...loop_latency import STEP_SECONDS_MAX, longest_step
from .consoles import console, record, values


async def test_records_are_scanned_from_either_end_an_offset_or_a_timestamp() -> None:
    async with console() as client:
        await client.create_topic("t", *(record(b"v%d" % n, at_ms=1000 + n) for n in range(50)))
        path = "/topics/t/messages"
        newest = await client.get(path, limit=3)
        assert values(newest) == ["v49", "v48", "v47"]
        assert not newest["done"]
        assert values(await client.get(path, limit=2, cursor=newest["cursor"])) == ["v46", "v45"]
        assert values(await client.get(path, from_="oldest", limit=2)) == ["v0", "v1"]
        assert values(await client.get(path, from_="offset", offset=48)) == ["v48", "v49"]
        assert values(await client.get(path, from_="oldest", since=1047)) == [
            "v47",
            "v48",
            "v49",
        ]
        all_records = await client.get(path, limit=500)
        assert all_records["done"]
        assert all_records["cursor"] is None
        assert len(all_records["records"]) == 50


async def test_oversized_record_is_listed_with_size_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "RECORD_BYTES_MAX", 1000)
    async with console() as client:
        await client.create_topic("t", record(b"small"), record(bytes(5000), b"k"))
        large, small = (await client.get("/topics/t/messages"))["records"]
        assert large["oversized_bytes"] > 5000
        assert (large["key"], large["value"], large["headers"]) == (None, None, [])
        assert small["value"] == "small"
        assert "oversized_bytes" not in small


async def test_partitions_are_merged_by_timestamp() -> None:
    async with console() as client:
        await client.create_topic(
            "t", *(record(b"a%d" % n, at_ms=1000 + 2 * n) for n in range(40)), partitions=2
        )
        more = [record(b"b%d" % n, at_ms=1001 + 2 * n) for n in range(40)]
        await Producer(client.cluster).write({("t", 1): more})
        found = await client.get("/topics/t/messages", limit=4)
        assert values(found) == ["b39", "a39", "b38", "a38"]
        seen = values(found)
        while found["cursor"]:
            found = await client.get("/topics/t/messages", limit=7, cursor=found["cursor"])
            seen += values(found)
        assert len(seen) == len(set(seen)) == 80
        assert values(await client.get("/topics/t/messages", partition=1, limit=1)) == ["b39"]


async def test_scan_stops_at_its_budget_and_resumes_by_cursor() -> None:
    async with console() as client:
        await client.create_topic("t")
        producer = Producer(client.cluster)
        for n in range(40):
            batch = [record(b"x" * 10_000), record(b"needle %d" % n)]
            await producer.write({("t", 0): batch})
        for origin in ("oldest", "newest"):
            query: dict[str, Any] = {"contains": "needle", "from_": origin, "bytes": 50_000}
            found = await client.get("/topics/t/messages", **query)
            assert 0 < len(found["records"]) < 40
            assert 0 < found["scanned"] < 80
            assert found["remaining"] == 80 - found["scanned"]
            seen, requests = values(found), 1
            while found["cursor"]:
                before = found["remaining"]
                found = await client.get("/topics/t/messages", **query, cursor=found["cursor"])
                seen, requests = seen + values(found), requests + 1
                assert found["remaining"] < before
            assert found["remaining"] == 0
            assert sorted(seen) == sorted(f"needle {n}" for n in range(40))
            assert requests > 3


@pytest.mark.parametrize("query", [{"contains": "nowhere"}, {"where": "size > 100"}])
async def test_backward_scan_decompresses_each_batch_once(query: dict[str, str]) -> None:
    async with console() as client:
        await client.create_topic("t")
        producer, size = Producer(client.cluster), 0
        for _ in range(10):
            (written,) = await producer.write({("t", 0): [record(b"x" * 40)] * 1_000})
            size += written.header.size
        found, requests = await client.get("/topics/t/messages", **query, bytes=size // 3), 1
        scanned, scanned_bytes = found["scanned"], found["scanned_bytes"]
        while found["cursor"]:
            found = await client.get(
                "/topics/t/messages", **query, bytes=size // 3, cursor=found["cursor"]
            )
            requests += 1
            scanned += found["scanned"]
            scanned_bytes += found["scanned_bytes"]
        assert requests <= 6
        assert scanned == 10_000
        assert scanned_bytes < 1.5 * size


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    "query",
    [
        {"where": "value.n < 0"},
        {"contains": "nowhere"},
        {"where": "value.n < 0", "from_": "oldest"},
    ],
)
async def test_long_scan_does_not_block_event_loop(query: dict[str, str], codec: Codec) -> None:
    async with console() as client:
        await client.create_topic("t")
        records = [record(b'{"n": %d, "text": "%s"}' % (n, b"x" * 60)) for n in range(5_000)]
        producer = Producer(client.cluster, codec=codec)
        for _ in range(4):
            await producer.write({("t", 0): records})
        with longest_step() as step:
            found = await client.get("/topics/t/messages", **query, ms=10_000)
            scanned = found["scanned"]
            # its time limit was reached
            while found["cursor"]:
                found = await client.get("/topics/t/messages", **query, cursor=found["cursor"])
                scanned += found["scanned"]
        assert scanned == 20_000
        assert step.steps > 20
        assert step.seconds < STEP_SECONDS_MAX, step.task


async def test_search_does_not_rest_after_waiting_for_a_fetch(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0

    class SlowReader(Reader):
        async def _fetch(
            self, index: int, offset: int, *, committed: bool
        ) -> FetchResponse.Partition:
            await trio.sleep(3600)
            return FetchResponse.Partition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

    request = Request({"type": "http", "query_string": b"", "headers": []})
    reader = SlowReader(
        ClusterClient([Endpoint("localhost", 1)], "test", direct=False),
        "t",
        RecordFilter("t", request),
        committed=False,
        record_bytes_max=1,
    )
    await reader.fetch(0, 0)
    await reader.duty_cycle.pause()
    assert trio.current_time() == 3600


class SlowReader:
    """A reader of one batch: each record takes a millisecond, and each skipped one 2 us."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self.record_filter = SimpleNamespace(too_large=0)

    async def fetch(self, index: int, first: int) -> None:
        await trio.lowlevel.checkpoint()

    def scan_start(self, row: None, first: int) -> int:
        """Return the beginning of the batch."""
        return 0

    async def matches(
        self, row: None, index: int, first: int, end: int, budget: Budget
    ) -> AsyncGenerator[tuple[int, None], None]:
        """Yield the offset after each record."""
        self._clock.jump(first * 2e-6)
        for offset in range(first, end):
            self._clock.jump(0.001)
            budget.records += 1
            budget.bytes += 10
            yield offset + 1, None


@pytest.mark.parametrize("records", [50, 2_000, 20_000])
async def test_backward_scan_of_batch_beyond_the_budget_uses_its_time(
    mock_clock: MockClock, records: int
) -> None:
    reader: Any = SlowReader(mock_clock)
    place, requests, seconds = Remaining(0, records), 0, 0.0
    while place.start < place.end:
        scan = PartitionScan(0, *place)
        budget = Budget(0.2, 1 << 20)
        while not budget.is_spent and not scan.is_done:
            await scan.scan_backward(reader, budget, 200)
        assert budget.took <= 0.2 + FIRST_WINDOW * 0.001 + 2 * records * 2e-6
        seconds += budget.took
        requests += 1
        place = Remaining(scan.start, scan.end, scan.window, scan.splits_batches)
    # A window that exceeds the budget is scanned again.
    assert seconds <= 0.2 + 4 * records * 0.001
    assert requests <= 2 + 4 * records * 0.001 / 0.2
