"""NDJSON that a resumed replay reads again."""

from __future__ import annotations

import io

import pytest

from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import END, START
from kbroker.pipelines.replay.ndjson_source import STREAM, NdjsonSource

LINES = b'{"value": "a"}\n\n{"value": "b"}\n'


async def values(position: int) -> list[bytes | None]:
    source = NdjsonSource("orders.ndjson", io.BytesIO(LINES), START, END)
    async with source.reading({STREAM: position}, None, in_order=False) as chunks:
        return [record.value async for chunk in chunks for record in chunk.records]


async def test_resumed_replay_skips_lines_of_earlier_run() -> None:
    assert await values(1) == [b"b"]
    assert await values(3) == []


async def test_input_with_fewer_lines_than_earlier_run_is_rejected() -> None:
    with pytest.raises(ClientError, match="has 3 lines, but an earlier run has read 4"):
        await values(4)
