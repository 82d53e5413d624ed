"""kafka-topics: create, list and describe."""

from __future__ import annotations

from kbroker.broker import Broker

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
