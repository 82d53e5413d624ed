"""Topics declared in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.topic_files import BadTopic, DeclaredTopic, parse_topic

from ..commands import Cli, ReadJson


def test_topic_of_command_line_accepts_values_with_units() -> None:
    configs = {"retention.ms": "172800000", "segment.bytes": "1000000000"}
    found = parse_topic("orders:3:retention.ms=2d,segment.bytes=1GB")
    assert found == DeclaredTopic("orders", 3, configs=configs)
    with pytest.raises(BadTopic, match="unknown unit 'w'"):
        parse_topic("orders:3:retention.ms=2w")


async def test_create_restores_topics_from_describe_output(cli: Cli, read_json: ReadJson) -> None:
    await cli("topic", "create", "a", "-p", "2", "-c", "cleanup.policy=compact")
    await cli("topic", "create", "b")
    before = await read_json("topic", "describe", "a", "b")
    for printed in ("json", "ndjson"):
        text = (await cli("topic", "describe", "a", "b", "-o", printed)).stdout
        await cli("topic", "delete", "a", "b", "--yes")
        await cli("topic", "create", "--file", "-", stdin=text)
        after = await read_json("topic", "describe", "a", "b")
        for row in (*before, *after):
            row["topic_id"] = None
        assert after == before


async def test_create_reads_topics_from_toml(cli: Cli, read_json: ReadJson, tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    orders_table = '[topics.orders]\npartitions = 4\nconfigs = { "retention.ms" = "1s" }\n'
    file.write_text(orders_table + "[topics.users]\n")
    await cli("topic", "create", "--file", str(file))
    orders, users = await read_json("topic", "describe", "orders", "users")
    assert (len(orders["partitions"]), len(users["partitions"])) == (4, 1)
    assert orders["configs"] == {"retention.ms": "1000"}
