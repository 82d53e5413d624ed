"""Decoding of record bytes in the console."""

from __future__ import annotations

import json

from kbroker.client.groups import commit_offsets

from .consoles import console, record


async def test_bytes_are_decoded_by_guess_and_truncated() -> None:
    async with console() as client:
        await client.create_topic(
            "t",
            record(b'{"a": 1}', b"\x00\x00\x00\x07"),
            record("gr\u00fc\u00df".encode(), b"\xff\xfe\x00"),
            record(b"\x00\x00\x00\x00\x09\x02\x04\x06\x08"),
            record("\u00e9".encode() * 5_000),
            record(None),
        )
        rows = (await client.get("/topics/t/messages", from_="oldest"))["records"]
        assert [each.get("value_format") for each in rows] == [
            "json",
            "text",
            "schema",
            "text",
            None,
        ]
        assert (rows[0]["key_format"], rows[0]["key_text"]) == ("int32", "7")
        assert (rows[1]["key_format"], rows[1]["key_text"]) == ("hex", "fffe00")
        assert rows[2]["value_text"] == "schema 9: 02040608"
        assert (rows[3]["value_size"], rows[3]["value_truncated"]) == (10_000, True)
        assert rows[3]["value"] == "\u00e9" * 2_048
        assert rows[4]["value"] is None
        whole = await client.ask("/topics/t/records/0/3/value")
        assert whole.body.decode() == "\u00e9" * 5_000
        assert whole.headers["content-type"] == "application/octet-stream"


async def test_coordinator_records_are_decoded() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        await commit_offsets(client.cluster, "shop", {("t", 0): 1})
        rows = (await client.get("/topics/__consumer_offsets/messages", where='value ~ ""'))[
            "records"
        ]
        meanings = [json.loads(each["value_text"]) for each in rows if "value_text" in each]
        assert {"group": "shop", "topic": "t", "partition": 0}.items() <= meanings[0].items()


async def test_key_of_internal_topic_is_not_read_as_schema_registry_frame() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v", b"\x00\x01\x00\x05shops"))
        await commit_offsets(client.cluster, "shop", {("t", 0): 1})
        framed = (await client.get("/topics/t/messages"))["records"]
        assert {row["key_format"] for row in framed} == {"schema"}
        path = "/topics/__consumer_offsets/messages"
        offsets = (await client.get(path, where='value ~ ""'))["records"]
        assert offsets
        assert "schema" not in {row["key_format"] for row in offsets}
