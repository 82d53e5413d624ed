"""Kafka's Java client, through its console tools (other tools: test_tools.py)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import LIBRARIES, ClientProcess, eventually
from harness.codecs import RECORDS, WRITERS
from harness.java import ToolFailed
from harness.tools import Tools

CLIENT = "java tools"
GROUPS = "kafka-consumer-groups"
PRODUCER = "kafka-console-producer"
CONSUMER = "kafka-console-consumer"

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(broker: Broker, tools: Tools) -> Tool:
    """Return a function that runs a tool on the shared broker. Raises ToolFailed."""

    def run(command: str, *arguments: str, stdin: str = "") -> str:
        address = ["--bootstrap-server", broker.address]
        done = tools.run(command, *address, *arguments, stdin=stdin)
        if done.status:
            raise ToolFailed(f"{command} {arguments} ended with {done}")
        return done.stdout + done.stderr

    return run


def test_group_with_live_member_is_described_and_not_deleted(
    tool: Tool, workers: Callable[[str], ClientProcess]
) -> None:
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


def test_java_reads_every_codec(tool: Tool, written: dict[str, Any]) -> None:
    """One consumer reads all topics of the codec matrix."""
    wanted = len(written) * len(RECORDS)
    output = tool(
        CONSUMER,
        *("--include", "codecs-.*", "--from-beginning", "--max-messages", str(wanted)),
        *("--timeout-ms", "30000", "--formatter-property", "print.headers=true"),
    )
    assert f"Processed a total of {wanted} messages" in output
    in_order = [library for library, _ in WRITERS if library.headers == "list"]
    assert output.count("a:1,b:,a:2\t") == len(in_order)
    assert output.count("kbroker " * 12_500) == len(written)


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
