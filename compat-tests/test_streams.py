"""Kafka Streams with exactly-once: results are correct after kills of application and broker.

Soak tests have more kills (`--kills`) of the application, the broker or both in turn.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import KILLABLE
from harness.admin_calls import of, request
from harness.brokers import Broker
from harness.clients import eventually
from harness.raw import RawConnection
from harness.streams import SHORT_SESSIONS, StreamsApplication, Work
from harness.traffic import Feeder, Record, create_topics, topic_configs

from kbroker.protocol.api_keys import ApiKey

CLIENT = "streams"
WORDS = [f"word{number}" for number in range(40)]
OWN_TOPICS = {"words-words-repartition": "delete", "words-counts-changelog": "compact"}
KILLS = [
    {"application": True, "broker": True, "wipe": True},
    {"application": True, "broker": True},
    {"application": True, "broker": False, "wipe": True},
    {"application": True, "broker": False},
    {"application": False, "broker": True},
]


def line(_step: int) -> list[Record]:
    """Return a line of three words."""
    value = " ".join(random.choices(WORDS, k=3))
    return [Record("lines", None, value, int(time.time() * 1000))]


def words(lines: list[Record]) -> Counter[str]:
    """Return how often each word was written."""
    return Counter(word for line in lines for word in line.value.split())


def counted(results: list[Record]) -> dict[str, list[int]]:
    """Return the counts that the application wrote for each word, in order."""
    counts_by_word = defaultdict(list)
    for record in results:
        assert record.key is not None
        counts_by_word[record.key].append(int(record.value))
    return counts_by_word


def once(lines: list[Record]) -> dict[str, list[int]]:
    """Return the counts that the application must write for each word."""
    return {word: list(range(1, total + 1)) for word, total in words(lines).items()}


@pytest.fixture
def quick_broker(make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """Start a broker that soon detects dead members of a streams group."""
    one = make_broker("quick", {**KILLABLE, **SHORT_SESSIONS})
    one.start()
    yield one
    one.kill()


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_words_are_counted_once_despite_kills(
    quick_broker: Broker, tmp_path: Path, request: pytest.FixtureRequest, protocol: str
) -> None:
    """Each count of each word is written once, in order."""
    kills = list(itertools.islice(itertools.cycle(KILLS), request.config.getoption("--kills")))
    create_topics(quick_broker.address, 2, "lines", "counts")
    feeder = Feeder(quick_broker.address, line)
    application = StreamsApplication("words", quick_broker.address, tmp_path, protocol=protocol)
    with Work(quick_broker, application, feeder, "counts") as work:
        pauses = [work.kill(**kill) for kill in kills]
        lines = feeder.finish()
        results, aborted = work.results(words(lines).total())
    print(
        f"\nfigures: {len(kills)} kills, results again after {min(pauses):.1f} to "
        f"{max(pauses):.1f} s; {len(results)} words counted, {aborted} results aborted"
    )
    assert aborted > 0
    for topic, policy in OWN_TOPICS.items():
        assert topic_configs(quick_broker.address, topic)["cleanup.policy"] == policy
    assert counted(results) == once(lines)


def test_surviving_instance_takes_over_tasks(quick_broker: Broker, tmp_path: Path) -> None:
    """In a streams group, each instance has standby tasks of the other one."""
    create_topics(quick_broker.address, 2, "lines", "counts")
    connection = RawConnection(quick_broker.address)
    configure_standbys(connection, "words")
    instances = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = StreamsApplication(
            "words", quick_broker.address, tmp_path / name, protocol="streams"
        )
        instances.append(made)
    first, second = instances
    feeder = Feeder(quick_broker.address, line)
    try:
        with Work(quick_broker, first, feeder, "counts") as work:
            second.start()
            eventually(lambda: processes(connection, "words"), has_shared_tasks, "shares", 120.0)
            first.kill()
            work.application = second
            eventually(lambda: processes(connection, "words"), has_all_tasks, "one process", 120.0)
            work.wait_for_more()
            lines = feeder.finish()
            results, _ = work.results(words(lines).total())
    finally:
        for each in instances:
            each.kill()
        connection.close()
    assert counted(results) == once(lines)


def test_restarted_static_application_keeps_its_tasks(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """The threads leave temporarily, and return with other member IDs but the same instance IDs."""
    broker = make_broker("static", KILLABLE)
    broker.start()
    connection = RawConnection(broker.address)
    create_topics(broker.address, 2, "lines", "counts")
    settings = {"consumer.group.instance.id": "own"}
    application = StreamsApplication(
        "words", broker.address, tmp_path, protocol="streams", settings=settings
    )
    try:
        application.start()
        before = eventually(lambda: static_members(connection), are_stable, "tasks", 120.0)
        application.stop()
        away = static_members(connection)
        assert [row.member_epoch for row in away.members] == [-2, -2]
        application.start()
        after = eventually(lambda: static_members(connection), are_stable, "tasks again", 120.0)
    finally:
        application.kill()
        connection.close()
        broker.kill()
    assert after.group_epoch == before.group_epoch
    for row, known in zip(after.members, before.members, strict=True):
        assert row.member_id != known.member_id
        assert (row.instance_id, row.assignment) == (known.instance_id, known.assignment)


def static_members(connection: RawConnection) -> Any:
    """Return the description of the group, with its members in the order of their instance IDs."""
    key = ApiKey.STREAMS_GROUP_DESCRIBE
    (row,) = connection.ask(key, 0, request(key, group_ids=["words"])).groups
    row.members.sort(key=lambda member: member.instance_id or "")
    return row


def are_stable(row: Any) -> bool:
    return row.group_state == "Stable" and len(row.members) == 2


def configure_standbys(connection: RawConnection, group: str) -> None:
    """Configure one standby per stateful task of the group."""
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    config = of(key, "Config", name="streams.num.standby.replicas", config_operation=0, value="1")
    row = of(key, "Resource", resource_type=32, resource_name=group, configs=[config])
    (answer,) = connection.ask(key, 1, request(key, resources=[row])).responses
    assert not answer.error_code, answer


def processes(connection: RawConnection, group: str) -> dict[str, tuple[int, int]]:
    """Return the numbers of active and standby tasks per process of the group."""
    key = ApiKey.STREAMS_GROUP_DESCRIBE
    (row,) = connection.ask(key, 0, request(key, group_ids=[group])).groups
    found: dict[str, tuple[int, int]] = {}
    for member in row.members:
        active, copies = found.get(member.process_id, (0, 0))
        active += sum(len(each.partitions) for each in member.assignment.active_tasks)
        copies += sum(len(each.partitions) for each in member.assignment.standby_tasks)
        found[member.process_id] = active, copies
    return found


def has_shared_tasks(seen: dict[str, tuple[int, int]]) -> bool:
    """Return True if two processes share two subtopologies of two tasks, one of them stateful."""
    return [active for active, _ in seen.values()] == [2, 2] and (
        sum(copies for _, copies in seen.values()) == 2
    )


def has_all_tasks(seen: dict[str, tuple[int, int]]) -> bool:
    return list(seen.values()) == [(4, 0)]
