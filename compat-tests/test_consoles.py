"""Requests of web consoles to a broker, sent with the clients that the consoles use.

Redpanda Console uses franz-go; kafbat UI and AKHQ use Java's clients. The programs here send the
requests of each page. Both brokers must return the same results.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from harness.brokers import Broker
from harness.java import java
from harness.places import COMPAT, environment

CLIENT = "consoles"
SECONDS = 60
VALUES = sorted(f"v{number}" for number in range(30))
NEWEST = sorted(f"v{number}" for number in range(24, 30))
CONFIGS = {
    "cleanup.policy": "delete",
    "cleanup.policy is told": True,
    "retention.ms": "-1",
    "retention.ms is told": True,
}


def by_call(output: str) -> dict[str, Any]:
    """Return the results by call name. An error is "error: NAME"."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {
        line["call"]: f"error: {line['error']}" if "error" in line else line["answer"]
        for line in lines
    }


def each(topic: str, offset: int) -> dict[str, int]:
    return {f"{topic}-{number}": offset for number in range(3)}


def test_kafbat_ui_and_akhq_get_expected_responses(own_broker: Broker) -> None:
    topic = "console-java"
    program = str(COMPAT / "java" / "Consoles.java")
    found = by_call(java("kafka-4.4", program, own_broker.address, topic, "console-java-group"))
    assert found == {
        "describeCluster": {"nodes": 1, "controller": True, "id": True},
        "describeFeatures": True,
        "describeConfigs of brokers": {"usual ones": True, "version": False},
        "describeMetadataQuorum": 1,
        "describeLogDirs": 3,
        "listTopics": True,
        "describeTopics": {"partitions": 3, "internal": False, "led": 3},
        "describeConfigs of topics": CONFIGS,
        "listOffsets": {
            "earliest": each(topic, 0),
            "latest": each(topic, 10),
            "at 15 ms": each(topic, 5),
            "newest record": each(topic, 9),
        },
        "describeProducers": 3,
        "listPartitionReassignments": 0,
        "beginningOffsets and endOffsets": [0, 30],
        "offsetsForTimes": 15,
        "messages from the oldest": VALUES,
        "messages from the newest": NEWEST,
        "partitionsFor": 3,
        "listConsumerGroups": ["Empty"],
        "describeConsumerGroups": ["Empty", 0, True],
        "listConsumerGroupOffsets": 12,
        "describeAcls": "error: SecurityDisabledException",
        "describeClientQuotas": 0,
        "describeUserScramCredentials": 0,
        "incrementalAlterConfigs": ["7200000"],
        "createPartitions": None,
        "alterPartitionReassignments": "error: NoReassignmentInProgressException",
        "alterReplicaLogDirs": "error: LogDirNotFoundException",
        "deleteRecords": 5,
        "alterConsumerGroupOffsets": 9,
        "deleteConsumerGroupOffsets": False,
        "deleteConsumerGroups": None,
        "deleteTopics": None,
    }


def test_redpanda_console_gets_expected_responses(own_broker: Broker) -> None:
    topic, group = "console-go", "console-go-group"
    done = subprocess.run(
        [str(environment("go") / "consoles"), own_broker.address, topic, group],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    found = by_call(done.stdout)
    assert found.pop("ApiVersions") == 1
    assert found == {
        "Metadata": [True, True, True],
        "DescribeConfigs of brokers": True,
        "DescribeLogDirs": 3,
        "DescribeConfigs of topics": CONFIGS,
        "ListOffsets": {"start": [0] * 3, "end": [10] * 3, "at 15 ms": [5] * 3},
        "messages from the oldest": VALUES,
        "messages from the newest": NEWEST,
        "ListGroups": ["Empty", ""],
        "DescribeGroups": ["Empty", 0],
        "OffsetFetch": 12,
        "Lag": 18,
        "DescribeACLs": 54,
        "DescribeClientQuotas": 0,
        "DescribeUserScramCredentials": 0,
        "ListTransactions": 0,
        "DescribeProducers": 3,
        "ListPartitionReassignments": 0,
        "IncrementalAlterConfigs": "set",
        "CreatePartitions": "made",
        "DeleteRecords": 5,
        "OffsetCommit": 9,
        "OffsetDelete": True,
        "DeleteGroups": group,
        "DeleteTopics": topic,
    }
