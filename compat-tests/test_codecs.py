"""Every client writes with every codec that it supports and reads what all clients wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.clients import LIBRARIES, OTHERS_ONLY, PYTHON_CLIENTS, ClientProcess, Library
from harness.codecs import RECORDS, WRITERS, read_through, records_of, topic_of

CLIENT = "codec matrix"
REFERENCE = "confluent-kafka"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize with pairs of reader and writer: those of Python, and in soak tests all.

    Each other client reads its own records and those of the reference client, and the reverse.
    """
    if "reader" not in metafunc.fixturenames:
        return
    metafunc.parametrize(
        ("reader", "writer", "codec"),
        [
            pytest.param(reader, writer, codec, id=f"{reader.name}-{writer.name}-{codec}")
            for reader in LIBRARIES.values()
            for writer, codec in WRITERS
            if OTHERS_ONLY
            or set(PYTHON_CLIENTS) >= {reader, writer}
            or reader is writer
            or REFERENCE in (reader.name, writer.name)
            if codec in reader.codecs
            if reader.reads_null_headers or not writer.null_headers
        ],
    )


@pytest.mark.parametrize(("writer", "codec"), WRITERS, ids=lambda one: getattr(one, "name", one))
def test_client_writes_all_records_with_codec(
    written: dict[str, Any], writer: Library, codec: str
) -> None:
    answers = written[topic_of(writer, codec)]
    if isinstance(answers, Exception):
        raise answers
    assert [one.get("offset") for one in answers] == list(range(len(RECORDS))), answers


def test_reader_gets_records_of_writer_unchanged(
    written: dict[str, Any],
    workers: Callable[[str], ClientProcess],
    reader: Library,
    writer: Library,
    codec: str,
) -> None:
    topic = topic_of(writer, codec)
    rows = workers(reader.name)("read", topic=topic, count=len(RECORDS))
    assert [row["offset"] for row in rows] == list(range(len(RECORDS)))
    for row, record in zip(rows, records_of(writer), strict=True):
        assert read_through(row, writer, reader) == read_through(record, writer, reader)
        assert row["timestamp"] == record.get("timestamp", row["timestamp"])
        assert row["timestamp"] > 1_300_000_000_000
