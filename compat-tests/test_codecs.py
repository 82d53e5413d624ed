"""Every client writes with every codec it has; every client reads what all of them wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.clients import ClientProcess, Library
from harness.codecs import RECORDS, WRITERS, records_of, topic_of

CLIENT = "codec matrix"


@pytest.mark.parametrize(("writer", "codec"), WRITERS, ids=lambda one: getattr(one, "name", one))
def test_written(written: dict[str, Any], writer: Library, codec: str) -> None:
    answers = written[topic_of(writer, codec)]
    if isinstance(answers, Exception):
        raise answers
    assert [one.get("offset") for one in answers] == list(range(len(RECORDS))), answers


@pytest.mark.parametrize(("writer", "codec"), WRITERS, ids=lambda one: getattr(one, "name", one))
def test_read_by(
    written: dict[str, Any],
    workers: Callable[[str], ClientProcess],
    client: Library,
    writer: Library,
    codec: str,
) -> None:
    topic = topic_of(writer, codec)
    rows = workers(client.name)("read", topic=topic, count=len(RECORDS))
    assert [row["offset"] for row in rows] == list(range(len(RECORDS)))
    for row, record in zip(rows, records_of(writer), strict=True):
        assert row["key"] == record["key"]
        assert row["value"] == record["value"]
        assert row["headers"] == record.get("headers", [])
        assert row["timestamp"] == record.get("timestamp", row["timestamp"])
        assert row["timestamp"] > 1_300_000_000_000
