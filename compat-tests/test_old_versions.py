"""Clients of message formats 0 and 1.

kafka-python and sarama are pinned to protocol versions from 0.8 to 0.11. Java's clients are 0.9 and
0.10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import LIBRARIES, ClientProcess, eventually
from harness.java import java
from harness.places import COMPAT

CLIENT = "kafka-python-2"
MODERN = "confluent-kafka"
CODECS = ("none", "gzip", "snappy", "lz4")
# Message format that a client of each version writes and reads.
FORMATS = {"0.8.2": 0, "0.9": 0, "0.10": 1, "0.10.2": 1, "0.11.0": 2}
# Only version in FORMATS that Apache Kafka 4 still supports.
LAST = "0.11.0"
RECORDS: list[dict[str, Any]] = [
    {"key": "plain", "value": "plain"},
    {"key": None, "value": "null key"},
    {"key": "null value", "value": None},
    {"key": "", "value": ""},
    {"key": "bytes", "value": "".join(map(chr, range(256)))},
    {"key": "big", "value": "kbroker " * 12_500},
    *({"key": f"key {i}", "value": f"value {i} " * 20} for i in range(200)),
]
STAMPED = [{**record, "timestamp": 1_700_000_000_000 + i} for i, record in enumerate(RECORDS)]

Workers = Callable[[str], ClientProcess]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize with the versions that the broker supports."""
    if "version" not in metafunc.fixturenames:
        return
    apache = metafunc.config.getoption("--broker") == "apache"
    metafunc.parametrize("version", [LAST] if apache else FORMATS)


@pytest.fixture
def old(workers: Workers) -> ClientProcess:
    return workers(CLIENT)


@pytest.fixture(params=[CLIENT, "sarama"])
def any_old(request: pytest.FixtureRequest, workers: Workers) -> ClientProcess:
    """Return a library that can emulate a client of any version."""
    return workers(request.param)


def _read(client: ClientProcess, topic: str, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client("read", topic=topic, count=len(RECORDS), **options)
    assert [row["offset"] for row in rows] == list(range(len(RECORDS)))
    return rows


def _content(rows: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(row["key"], row["value"]) for row in rows]


@pytest.mark.parametrize("codec", CODECS)
def test_old_and_modern_clients_read_each_other(
    any_old: ClientProcess,
    workers: Workers,
    unique: Callable[[str], str],
    version: str,
    codec: str,
) -> None:
    """Old and modern clients read the records of both."""
    if (any_old.name, codec, FORMATS[version]) == ("sarama", "lz4", 0):
        return  # sarama supports lz4 from 0.10
    codec_name = None if codec == "none" else codec
    theirs, ours = unique("old"), unique("new")
    sent = RECORDS if FORMATS[version] == 0 else STAMPED
    for client, topic, records, options in (
        (any_old, theirs, sent, {"version": version}),
        (workers(MODERN), ours, STAMPED, {}),
    ):
        workers(MODERN).admin("create_topic", name=topic, configs={"retention.ms": "-1"})
        placed = [{"partition": 0, **record} for record in records]
        answers = client("produce", topic=topic, records=placed, codec=codec_name, **options)
        assert [one.get("offset") for one in answers] == list(range(len(RECORDS))), answers
    times = [record["timestamp"] for record in STAMPED]
    for topic in (theirs, ours):
        rows = _read(any_old, topic, version=version)
        assert _content(rows) == _content(RECORDS)
        expected = times if FORMATS[version] else [None] * len(RECORDS)
        assert [row["timestamp"] for row in rows] == expected
        rows = _read(workers(MODERN), topic)
        assert _content(rows) == _content(RECORDS)
        if topic is ours or FORMATS[version]:
            assert [row["timestamp"] for row in rows] == times


def test_acks_0_and_pending_fetch_work_with_old_client(
    any_old: ClientProcess, workers: Workers, unique: Callable[[str], str], version: str
) -> None:
    topic = unique("topic")
    workers(MODERN).admin("create_topic", name=topic)
    any_old("produce", topic=topic, records=[{"value": "x"}] * 50, acks=0, version=version)
    rows = any_old("read", topic=topic, count=50, version=version)
    assert [row["offset"] for row in rows] == list(range(50))


def test_group_continues_at_committed_offset(
    old: ClientProcess,
    spawn: Callable[..., ClientProcess],
    workers: Workers,
    unique: Callable[[str], str],
    version: str,
) -> None:
    if version == "0.8.2":
        return  # kafka-python does not support groups of 0.8
    topic, group = unique("topic"), unique("group")
    workers(MODERN).admin("create_topic", name=topic)
    for part in (1, 2):
        old("produce", topic=topic, records=[{"value": str(part)}] * 10, version=version)
        member = spawn(LIBRARIES[CLIENT])
        member("join", member="m", group=group, topics=[topic], version=version)
        rows = eventually(
            lambda member=member: member("rows", member="m"),
            lambda seen: len(seen) >= 10,
            "ten records",
        )
        assert [row["value"] for row in rows] == [str(part)] * 10
        member("commit", member="m")
        member("leave", member="m")


@pytest.mark.parametrize("jar_set", ["kafka-0.9", "kafka-0.10"])
def test_old_java_client_writes_and_reads_all_codecs(
    broker: Broker, workers: Workers, unique: Callable[[str], str], jar_set: str
) -> None:
    """Every codec is written and read with a group. LZ4 framing differs in formats 0 and 1.

    Apache Kafka 4 rejects the requests of these clients.
    """
    topics = {codec: unique(codec) for codec in CODECS}
    for topic in topics.values():
        workers(MODERN).admin("create_topic", name=topic)
    pairs = [f"{codec}={topic}" for codec, topic in topics.items()]
    program = str(COMPAT / "java" / "OldClient.java")
    output = java(jar_set, program, broker.address, *pairs, ok=broker.name != "apache")
    if broker.name != "apache":
        assert [line for line in output.splitlines() if line.endswith(" ok")] == [
            f"{codec} ok" for codec in CODECS
        ], output
