"""Kafka Streams, exactly once: killed together with its broker, an application counts right.

By soak there are more kills (`--kills`), of the application, the broker or both in turn.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import KILLED
from harness.brokers import Broker
from harness.streams import SHORT_SESSIONS, StreamsApplication, Work
from harness.traffic import Feeder, Record, create_topics, topic_configs

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
    """A line of three words."""
    value = " ".join(random.choices(WORDS, k=3))
    return [Record("lines", None, value, int(time.time() * 1000))]


def words(lines: list[Record]) -> Counter[str]:
    """How often each word went in."""
    return Counter(word for line in lines for word in line.value.split())


def counted(results: list[Record]) -> dict[str, list[int]]:
    """What the application said of each word, in its order."""
    said = defaultdict(list)
    for record in results:
        assert record.key is not None
        said[record.key].append(int(record.value))
    return said


def once(lines: list[Record]) -> dict[str, list[int]]:
    """What the application must say of them."""
    return {word: list(range(1, total + 1)) for word, total in words(lines).items()}


@pytest.fixture
def quick_broker(make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker that notices soon when a member of a streams group is gone."""
    one = make_broker("quick", {**KILLED, **SHORT_SESSIONS})
    one.start()
    yield one
    one.kill()


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_words_are_counted_once(
    quick_broker: Broker, tmp_path: Path, request: pytest.FixtureRequest, protocol: str
) -> None:
    """Each word comes out as often as it went in, and with each number once, in their order."""
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
