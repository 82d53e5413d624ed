"""Every client writes with every codec it has; every client reads what all of them wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.clients import LIBRARIES, ClientProcess, Library

CLIENT = "codec matrix"

WRITERS = [(library, codec) for library in LIBRARIES.values() for codec in library.codecs]

RECORDS: list[dict[str, Any]] = [
    {"key": "plain", "value": "plain"},
    {"key": None, "value": "null key"},
    {"key": "null value", "value": None},
    {"key": None, "value": ""},
    {"key": "", "value": "empty key"},
    {"key": "bytes", "value": "".join(map(chr, range(256)))},
    {"key": "headers", "value": "x", "headers": [["a", "1"], ["b", ""], ["a", "2"]]},
    {"key": "big", "value": "kbroker " * 12_500},
    {"key": "back in time", "value": "x", "timestamp": 1_357_020_000_000},
    *({"key": f"key {i}", "value": f"value {i} " * 20} for i in range(200)),
]
"""Mixed on purpose; compressible, and enough for real batches."""


def topic_of(library: Library, codec: str) -> str:
    """The topic that one library writes with one codec."""
    return f"codecs-{library.name}-{codec}"


@pytest.fixture(scope="module")
def written(workers: Callable[[str], ClientProcess]) -> dict[str, Any]:
    """Write every topic once; the answer or the exception of each."""
    outcome: dict[str, Any] = {}
    for library, codec in WRITERS:
        worker, topic = workers(library.name), topic_of(library, codec)
        try:
            workers("confluent-kafka").admin("create_topic", name=topic)
            records = [{"partition": 0, **record} for record in RECORDS]
            outcome[topic] = worker(
                "produce", topic=topic, records=records, codec=None if codec == "none" else codec
            )
        except Exception as error:  # noqa: BLE001 (shown by the test of this writer)
            outcome[topic] = error
    return outcome


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
    for row, record in zip(rows, RECORDS, strict=True):
        assert row["key"] == record["key"]
        assert row["value"] == record["value"]
        assert row["headers"] == record.get("headers", [])
        assert row["timestamp"] == record.get("timestamp", row["timestamp"])
        assert row["timestamp"] > 1_300_000_000_000
