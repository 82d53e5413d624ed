"""KIP-848 groups whose members join, leave or change their protocol under load.

Members commit the positions of a partition before they release it. Without broker kills, each
record is read exactly once. With kills, records after the last acknowledged commit may be read
again (at least once), but no record is skipped and none before a commit is read again.

A group that becomes a classic group uses its epoch as generation. On kbroker and Apache Kafka,
classic members in an older generation are fenced and cannot commit what they have read. The checker
knows the records of each such loss. Only these may be read twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from clients.deliveries import Deliveries
from harness.brokers import Broker
from harness.clients import LIBRARIES
from harness.java import command_line
from harness.places import CLIENTS, COMPAT, environment_python

CLIENT = "confluent-kafka"
IS_LONG = "KBROKER_COMPAT_CHURN" in os.environ
MEMBERS, SECONDS, ROUNDS = (30, 30, 20) if IS_LONG else (4, 6, 1)
PARTITIONS = 12
MINUTES_MAX = 10


def start(
    broker: Broker, group: str, members: int, seconds: int, rounds: int
) -> subprocess.Popen[str]:
    """Start the members and wait until one of Java's has read a record."""
    numbers = [str(each) for each in (members, seconds, rounds)]
    command = [str(environment_python("confluent-kafka")), str(CLIENTS / "churn.py")]
    target = [broker.address, group, group]
    java = command_line("kafka-4.4", str(COMPAT / "java" / "ChurnMembers.java"), *target)
    command += [*target, *numbers, *java]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def result(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    """Wait for the end and return what the members read."""
    said, _ = process.communicate(timeout=MINUTES_MAX * 60)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    print(f"\nfigures: {what}: {found}")
    return found


def topic(broker: Broker, name: str, spawn: object, tmp_path: Path) -> None:
    worker = spawn(LIBRARIES["confluent-kafka"], broker.address)  # type: ignore[operator]
    worker.admin("create_topic", name=name, partitions=PARTITIONS)


@pytest.mark.parametrize("kills", [0, 1])
def test_joining_and_leaving_members_skip_no_records(
    own_broker: Broker, spawn: object, tmp_path: Path, kills: int
) -> None:
    name = f"churn-{kills}"
    topic(own_broker, name, spawn, tmp_path)
    process = start(own_broker, name, MEMBERS, SECONDS, 0)
    if kills:
        time.sleep(SECONDS / 3)
        own_broker.stop()
        own_broker.start()
        time.sleep(SECONDS / 3)
        own_broker.kill()
        own_broker.start()
    found = result(process, f"{MEMBERS} members, one replaced each second, {kills} kills")
    assert found["read"] == found["written"] > SECONDS * 10
    assert not found["skipped"]
    assert not found["again_after_commit"]
    assert found["java_read"]
    assert kills or not found["doubled"]


def test_protocol_changes_skip_no_records_and_repeat_only_those_of_fenced_members(
    own_broker: Broker, spawn: object, tmp_path: Path
) -> None:
    topic(own_broker, "convert", spawn, tmp_path)
    process = start(own_broker, "convert", 4, 0, ROUNDS)
    found = result(process, f"4 members from one protocol to the other and back, {ROUNDS} rounds")
    assert found["read"] == found["written"]
    assert not found["skipped"]
    assert not found["again_after_commit"]
    assert found["java_read"]
    assert found["doubled"] == found["explained"]


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ("a read 0, a read 1, a commit 2", {}),
        ("a read 0, a read 1, a commit 1, b read 1", {"doubled": 1}),
        ("a read 0, a read 1, a commit 2, b read 1", {"doubled": 1, "again_after_commit": 1}),
        ("a read 0, a read 2, a commit 3", {"skipped": 1}),
        ("a read 0, a read 1, a commit 1, a lose 0, b read 1", {"doubled": 1, "explained": 1}),
        ("a read 0, a commit 1, a lose 0, b read 0", {"doubled": 1, "again_after_commit": 1}),
        ("a read 0, b lose 0, b read 0", {"doubled": 1}),
        ("a read 0, a lose 0, b read 0, c read 0", {"doubled": 2, "explained": 1}),
    ],
)
def test_checker_reports_wrong_deliveries(events: str, wrong: dict[str, int]) -> None:
    seen = Deliveries()
    for event in events.split(", "):
        member, what, offset = event.split()
        if what == "lose":
            seen.lose(member, "fenced", [0])
        else:
            (seen.deliver if what == "read" else seen.commit)(member, 0, int(offset))
    found = seen.report()
    kinds = ("doubled", "explained", "again_after_commit", "skipped")
    assert {each: found[each] for each in kinds if found[each]} == wrong
