"""kafka-topics: create, list and describe."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.broker import Broker
from kbroker.protocol.errors import ErrorCode

from ..commands import Cli


async def test_kafka_topics_creates_and_describes_topics(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    topics = ("compat", "kafka-topics.sh", *server)
    made = await cli(
        *topics, "--create", "--topic", "orders", "--partitions=2", "--config", "retention.ms=7"
    )
    assert made.stdout == "Created topic orders.\n"
    second_output = await cli(*topics, "--create", "--topic", "orders", status=1)
    assert (
        second_output.stdout
        == "Error while executing topic command : Topic 'orders' already exists.\n"
    )
    await cli(*topics, "--create", "--if-not-exists", "--topic", "orders")
    assert (await cli(*topics, "--list")).stdout == "orders\n"
    lines = (await cli(*topics, "--describe", "--topic", "orders")).stdout.splitlines()
    assert lines[0].endswith("\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=7")
    assert lines[1].startswith("\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\t")
    await cli(*topics, "--delete", "--topic", "ord.*")
    assert (await cli(*topics, "--list")).stdout == ""


async def test_kafka_topics_that_fails_names_changed_and_remaining_topics(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ("compat", "kafka-topics", "--bootstrap-server", broker.bootstrap_servers)
    for name, partitions in (("a", "1"), ("b", "3"), ("c", "1")):
        await cli(*topics, "--create", "--topic", name, "--partitions", partitions)
    output = await cli(*topics, "--alter", "--topic", ".*", "--partitions", "2", status=1)
    assert output.stderr.splitlines() == [
        "kbroker: changed: a",
        "kbroker: not confirmed as changed: b, c; repeat the command for these",
    ]

    async def delete(_: object, names: Sequence[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        codes = dict.fromkeys(names, ErrorCode.NONE) | {"b": ErrorCode.TOPIC_DELETION_DISABLED}
        return {name: (code, None) for name, code in codes.items()}

    monkeypatch.setattr("kbroker.client.topics.delete_topics", delete)
    output = await cli(*topics, "--delete", "--topic", ".*", status=1)
    assert output.stderr.splitlines()[0] == "kbroker: changed: a, c"


async def test_kafka_topics_creates_topic_if_output_is_closed(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    topics = ("compat", "kafka-topics", "--bootstrap-server", broker.bootstrap_servers)
    with monkeypatch.context() as patch:
        patch.setattr("kbroker.cli.output.say", closed)
        await cli(*topics, "--create", "--topic", "a.b")
    assert "a.b" in broker.running().cluster.topics
