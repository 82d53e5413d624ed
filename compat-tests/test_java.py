"""Kafka's own command-line tools of 4.3, and a few of 3.9, against the broker.

Every tool is one start of a JVM, so each start checks several things.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import LIBRARIES, ClientProcess, eventually
from harness.codecs import RECORDS
from harness.java import java

CLIENT = "java tools"
TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERF = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"

PERF_RECORDS = 30_000

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(broker: Broker) -> Tool:
    """Run a tool of Kafka 4.3 on the shared broker."""

    def run(main: str, *arguments: str, **more: Any) -> str:
        return java("kafka-4.3", main, "--bootstrap-server", broker.address, *arguments, **more)

    return run


@pytest.fixture(scope="module")
def old_tool(broker: Broker) -> Tool:
    """Run a tool of Kafka 3.9 on the shared broker."""

    def run(main: str, *arguments: str, **more: Any) -> str:
        return java("kafka-3.9", main, "--bootstrap-server", broker.address, *arguments, **more)

    return run


@pytest.fixture(scope="module")
def topic(tool: Tool) -> str:
    """A topic made by kafka-topics."""
    name = "java-made"
    settings = ["--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=111111"]
    said = tool(TOPICS, "--create", "--topic", name, *settings)
    assert f"Created topic {name}." in said
    return name


def test_topics_describe(tool: Tool, topic: str) -> None:
    said = tool(TOPICS, "--describe", "--topic", topic)
    head, *rows = said.strip().splitlines()
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention", head)
    assert "retention.ms=111111" in head
    assert len(rows) == 3
    for number, row in enumerate(rows):
        assert re.search(rf"Partition: {number}\s+Leader: (\d+)\s+Replicas: \1\s+Isr: \1", row)


def test_topics_alter_list_delete(tool: Tool) -> None:
    tool(TOPICS, "--create", "--topic", "java-passing", "--partitions", "1")
    tool(TOPICS, "--alter", "--topic", "java-passing", "--partitions", "4")
    assert "PartitionCount: 4" in tool(TOPICS, "--describe", "--topic", "java-passing")
    assert "java-passing" in tool(TOPICS, "--list").split()
    tool(TOPICS, "--delete", "--topic", "java-passing")
    listed = eventually(
        lambda: tool(TOPICS, "--list", "--exclude-internal").split(),
        lambda seen: "java-passing" not in seen,
        "deleted",
    )
    assert "__consumer_offsets" not in listed


def test_topics_refuses(tool: Tool, topic: str) -> None:
    said = tool(TOPICS, "--create", "--topic", topic, ok=False)
    assert f"topic '{topic}' already exists" in said.lower()
    assert "TopicExistsException" in said


CONSOLE_LINES = ["plain", "ünïcödé", "", "with\ttab", *(f"line {i}" for i in range(50))]


@pytest.fixture(scope="module")
def console(tool: Tool) -> str:
    """Lines go in through the console producer; what the console consumer (a group) printed."""
    topic = "java-console"
    tool(TOPICS, "--create", "--topic", topic)
    lines = "".join(f"h:{i},other:x|key {i}|{line}\n" for i, line in enumerate(CONSOLE_LINES))
    parse = ["parse.key=true", "parse.headers=true", "key.separator=|", "headers.delimiter=|"]
    options = [word for one in parse for word in ("--reader-property", one)]
    tool(PRODUCER, "--topic", topic, "--compression-codec", "zstd", *options, stdin=lines)
    show = ["print.key=true", "print.headers=true", "print.partition=true", "print.offset=true"]
    options = [word for one in show for word in ("--formatter-property", one)]
    return tool(
        CONSUMER,
        *("--topic", topic, "--group", "java-console", "--from-beginning"),
        *("--max-messages", str(len(CONSOLE_LINES)), "--timeout-ms", "20000", *options),
    )


def test_console_producer_and_consumer(console: str) -> None:
    expected = [
        f"Partition:0\tOffset:{i}\th:{i},other:x\tkey {i}\t{line}"
        for i, line in enumerate(CONSOLE_LINES)
    ]
    assert console.splitlines()[: len(expected)] == expected


def test_consumer_groups(tool: Tool, console: str) -> None:
    """Describe, reset and delete the group that the console consumer left behind."""
    described = tool(GROUPS, "--describe", "--group", "java-console")
    count = len(CONSOLE_LINES)
    assert re.search(rf"java-console\s+java-console\s+0\s+{count}\s+{count}\s+0\s+-", described)
    assert "java-console" in tool(GROUPS, "--list").split()
    state = tool(GROUPS, "--describe", "--state", "--group", "java-console")
    assert re.search(r"java-console\s+.*Empty\s+0", state)
    reset = ["--reset-offsets", "--to-offset", "7", "--all-topics", "--execute"]
    assert re.search(
        r"java-console\s+java-console\s+0\s+7", tool(GROUPS, "--group", "java-console", *reset)
    )
    again = tool(GROUPS, "--describe", "--group", "java-console")
    assert re.search(rf"java-console\s+0\s+7\s+{count}\s+{count - 7}\s", again)
    tool(GROUPS, "--delete", "--group", "java-console")
    gone = tool(GROUPS, "--describe", "--group", "java-console")
    assert "GroupIdNotFoundException: Group java-console not found." in gone


def test_group_with_a_living_member(tool: Tool, workers: Callable[[str], ClientProcess]) -> None:
    worker = workers("confluent-kafka")
    worker.admin("create_topic", name="java-living", partitions=2)
    worker("join", member="java", topics=["java-living"], group="java-living")
    try:
        eventually(
            lambda: worker("state", member="java")["assigned"], lambda seen: len(seen) == 2, "share"
        )
        members = tool(GROUPS, "--describe", "--members", "--verbose", "--group", "java-living")
        assert re.search(r"java-living\s+rdkafka-\S+\s+/127\.0\.0\.1\s+rdkafka\s+2", members)
        refused = tool(GROUPS, "--delete", "--group", "java-living")
        assert "GroupNotEmptyException" in refused
    finally:
        worker("leave", member="java")


def test_perf_tools(tool: Tool) -> None:
    tool(TOPICS, "--create", "--topic", "java-perf", "--partitions", "3")
    said = tool(
        PRODUCER_PERF,
        *("--topic", "java-perf", "--num-records", str(PERF_RECORDS), "--record-size", "500"),
        *("--throughput", "-1", "--command-property", "acks=all"),
    )
    assert f"{PERF_RECORDS} records sent" in said
    said = tool(CONSUMER_PERF, "--topic", "java-perf", "--num-records", str(PERF_RECORDS))
    row = next(line for line in said.splitlines() if re.match(r"\d{4}-", line))
    assert int(row.split(",")[4]) == PERF_RECORDS
    offsets = tool(OFFSETS, "--topic", "java-perf")
    counts = re.findall(r"java-perf:\d:(\d+)", offsets)
    assert len(counts) == 3
    assert sum(map(int, counts)) == PERF_RECORDS


def test_java_reads_every_codec(tool: Tool, written: dict[str, Any]) -> None:
    """One consumer over all topics of the codec matrix."""
    wanted = len(written) * len(RECORDS)
    said = tool(
        CONSUMER,
        *("--include", "codecs-.*", "--from-beginning", "--max-messages", str(wanted)),
        *("--timeout-ms", "30000", "--formatter-property", "print.headers=true"),
    )
    assert f"Processed a total of {wanted} messages" in said
    assert said.count("a:1,b:,a:2\t") == len(written)
    assert said.count("kbroker " * 12_500) == len(written)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_java_writes_every_codec(
    tool: Tool, workers: Callable[[str], ClientProcess], codec: str
) -> None:
    topic = f"java-codec-{codec}"
    lines = [f"{codec} {i} " * 10 for i in range(100)]
    tool(PRODUCER, "--topic", topic, "--compression-codec", codec, stdin="\n".join(lines) + "\n")
    for library in LIBRARIES.values():
        rows = workers(library.name)("read", topic=topic, count=len(lines))
        assert [row["value"] for row in rows] == lines, library.name


def test_tools_of_kafka_3_9(old_tool: Tool, broker: Broker) -> None:
    topic, count = "java-old", 5_000
    old_tool(TOPICS, "--create", "--topic", topic, "--partitions", "2")
    assert "PartitionCount: 2" in old_tool(TOPICS, "--describe", "--topic", topic)
    said = java(
        "kafka-3.9",
        PRODUCER_PERF,
        *("--topic", topic, "--num-records", str(count), "--record-size", "100"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.address}"),
    )
    assert f"{count} records sent" in said
    said = old_tool(
        CONSUMER,
        *("--topic", topic, "--group", "java-old", "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "20000"),
    )
    assert f"Processed a total of {count} messages" in said
    described = old_tool(GROUPS, "--describe", "--group", "java-old")
    rows = re.findall(r"java-old\s+java-old\s+\d\s+(\d+)\s+(\d+)\s+0\s", described)
    assert sum(int(committed) for committed, _ in rows) == count
