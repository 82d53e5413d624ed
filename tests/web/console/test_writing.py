"""Records written by the console."""

from __future__ import annotations

import pytest

from kbroker.client.topics import NewTopic, create_topics

from .consoles import API, console, record


async def test_records_are_produced_and_resent_with_token() -> None:
    async with console() as client:
        await client.create_topic("t", partitions=2)
        lines = b'{"key": "k", "value": "a", "partition": 1}\n{"value_base64": "/w==", "partition": 0}\n'
        written = (await client.post("/topics/t/records", lines)).json()["written"]
        assert {(each["partition"], each["offset"]) for each in written} == {(1, 0), (0, 0)}
        assert (await client.post("/topics/t/records/1/0/resend")).status == 200
        found = await client.get("/topics/t/messages", partition=1)
        assert [each["key"] for each in found["records"]] == ["k", "k"]
        assert (await client.post("/topics/t/records", b"no json\n")).status == 400
        assert (await client.post("/topics/absent/records", b'{"value": "x"}\n')).status == 404


async def test_missing_partition_of_a_line_is_reported_and_can_be_ignored() -> None:
    async with console() as client:
        await client.create_topic("t", partitions=2)
        lines = b'{"key": "k", "partition": 1}\n{"key": "k", "partition": 7}\n'
        response = await client.post("/topics/t/records", lines)
        assert response.status == 400
        assert response.json()["error"].startswith("line 2: t has no partition 7, it has 2")
        response = await client.post("/topics/t/records?by_key=1", lines)
        assert len({each["partition"] for each in response.json()["written"]}) == 1


async def test_failed_production_names_the_records_that_were_written() -> None:
    async with console() as client:
        topic = NewTopic("t", 2, configs={"max.message.bytes": "500"})
        await create_topics(client.cluster, [topic])
        small, large = b'{"value": "a", "partition": 0}\n', b'{"value": "%s", "partition": 1}\n'
        large %= b"x" * 1000
        response = await client.post("/topics/t/records", small + large + small)
        assert response.status == 413
        assert response.json()["error"].endswith("; 2 of 3 records were written")
        places = [(each["partition"], each["offset"]) for each in response.json()["written"]]
        assert places == [(0, 0), (0, 1)]
        response = await client.post("/topics/t/records", large)
        assert (response.status, "were written" in response.text) == (413, False)


async def test_session_has_defaults_of_topics() -> None:
    async with console(num_partitions=3) as client:
        session = await client.get("/session")
        assert (session["num_partitions"], session["default_replication_factor"]) == (3, 1)


async def test_session_has_size_limit_of_requests() -> None:
    async with console(http_max_request_bytes=2000) as client:
        await client.create_topic("t")
        assert (await client.get("/session"))["request_bytes_max"] == 2000
        large = b'{"value": "' + b"x" * 2000 + b'"}\n'
        assert (await client.post("/topics/t/records", large)).status == 413


@pytest.mark.parametrize("path", ["/topics", "/topics/t/records", "/transactions/abort"])
async def test_request_with_too_many_elements_or_half_surrogate_is_rejected(path: str) -> None:
    many = b'{"value":[' + b"[]," * 60_000 + b"[]]}\n"
    async with console() as client:
        await client.create_topic("t")
        response = await client.post(path, many)
        assert (response.status, "more than 50000 elements" in response.text) == (400, True)
        half = b'{"name": "\\ud800", "topic": "\\ud800", "value": "\\ud800"}\n'
        assert (await client.post(path, half)).status == 400
        blank = b"\n" * 500_000
        assert (await client.post(path, blank)).status == 400


async def test_write_without_token_or_from_other_origin_is_rejected() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        path, line = f"{API}/topics/t/records", b'{"value": "x"}\n'
        assert (await client.http.ask(path, "POST", {}, line)).status == 403
        assert (await client.http.ask(path, "POST", {"X-Kbroker-Token": "x"}, line)).status == 403
        response = await client.post("/topics/t/records", line, **{"Sec-Fetch-Site": "cross-site"})
        assert response.status == 403
        response = await client.http.ask(f"{API}/topics", headers={"Sec-Fetch-Site": "cross-site"})
        assert response.status == 403
        response = await client.post("/topics/t/records", line, Origin="http://evil.example.org")
        assert response.status == 403
        assert len((await client.get("/topics/t/messages"))["records"]) == 1


@pytest.mark.parametrize("allowed", [False, True])
async def test_console_on_exposed_address_writes_only_if_allowed(allowed: bool) -> None:
    async with console(http_host="0.0.0.0", http_console_write=str(allowed).lower()) as client:
        await client.create_topic("t")
        assert (await client.get("/session"))["may_write"] is allowed
        response = await client.post("/topics/t/records", b'{"value": "x"}\n')
        assert response.status == (200 if allowed else 403)
