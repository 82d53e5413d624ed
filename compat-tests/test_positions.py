"""Start positions of consumers, and delivery guarantees through a crash at the worst time."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.clients import ClientProcess, Library
from harness.times import BASE_MS

Spawn = Callable[..., ClientProcess]
Unique = Callable[[str], str]

CRASHED = 9


def fill(worker: ClientProcess, topic: str, count: int, partitions: int = 1) -> None:
    """Write `count` records per partition with timestamps one second apart."""
    worker.admin("create_topic", name=topic, partitions=partitions)
    records = [
        {"value": str(i), "partition": number, "timestamp": BASE_MS + 1000 * i}
        for number in range(partitions)
        for i in range(count)
    ]
    answers = worker("produce", topic=topic, records=records)
    assert all("offset" in answer for answer in answers), answers


@pytest.mark.everyone
def test_read_starts_at_given_offsets(client: Library, workers: Any, unique: Unique) -> None:
    worker, topic = workers(client.name), unique("topic")
    fill(worker, topic, 50, partitions=2)
    rows = worker("read", topic=topic, start={"0": 40, "1": 10}, count=50)
    assert [row["offset"] for row in rows if row["partition"] == 0] == list(range(40, 50))
    assert [row["offset"] for row in rows if row["partition"] == 1] == list(range(10, 50))


@pytest.mark.everyone
def test_earliest_and_latest_offsets_are_returned(
    client: Library, workers: Any, unique: Unique
) -> None:
    worker, topic = workers(client.name), unique("topic")
    fill(worker, topic, 20, partitions=2)
    assert worker("offsets", topic=topic, at="earliest") == {"0": 0, "1": 0}
    assert worker("offsets", topic=topic, at="latest") == {"0": 20, "1": 20}
    assert worker("read", topic=topic, start="latest", count=1, seconds=1.0) == []


@pytest.mark.everyone
def test_offsets_are_found_by_timestamp(client: Library, workers: Any, unique: Unique) -> None:
    worker, topic = workers(client.name), unique("topic")
    fill(worker, topic, 50)
    for at, offset in [
        (BASE_MS - 1, 0),
        (BASE_MS + 7_000, 7),
        (BASE_MS + 7_001, 8),
        (BASE_MS + 49_000, 49),
        (BASE_MS + 49_001, None),
    ]:
        assert worker("offsets", topic=topic, at=at) == {"0": offset}, at
    found = worker("offsets", topic=topic, at=BASE_MS + 30_000)
    rows = worker("read", topic=topic, start=found, count=20)
    assert [row["value"] for row in rows] == [str(i) for i in range(30, 50)]


@pytest.mark.needs("groups")
@pytest.mark.everyone
def test_offsets_are_committed_without_membership(
    client: Library, workers: Any, unique: Unique
) -> None:
    worker, topic, group = workers(client.name), unique("topic"), unique("group")
    fill(worker, topic, 10, partitions=3)
    worker("commit_as", group=group, topic=topic, offsets={"0": 3, "2": 10})
    assert worker("committed", group=group, topic=topic) == {"0": 3, "1": None, "2": 10}
    worker("commit_as", group=group, topic=topic, offsets={"0": 1})
    assert worker("committed", group=group, topic=topic) == {"0": 1, "1": None, "2": 10}


def run_script(
    spawn: Spawn, client: Library, commit: str, topic: str, group: str, out: Path
) -> Any:
    """Run the script until it crashes at "10", then again to its end. Return the lines it wrote."""
    script: dict[str, Any] = {
        "topic": topic,
        "group": group,
        "commit": commit,
        "out": str(out),
        "until": 29,
    }
    first = spawn(client)
    first.send("script", crash_at="10", session_ms=2_000, **script)
    assert first.wait_for_crash() == CRASHED
    spawn(client)("script", session_ms=30_000, **script)
    return Counter(out.read_text().split())


@pytest.mark.needs("crash_scripts")
def test_commit_after_processing_repeats_record_after_crash(
    client: Library, workers: Any, spawn: Spawn, unique: Unique, tmp_path: Path
) -> None:
    topic = unique("topic")
    fill(workers(client.name), topic, 30)
    lines = run_script(spawn, client, "after", topic, unique("group"), tmp_path / "out")
    assert lines == Counter({**{str(i): 1 for i in range(30)}, "10": 2})


@pytest.mark.needs("crash_scripts")
def test_commit_before_processing_skips_record_after_crash(
    client: Library, workers: Any, spawn: Spawn, unique: Unique, tmp_path: Path
) -> None:
    topic = unique("topic")
    fill(workers(client.name), topic, 30)
    lines = run_script(spawn, client, "before", topic, unique("group"), tmp_path / "out")
    assert lines == Counter({str(i): 1 for i in range(30) if i != 10})


@pytest.mark.needs("crash_scripts")
def test_offsets_stored_outside_kafka_give_exactly_once(
    client: Library, workers: Any, spawn: Spawn, unique: Unique, tmp_path: Path
) -> None:
    topic, database = unique("topic"), str(tmp_path / "results.sqlite")
    fill(workers(client.name), topic, 30)
    work = {"topic": topic, "partition": 0, "database": database, "until": 29}
    for crash_at in (4, 17):
        crashing = spawn(client)
        crashing.send("outside", crash_at=crash_at, **work)
        assert crashing.wait_for_crash() == CRASHED
    assert spawn(client)("outside", **work) == 13
    store = sqlite3.connect(database)
    values = [value for (value,) in store.execute("select value from results order by rowid")]
    store.close()
    assert values == [str(i) for i in range(30)]
