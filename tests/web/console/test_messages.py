"""Single records, time ranges and columns of the console's searches."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.producer import Producer
from kbroker.client.topics import delete_records
from kbroker.protocol.compression import Codec
from kbroker.web.console import filters, messages

from .consoles import Console, console, record, values


def offsets(found: Any) -> list[int]:
    return [each["offset"] for each in found["records"]]


async def test_time_range_bounds_scans_in_both_directions() -> None:
    async with console() as client:
        # the record with timestamp 1 is between records of the range
        times = [1000, 2000, 1, 3000, 4000]
        await client.create_topic("t", *(record(b"v%d" % at, at_ms=at) for at in times))
        path, bounds = "/topics/t/messages", {"since": 2000, "until": 3000}
        assert values(await client.get(path, from_="oldest", **bounds)) == ["v2000", "v3000"]
        newest = await client.get(path, limit=1, **bounds)
        assert values(newest) == ["v3000"]
        more = await client.get(path, cursor=newest["cursor"], **bounds)
        assert values(more) == ["v2000"]
        assert values(await client.get(path, from_="offset", offset=3, until=3000)) == ["v3000"]
        assert values(await client.get(path, since=5000)) == []
        assert (await client.ask(path, since="noon")).status == 400
        assert (await client.ask(path, from_="timestamp")).status == 400


async def test_fields_of_records_are_returned_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "COLUMN_TEXT_MAX", 10)
    async with console() as client:
        long = b'{"country": "DE", "n": 9223372036854775807, "text": "%s"}' % (b"y" * 9_000)
        await client.create_topic("t", record(long, b'{"id": 7}', trace=b"abc"), record(b"plain"))
        url = "/topics/t/messages?from=oldest" + "".join(
            f"&field={each}"
            for each in ("value.country", "value.n", "value.text", "key.id", "headers.trace")
        )
        first, second = (await client.http.ask("/api/v1" + url)).json()["records"]
        assert first["value_truncated"]
        assert first["fields"] == {
            "value.country": "DE",
            "value.n": "9223372036",
            "value.text": "y" * 10,
            "key.id": 7,
            "headers.trace": "abc",
        }
        assert set(second["fields"].values()) == {None}
        problem = await client.ask("/topics/t/messages", field="valu.x")
        assert problem.status == 400
        assert problem.json()["parameter"] == "field"
        many = "&".join(f"field=value.f{n}" for n in range(filters.COLUMNS_MAX + 1))
        assert (await client.http.ask(f"/api/v1/topics/t/messages?{many}")).status == 400


async def test_error_of_expression_has_parameter_and_position() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        problem = await client.ask("/topics/t/messages", where="size > 3 and value = 4")
        assert problem.status == 400
        found = problem.json()
        assert (found["parameter"], found["position"]) == ("where", 19)


async def sparse_topic(client: Console) -> None:
    """Create a topic whose partition 0 starts at offset 2."""
    await client.create_topic("t", partitions=2)
    producer = Producer(client.cluster, codec=Codec.GZIP)
    for n in range(3):
        await producer.write({("t", 0): [record(b"v%d" % (2 * n)), record(b"v%d" % (2 * n + 1))]})
    await delete_records(client.cluster, {("t", 0): 2})


async def test_record_is_returned_with_its_sizes_and_batch() -> None:
    async with console() as client:
        await client.create_topic("t")
        producer = Producer(client.cluster, codec=Codec.GZIP)
        await producer.write({("t", 0): [record(b"a"), record(b"value", b"key", trace=b"abc")]})
        found = await client.get("/topics/t/records/0/1")
        row = found["record"]
        assert (row["key_size"], row["value_size"], row["headers_size"]) == (3, 5, 8)
        assert row["header_count"] == 1
        batch = row["batch"]
        assert (batch["base_offset"], batch["records"], batch["codec"]) == (0, 2, "gzip")
        assert (found["start_offset"], found["end_offset"]) == (0, 2)


async def test_neighbours_of_record_are_found_in_its_partition() -> None:
    async with console() as client:
        await sparse_topic(client)

        async def neighbour(offset: int, direction: str, **query: object) -> Any:
            path = f"/topics/t/records/0/{offset}"
            found = await client.get(path, direction=direction, **query)
            assert found["continue_at"] is None
            return found["record"] and found["record"]["offset"]

        assert await neighbour(3, "next") == 4
        assert await neighbour(4, "previous") == 3
        assert await neighbour(2, "previous") is None
        assert await neighbour(5, "next") is None
        assert await neighbour(0, "next") == 2
        assert await neighbour(99, "previous") == 5
        assert await neighbour(2, "next", contains="v5") == 5
        assert (await client.ask("/topics/t/records/0/3", direction="up")).status == 400


async def test_search_for_neighbour_stops_at_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BYTES_DEFAULT", 1)
    async with console() as client:
        await sparse_topic(client)
        at, requests, found = 2, 0, None
        while found is None:
            path = f"/topics/t/records/0/{at}"
            it = await client.get(path, direction="next", contains="v5")
            found, requests, at = it["record"], requests + 1, it["continue_at"]
        assert found["value"] == "v5"
        assert requests > 1


@pytest.mark.parametrize(
    ("offset", "reason"),
    [(0, "starts at offset 2"), (6, "the next record will have offset 6")],
)
async def test_missing_record_is_explained(offset: int, reason: str) -> None:
    async with console() as client:
        await sparse_topic(client)
        response = await client.ask(f"/topics/t/records/0/{offset}")
        assert response.status == 404
        assert reason in response.json()["error"]
