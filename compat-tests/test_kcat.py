"""kcat, the command line tool based on librdkafka."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import ALL_CODECS, ClientProcess, eventually
from harness.times import BASE_MS

CLIENT = "kcat"
SECONDS = 30.0
QUICK = ("-X", "session.timeout.ms=30000", "-X", "heartbeat.interval.ms=200")

Unique = Callable[[str], str]
Kcat = Callable[..., str]


def program() -> str:
    """Return the path of kcat. Fails with the command that installs it."""
    found = shutil.which("kcat")
    assert found, "kcat is missing: install it with `make system-packages`"
    return found


@pytest.fixture
def kcat(broker: Broker) -> Kcat:
    """Return a function that runs kcat against the broker and returns its output (stderr last)."""

    def run(*arguments: str, stdin: str = "", ok: bool = True, address: str = "") -> str:
        done = subprocess.run(
            [program(), "-b", address or broker.address, *arguments],
            input=stdin.encode("latin-1"),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        output = (done.stdout + done.stderr).decode("latin-1")
        assert (done.returncode == 0) is ok, output
        return output

    return run


@pytest.fixture
def admin(workers: Callable[[str], ClientProcess]) -> ClientProcess:
    """Return another client to create topics and describe groups, because kcat cannot."""
    return workers("confluent-kafka")


class Member:
    """`kcat -G` in the background, with records as NDJSON and rebalances on stderr."""

    def __init__(self, broker: Broker, directory: Any, group: str, topic: str) -> None:
        self.records, self.errors = directory / "records", directory / "errors"
        directory.mkdir()
        with self.records.open("wb") as out, self.errors.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    *(program(), "-b", broker.address, *QUICK),
                    *("-X", "auto.offset.reset=earliest", "-J", "-u", "-G", group, topic),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def values(self) -> list[str]:
        """Return the values received so far, from complete lines only."""
        lines = self.records.read_text().split("\n")[:-1]
        return [json.loads(line)["payload"] for line in lines]

    def share(self) -> int:
        """Return the number of partitions in its last assignment."""
        output = self.errors.read_text().splitlines()
        assigned = [line for line in output if "assigned:" in line]
        return assigned[-1].count("[") if assigned else 0

    def leave(self) -> None:
        """Interrupt kcat, which then commits and leaves the group."""
        self.process.terminate()
        self.process.wait(SECONDS)


@pytest.fixture
def join(broker: Broker, tmp_path: Any) -> Iterator[Callable[[str, str], Member]]:
    """Return a function that starts group members, which end with the test."""
    members: list[Member] = []

    def start(group: str, topic: str) -> Member:
        members.append(Member(broker, tmp_path / f"member-{len(members)}", group, topic))
        return members[-1]

    yield start
    for one in members:
        one.process.kill()
        one.process.wait()


def read(kcat: Kcat, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """Return all records of a topic in kcat's JSON format."""
    output = kcat("-C", "-t", topic, "-e", "-q", "-J", *arguments)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_kcat_writes_and_reads_each_codec(
    kcat: Kcat, admin: ClientProcess, unique: Unique, codec: str
) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic)
    lines = [f"key {i}|value {i} {'x' * 200}" for i in range(100)]
    kcat("-P", "-t", topic, "-z", codec, "-K|", "-X", "linger.ms=100", stdin="\n".join(lines))
    wanted = [tuple(line.split("|")) for line in lines]
    assert [(row["key"], row["payload"]) for row in read(kcat, topic)] == wanted
    rows = admin("read", topic=topic, count=100)
    assert [(row["key"], row["value"]) for row in rows] == wanted


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_kcat_reads_records_of_other_client(
    kcat: Kcat, admin: ClientProcess, unique: Unique, codec: str
) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic)
    records = [{"key": f"key {i}", "value": f"value {i} " * 20, "partition": 0} for i in range(100)]
    admin("produce", topic=topic, records=records, codec=None if codec == "none" else codec)
    rows = read(kcat, topic)
    assert [(row["key"], row["payload"]) for row in rows] == [
        (record["key"], record["value"]) for record in records
    ]


def test_headers_and_null_values_are_kept(kcat: Kcat, admin: ClientProcess, unique: Unique) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic)
    kcat("-P", "-t", topic, "-K|", "-Z", "-H", "a=1", "-H", "b=", "-H", "a=2", stdin="gone|")
    (row,) = admin("read", topic=topic)
    assert (row["key"], row["value"]) == ("gone", None)
    assert row["headers"] == [["a", "1"], ["b", ""], ["a", "2"]]
    (row,) = read(kcat, topic)
    assert (row["key"], row["payload"]) == ("gone", None)
    assert row["headers"] == ["a", "1", "b", "", "a", "2"]


def test_kcat_reads_from_offsets_and_timestamps(
    kcat: Kcat, admin: ClientProcess, unique: Unique
) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic)
    records = [
        {"value": str(i), "partition": 0, "timestamp": BASE_MS + 1000 * i} for i in range(20)
    ]
    admin("produce", topic=topic, records=records)
    whole = kcat("-C", "-t", topic, "-e", "-q", "-f", r"%t %p %o %T %S %s\n")
    assert whole.splitlines()[7] == f"{topic} 0 7 {BASE_MS + 7000} 1 7"
    assert len(whole.splitlines()) == 20
    for arguments, values in {
        ("-o", "15"): range(15, 20),
        ("-o", "-3"): range(17, 20),
        ("-o", "beginning", "-c", "2"): range(2),
        ("-o", f"s@{BASE_MS + 5000}", "-o", f"e@{BASE_MS + 8000}"): range(5, 8),
    }.items():
        assert [row["payload"] for row in read(kcat, topic, *arguments)] == [*map(str, values)]
    found = kcat("-Q", "-t", f"{topic}:0:{BASE_MS + 9_001}")
    assert found.split() == [topic, "[0]", "offset", "10"]


def test_kcat_lists_metadata(
    broker: Broker, kcat: Kcat, admin: ClientProcess, unique: Unique
) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic, partitions=3)
    output = eventually(
        lambda: json.loads(kcat("-L", "-J", "-t", topic)),
        lambda seen: len(seen["topics"][0]["partitions"]) == 3,
        "metadata",
        broker.settle_seconds,
    )
    (node,) = (one["id"] for one in output["brokers"])
    assert output["brokers"][0]["name"].endswith(f":{broker.port}")
    assert output["controllerid"] == node
    for partition in output["topics"][0]["partitions"]:
        assert partition["leader"] == node
        assert partition["replicas"] == partition["isrs"] == [{"id": node}]


def test_kcat_produce_creates_missing_topic(kcat: Kcat, unique: Unique) -> None:
    topic = unique("topic")
    kcat("-P", "-t", topic, stdin="first")
    assert [row["payload"] for row in read(kcat, topic)] == ["first"]


def test_idempotent_producer_writes_records_in_order(
    kcat: Kcat, admin: ClientProcess, unique: Unique
) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic)
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", stdin="\n".join(map(str, range(50))))
    assert [row["payload"] for row in read(kcat, topic)] == [str(i) for i in range(50)]


def test_group_rebalances_and_continues_at_committed_offsets(
    kcat: Kcat, admin: ClientProcess, unique: Unique, join: Callable[[str, str], Member]
) -> None:
    topic, group = unique("topic"), unique("group")
    admin.admin("create_topic", name=topic, partitions=4)
    first = join(group, topic)
    eventually(first.share, lambda seen: seen == 4, "all partitions")
    second = join(group, topic)
    eventually(
        lambda: [first.share(), second.share()], lambda seen: seen == [2, 2], "half of them each"
    )
    for number in range(4):
        values = [f"{number}-{i}" for i in range(5)]
        kcat("-P", "-t", topic, "-p", str(number), stdin="\n".join(values))
    wanted = sorted(f"{number}-{i}" for number in range(4) for i in range(5))
    eventually(
        lambda: sorted(first.values() + second.values()), lambda seen: seen == wanted, "records"
    )
    assert len(first.values()) == len(second.values()) == 10
    second.leave()
    eventually(first.share, lambda seen: seen == 4, "what the other left")
    first.leave()
    assert admin("committed", group=group, topic=topic) == dict.fromkeys("0123", 5)
    kcat("-P", "-t", topic, "-p", "1", stdin="later")
    third = join(group, topic)
    eventually(third.values, bool, "the new record")
    time.sleep(0.5)
    assert third.values() == ["later"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("-C", "-t", "no-such-topic", "-e"), "Unknown topic or partition"),
        (("-C", "-t", "{topic}", "-o", "1000", "-e", "-X", "auto.offset.reset=error"), "range"),
        # librdkafka reports the second error if it already knows the name.
        (("-P", "-t", "not a name"), "Invalid topic|Local: Unknown topic"),
    ],
    ids=["unknown-topic", "beyond-the-end", "invalid-name"],
)
def test_kcat_reports_broker_errors(
    kcat: Kcat, admin: ClientProcess, unique: Unique, arguments: tuple[str, ...], word: str
) -> None:
    topic = unique("topic")
    admin.admin("create_topic", name=topic)
    allowed = ("-X", "allow.auto.create.topics=false") if "-C" in arguments else ()
    output = kcat(*(one.format(topic=topic) for one in arguments), *allowed, stdin="x", ok=False)
    assert re.search(word, output)


def test_kcat_reports_refused_connection(kcat: Kcat) -> None:
    output = kcat("-L", "-m", "1", address="127.0.0.1:9", ok=False)
    assert "Connection refused" in output
