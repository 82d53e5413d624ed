"""Parser and page of the cluster-size benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.clusters import MetadataAnswer, Placement
from benchmarks.scale import page
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import encode_response
from kbroker.protocol.messages.metadata import MetadataResponse


def test_metadata_response_is_parsed() -> None:
    partitions = [(1, [1, 2, 3], [1, 2]), (-1, [3], [3])]
    rows = [
        MetadataResponse.Partition(
            partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=isr
        )
        for index, (leader, replicas, isr) in enumerate(partitions)
    ]
    brokers = [
        MetadataResponse.Broker(node_id=1, host="one", port=9092, rack="a"),
        MetadataResponse.Broker(node_id=2, host="two", port=9093, rack=None),
    ]
    topics = [
        MetadataResponse.Topic(name="other"),
        MetadataResponse.Topic(name="scaled", partitions=rows),
    ]
    response = MetadataResponse(brokers=brokers, controller_id=2, topics=topics)
    parts: list[Any] = list(encode_response(7, ApiKey.METADATA, 1, response))
    answer = MetadataAnswer(b"".join(parts)[4:])  # after the length prefix
    assert answer.controller == 2
    assert [*answer.topics()] == [("other", []), ("scaled", [Placement(1, 2), Placement(-1, 1)])]


def test_cell_shows_median_and_spread() -> None:
    row = page.Row("kill -9", "s")
    assert page.cell(row, []) == "-"
    assert page.cell(row, [1.234]) == "1.23 s"
    assert page.cell(row, [12.34, 1234.5, 5.0]) == "12.3 s (5 to 1,234)"


def test_write_replaces_section_of_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scale.md"
    path.write_text("a\n<!-- x -->\nold\n<!-- /x -->\nb\n")
    monkeypatch.setattr(page, "DOCUMENT", path)
    page.write("x", "new\n")
    assert path.read_text() == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"
