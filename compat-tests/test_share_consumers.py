"""Java's share consumers: no record is lost if a member or the broker is killed (KIP-932)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import LIBRARIES, ClientProcess, ScriptProcess, eventually
from harness.java import command_line
from harness.places import COMPAT
from harness.tools import Tools

CLIENT = "java tools"
GROUPS = "kafka-share-groups"
# Maximum seconds to wait for members.
SECONDS = 90.0

Join = Callable[..., ScriptProcess]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Return a function that starts members, which end with the test."""
    with ExitStack() as stack:

        def start(broker: Broker, group: str, *topics: str) -> ScriptProcess:
            program = str(COMPAT / "java" / "ShareMember.java")
            command = command_line("kafka-4.4", program, broker.address, group, *topics)
            return stack.enter_context(
                closing(ScriptProcess("share member", command, tmp_path / "member.err"))
            )

        yield start


def prepare(
    broker: Broker, worker: ClientProcess, tools: Tools, topic: str, group: str, partitions: int
) -> None:
    """Create a topic and configure a group that reads it from the start."""
    worker.admin("create_topic", name=topic, partitions=partitions)
    said = tools.run(
        "kafka-configs",
        *("--bootstrap-server", broker.address, "--alter"),
        *("--entity-type", "groups", "--entity-name", group),
        *("--add-config", "share.auto.offset.reset=earliest,share.assignment.interval.ms=0"),
    )
    assert not said.status, said


def fill(worker: ClientProcess, topic: str, partitions: int, values: range) -> None:
    records = [{"value": str(value), "partition": value % partitions} for value in values]
    answers = worker("produce", topic=topic, records=records)
    assert all("offset" in answer for answer in answers), answers


def read(*members: ScriptProcess) -> Counter[int]:
    """Return how often each value was accepted."""
    return Counter(int(row["value"]) for member in members for row in member("rows"))


def wait_for_values(values: range, *members: ScriptProcess) -> None:
    """Wait until every value was accepted by a member."""
    eventually(lambda: read(*members), lambda seen: seen.keys() >= {*values}, "records", SECONDS)


def test_members_share_records_of_one_partition(
    broker: Broker, workers: Any, tools: Tools, unique: Callable[[str], str], join: Join
) -> None:
    topic, group = unique("topic"), unique("group")
    worker = workers("confluent-kafka")
    prepare(broker, worker, tools, topic, group, 1)
    members = [join(broker, group, topic) for _ in range(3)]
    sent = 0

    def all_members_read() -> bool:
        nonlocal sent
        fill(worker, topic, 1, range(sent, sent + 50))
        sent += 50
        return all(member("rows") for member in members)

    eventually(all_members_read, bool, "a share of each", SECONDS)
    wait_for_values(range(sent), *members)
    assert set(read(*members).values()) == {1}, "a record was accepted twice"
    described = tools.run(
        GROUPS, "--bootstrap-server", broker.address, "--describe", "--group", group, "--members"
    )
    assert len([line for line in described.stdout.splitlines() if group in line]) == 3
    for member in members:
        member("leave")
    state = tools.run(GROUPS, "--bootstrap-server", broker.address, "--delete", "--group", group)
    assert "was successful" in state.stdout


def test_released_record_is_delivered_to_other_member(
    broker: Broker, workers: Any, tools: Tools, unique: Callable[[str], str], join: Join
) -> None:
    topic, group = unique("topic"), unique("group")
    worker = workers("confluent-kafka")
    prepare(broker, worker, tools, topic, group, 1)
    first = join(broker, group, topic)
    fill(worker, topic, 1, range(1))
    wait_for_values(range(1), first)
    first("release")
    fill(worker, topic, 1, range(1, 2))
    first("ended")
    second = join(broker, group, topic)
    wait_for_values(range(1, 2), second)
    (row,) = second("rows")
    # Java's client may fetch the released record again while it closes.
    assert row["deliveries"] in (2, 3)
    second("leave")


def test_members_continue_after_kill_of_broker_or_member(
    own_broker: Broker, spawn: Any, tools: Tools, unique: Callable[[str], str], join: Join
) -> None:
    topic, group = unique("topic"), unique("group")
    worker = spawn(LIBRARIES["confluent-kafka"], own_broker.address)
    prepare(own_broker, worker, tools, topic, group, 3)
    members = [join(own_broker, group, topic) for _ in range(2)]
    fill(worker, topic, 3, range(60))
    wait_for_values(range(60), *members)
    own_broker.kill()
    own_broker.start()
    fill(worker, topic, 3, range(60, 120))
    wait_for_values(range(60, 120), *members)
    gone = members.pop()
    before = read(gone)
    gone.kill()
    fill(worker, topic, 3, range(120, 180))
    eventually(
        lambda: read(*members) | before, lambda seen: seen.keys() >= {*range(180)}, "all", SECONDS
    )
    for member in members:
        member("leave")
