"""Consumer groups of KIP-848 with librdkafka, franz-go, Java's client and Kafka's tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import LIBRARIES, ClientProcess, Library, eventually
from harness.tools import Tools

CLIENT = "confluent-kafka"
# Default client id of each library that supports the consumer protocol.
CLIENT_IDS = {"confluent-kafka": "rdkafka", "franz-go": "kgo"}
ONE_LIBRARY = pytest.mark.parametrize("library", [CLIENT], indirect=True)
NEW = {"strategy": "consumer"}
OLD = {"strategy": "range", "session_ms": 30_000}
GROUPS = "kafka-consumer-groups"
CONSUMER = "kafka-console-consumer"

Spawn = Callable[..., ClientProcess]
Unique = Callable[[str], str]
Run = Callable[..., str]


@pytest.fixture(params=CLIENT_IDS)
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]


@pytest.fixture
def tool(broker: Broker, tools: Tools) -> Run:
    """Return a function that runs one of Kafka's tools on the shared broker."""

    def run(command: str, *arguments: str) -> str:
        output = tools.run(command, "--bootstrap-server", broker.address, *arguments)
        assert not output.status, output
        return output.stdout + output.stderr

    return run


def join(process: ClientProcess, topic: str | None, group: str, **options: Any) -> ClientProcess:
    topics = [] if topic is None else [topic]
    process("join", member="me", topics=topics, group=group, **options)
    return process


def assigned(member: ClientProcess) -> list[Any]:
    return list(member("state", member="me")["assigned"])


def wait_for_partition_counts(
    wanted: list[int], *members: ClientProcess, seconds: float = 60.0
) -> None:
    """Wait until the members own these numbers of partitions, in any order, without overlap."""

    def held() -> list[list[Any]]:
        return [assigned(member) for member in members]

    def is_wanted(seen: list[list[Any]]) -> bool:
        every = [str(each) for part in seen for each in part]
        return sorted(map(len, seen)) == sorted(wanted) and len(set(every)) == len(every)

    eventually(held, is_wanted, "shares", seconds)


def fill(worker: ClientProcess, topic: str, partitions: int, values: range) -> None:
    records = [{"value": str(value), "partition": value % partitions} for value in values]
    answers = worker("produce", topic=topic, records=records)
    assert all("offset" in answer for answer in answers), answers


def wait_for_values(values: range, *members: ClientProcess) -> None:
    """Wait until every value was received by one of the members."""
    wanted = {str(value) for value in values}
    eventually(
        lambda: {row["value"] for each in members for row in each("rows", member="me")},
        lambda seen: seen >= wanted,
        "records",
        60.0,
    )


def test_consumer_protocol_reassigns_partitions_when_members_join_and_leave(
    library: Library, workers: Any, spawn: Spawn, unique: Unique, tool: Run
) -> None:
    topic, group = unique("topic"), unique("group")
    worker = workers(library.name)
    worker.admin("create_topic", name=topic, partitions=4)
    first = join(spawn(library), topic, group, **NEW)
    wait_for_partition_counts([4], first)
    second = join(spawn(library), topic, group, **NEW)
    wait_for_partition_counts([2, 2], first, second)
    fill(worker, topic, 4, range(40))
    wait_for_values(range(40), first, second)
    listed = tool(GROUPS, "--list", "--state", "--type", "consumer")
    assert re.search(rf"{group}\s+Consumer\s+Stable", listed)
    described = tool(GROUPS, "--describe", "--group", group, "--members", "--verbose")
    row = rf"{group}\s+\S+\s+/127\.0\.0\.1\s+{CLIENT_IDS[library.name]}\s+2\s"
    assert len(re.findall(row, described)) == 2
    first("leave", member="me")
    wait_for_partition_counts([4], second)
    second("leave", member="me")
    state = tool(GROUPS, "--describe", "--group", group, "--state")
    assert re.search(r"uniform\s+Empty\s+0", state)
    assert "was successful" in tool(GROUPS, "--delete", "--group", group)


def test_pattern_subscription_includes_later_topics(
    library: Library, workers: Any, spawn: Spawn, unique: Unique
) -> None:
    prefix, group = unique("pattern"), unique("group")
    worker = workers(library.name)
    worker.admin("create_topic", name=f"{prefix}-1", partitions=2)
    member = join(spawn(library), None, group, pattern=f"^{prefix}-.*", **NEW)
    wait_for_partition_counts([2], member)
    worker.admin("create_topic", name=f"{prefix}-2", partitions=3)
    wait_for_partition_counts([5], member)


@ONE_LIBRARY
def test_returning_static_member_gets_same_partitions(
    library: Library, workers: Any, spawn: Spawn, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    workers(library.name).admin("create_topic", name=topic, partitions=4)
    one = join(spawn(library), topic, group, instance="one", **NEW)
    two = join(spawn(library), topic, group, instance="two", **NEW)
    wait_for_partition_counts([2, 2], one, two)
    before = assigned(one)
    one("leave", member="me")
    again = join(spawn(library), topic, group, instance="one", **NEW)
    eventually(lambda: assigned(again), lambda seen: seen == before, "its share", 60.0)
    assert len(assigned(two)) == 2


@ONE_LIBRARY
def test_java_consumer_reads_and_kafka_tool_resets_offsets(
    tool: Run, workers: Any, library: Library, unique: Unique
) -> None:
    topic, group = unique("java"), unique("group")
    worker = workers(library.name)
    worker.admin("create_topic", name=topic, partitions=4)
    fill(worker, topic, 4, range(100))
    for arguments in (("--topic", topic), ("--include", f"{topic}.*")):
        output = tool(
            CONSUMER,
            *arguments,
            *("--group", group, "--from-beginning", "--max-messages", "100"),
            *("--timeout-ms", "60000", "--command-property", "group.protocol=consumer"),
        )
        assert {*map(str, range(100))} <= set(output.split())
        reset = tool(
            GROUPS,
            *("--group", group, "--reset-offsets", "--to-earliest", "--execute"),
            *("--topic", topic),
        )
        assert len(re.findall(rf"{group}\s+{topic}\s+\d\s+0", reset)) == 4
    assert re.search(rf"{group}\s+Consumer", tool(GROUPS, "--list", "--type"))


def test_members_continue_after_broker_is_killed(
    library: Library, own_broker: Broker, spawn: Spawn, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    worker = spawn(library, own_broker.address)
    worker.admin("create_topic", name=topic, partitions=4)
    members = [join(spawn(library, own_broker.address), topic, group, **NEW) for _ in range(2)]
    wait_for_partition_counts([2, 2], *members)
    fill(worker, topic, 4, range(40))
    wait_for_values(range(40), *members)
    before = sorted(str(assigned(member)) for member in members)
    own_broker.kill()
    own_broker.start()
    fill(worker, topic, 4, range(40, 80))
    wait_for_values(range(40, 80), *members)
    assert sorted(str(assigned(member)) for member in members) == before


def test_group_migrates_between_protocols_member_by_member(
    library: Library, workers: Any, spawn: Spawn, unique: Unique, tool: Run
) -> None:
    topic, group = unique("topic"), unique("group")
    worker = workers(library.name)
    worker.admin("create_topic", name=topic, partitions=4)
    members = [join(spawn(library), topic, group, **OLD) for _ in range(2)]
    wait_for_partition_counts([2, 2], *members)
    kinds = ["Classic"]
    sent = 0
    for options in (NEW, OLD):
        for position in range(2):
            members[position]("leave", member="me")
            members[position] = join(spawn(library), topic, group, **options)
            wait_for_partition_counts([2, 2], *members)
            fill(worker, topic, 4, range(sent, sent + 20))
            wait_for_values(range(sent, sent + 20), *members)
            sent += 20
            listed = tool(GROUPS, "--list", "--type")
            found = re.search(rf"{group}\s+(\w+)", listed)
            assert found is not None
            kinds.append(found[1])
    assert kinds == ["Classic", "Consumer", "Consumer", "Consumer", "Classic"]
