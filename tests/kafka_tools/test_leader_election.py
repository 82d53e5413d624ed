"""kafka-leader-election."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.broker import Broker

from ..commands import Cli


async def test_leader_election_reports_each_partition(
    cli: Cli, broker: Broker, tmp_path: Path
) -> None:
    await cli("topic", "create", "t", "-p", "2")
    tool = ("compat", "kafka-leader-election", "--bootstrap-server", broker.bootstrap_servers)
    all_partitions = (*tool, "--election-type", "preferred", "--all-topic-partitions")
    done = await cli(*all_partitions)
    assert done.stdout == "Valid replica already elected for partitions t-0, t-1\n"
    one = await cli(*tool, "--election-type", "UNCLEAN", "--topic", "t", "--partition", "1")
    assert one.stdout == "Valid replica already elected for partitions t-1\n"
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": "none", "partition": 0}]}))
    from_file = ("--election-type", "preferred", "--path-to-json-file", str(file))
    failed = await cli(*tool, *from_file, status=1)
    assert "for partition: none-0: org.apache.kafka.common.errors.Unknown" in failed.stdout
    assert "1 replica(s) could not be elected" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "election-type"),
        (("--election-type", "preferred"), "--all-topic-partitions, --topic"),
        (("--election-type", "preferred", "--topic", "t"), "--topic and --partition"),
    ],
)
async def test_leader_election_rejects_incomplete_options(
    cli: Cli, broker: Broker, arguments: tuple[str, ...], message: str
) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    failed = await cli("compat", "kafka-leader-election", *server, *arguments, status=1)
    assert message in failed.stderr
