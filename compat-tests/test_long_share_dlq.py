"""Soak test of the dead-letter queue of a share group through many kills (KIP-1191).

Members accept, release and reject records at random. Half of the kills hit members, which are
replaced. The other half hit the broker, or on three nodes the leader of a partition. At the end,
each record was accepted, or is in the dead-letter queue. Without kills, the counts are those of
Apache Kafka.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from conftest import KILLABLE, PROPERTIES
from harness.brokers import ApacheBroker, Broker, KbrokerBroker
from harness.clients import eventually
from harness.dead_letters import (
    EXCEEDED,
    REJECTED,
    DeadLetter,
    DeadLetterChecker,
    LeaderKill,
    Source,
)
from harness.nodes import KbrokerProcesses, wait_until_in_sync
from harness.share_workers import ACCEPTED, ShareChecker, ShareWorkers
from harness.tools import Tools
from harness.traffic import Feeder, Reader, Record, create_topics, leaders
from test_long_shares import SECONDS, configure, lags, wait_for_work

CLIENT = "java tools"
TOPIC, GROUP, QUEUE = "work", "workers", "dlq.workers"
PARTITIONS, MEMBERS, QUEUE_PARTITIONS = 3, 3, 2
# Maximum number of deliveries of a record.
LIMIT = 3
# Acknowledgements of a record by delivery, with weights. The last one is repeated.
ACKNOWLEDGEMENTS = {
    "accept": 70,
    "reject": 10,
    "release": 6,
    "release,accept": 6,
    "release,reject": 5,
    "release,release,accept": 3,
}
# Records per run without kills, with and without copies.
RECORDS_WITHOUT_KILLS = 1500


def acknowledgements(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    kinds, weights = list(ACKNOWLEDGEMENTS), list(ACKNOWLEDGEMENTS.values())
    while True:
        yield rng.choices(kinds, weights)[0]


class DeadLetterRun:
    """A share group with a dead-letter queue on some broker or cluster."""

    def __init__(self, bootstrap: str, tools: Tools, directory: Path, *, copies: bool) -> None:
        self.bootstrap = bootstrap
        self.checker = ShareChecker(LIMIT)
        self.kills: list[LeaderKill] = []
        self.copies = copies
        self._tools = tools
        create_topics(bootstrap, PARTITIONS, TOPIC)
        enabled = {"errors_deadletterqueue_group_enable": "true"}
        create_topics(bootstrap, QUEUE_PARTITIONS, QUEUE, **enabled)
        configs = {
            "share.delivery.count.limit": str(LIMIT),
            "errors.deadletterqueue.topic.name": QUEUE,
            "errors.deadletterqueue.copy.record.enable": "true" if copies else "false",
        }
        configure(bootstrap, tools, configs)
        self.workers = ShareWorkers(bootstrap, GROUP, TOPIC, self.checker, directory / "workers")

    @property
    def queue_kind(self) -> str:
        return "copied records" if self.copies else "headers only"

    def finish(self) -> DeadLetterChecker:
        """Wait until the group has finished all records, and check each of them."""
        eventually(
            lambda: lags(self.bootstrap, self._tools),
            lambda seen: seen == ["0"] * PARTITIONS,
            "lag",
            SECONDS,
        )
        self.workers.leave()
        self.workers.check_reports()
        reader = Reader(self.bootstrap)
        sources = {
            (each.partition(), each.offset()): Source(each.key(), each.value())
            for each in reader.messages(TOPIC)
        }
        checked = DeadLetterChecker(
            self.checker, sources, QUEUE_PARTITIONS, copies=self.copies, kills=self.kills
        )
        checked.check(map(DeadLetter.of, reader.messages(QUEUE)))
        assert len({each.key for each in sources.values()}) == len(sources)
        assert not self.checker.wrong, (self.checker.first_wrong, self.checker.wrong)
        assert not checked.wrong, (checked.first_wrong, checked.wrong)
        assert all(checked.counts[each] for each in (ACCEPTED, REJECTED, EXCEEDED))
        return checked


def rounds_of_kills(
    run: DeadLetterRun, name: str, kills: int, kill_leader: Callable[[DeadLetterRun], None]
) -> None:
    """Kill members and leaders in turn, each after some work, and check all records."""
    killed: Counter[str] = Counter()
    values = acknowledgements(random.randrange(2**32))

    def records(step: int) -> list[Record]:
        return [Record(TOPIC, str(step), next(values), int(time.time() * 1000))]

    feeder = Feeder(run.bootstrap, records)
    with run.workers as workers:
        for _ in range(MEMBERS):
            workers.start()
        feeder.start()
        for number in range(kills):
            wait_for_work(workers)
            time.sleep(random.random() / 5)
            if number % 2:
                killed["members"] += 1
                workers.kill_oldest()
                workers.start()
            else:
                killed[name] += 1
                kill_leader(run)
        wait_for_work(workers)
        written = len(feeder.finish())
        checked = run.finish()
    assert sum(checked.counts.values()) == written
    print(
        f"\nfigures: {run.queue_kind}, killed {dict(killed)}: {written} records, "
        f"{describe(checked.counts)}; {checked.doubled} of the dead letters are there twice, "
        "because their leader was killed"
    )


def describe(counts: Counter[str]) -> str:
    """Return the number of records by outcome as text."""
    return (
        f"{counts[ACCEPTED]} accepted, {counts[REJECTED]} rejected, "
        f"{counts[EXCEEDED]} at the delivery limit"
    )


@pytest.mark.parametrize("copies", [False, True], ids=["headers", "copies"])
def test_each_record_is_in_queue_once_despite_kills_of_broker(
    request: pytest.FixtureRequest, own_broker: Broker, tools: Tools, tmp_path: Path, copies: bool
) -> None:
    def kill_broker(run: DeadLetterRun) -> None:
        own_broker.kill()
        run.kills.append(LeaderKill.now(range(PARTITIONS)))
        own_broker.start()

    run = DeadLetterRun(own_broker.address, tools, tmp_path, copies=copies)
    rounds_of_kills(run, "brokers", request.config.getoption("--kills"), kill_broker)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[KbrokerProcesses]:
    cluster = KbrokerProcesses(tmp_path, {**PROPERTIES, **KILLABLE})
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.mark.parametrize("copies", [False, True], ids=["headers", "copies"])
def test_each_record_is_in_queue_once_despite_kills_of_partition_leaders(
    request: pytest.FixtureRequest,
    nodes: KbrokerProcesses,
    tools: Tools,
    tmp_path: Path,
    copies: bool,
) -> None:
    def kill_leader(run: DeadLetterRun) -> None:
        led = leaders(run.bootstrap, TOPIC)
        node = led[random.randrange(PARTITIONS)]
        nodes.kill_node(node)
        run.kills.append(LeaderKill.now([each for each in led if led[each] == node]))
        wait_for_work(run.workers)
        nodes.start_node(node)
        wait_until_in_sync(nodes)

    run = DeadLetterRun(nodes.address, tools, tmp_path, copies=copies)
    rounds_of_kills(run, "leaders of three nodes", request.config.getoption("--kills"), kill_leader)


@pytest.mark.parametrize("copies", [False, True], ids=["headers", "copies"])
def test_counts_without_kills_are_those_of_kafka(
    tools: Tools, tmp_path: Path, copies: bool
) -> None:
    seed = random.randrange(2**32)
    counts = {}
    for kind in (KbrokerBroker, ApacheBroker):
        broker = kind(tmp_path / kind.name, {**PROPERTIES, **KILLABLE})
        broker.start()
        try:
            run = DeadLetterRun(broker.address, tools, tmp_path, copies=copies)
            produce(run.bootstrap, seed)
            with run.workers as workers:
                for _ in range(MEMBERS):
                    workers.start()
                checked = run.finish()
        finally:
            broker.kill()
        assert not checked.doubled
        counts[kind.name] = checked.counts
        print(f"\nfigures: {kind.name}, {run.queue_kind}, seed {seed}: {describe(checked.counts)}")
    assert counts["kbroker"] == counts["apache"]


def produce(bootstrap: str, seed: int) -> None:
    """Write RECORDS_WITHOUT_KILLS records, each to a partition that depends on its number."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in zip(range(RECORDS_WITHOUT_KILLS), acknowledgements(seed), strict=False):
        producer.produce(TOPIC, value, str(number), number % PARTITIONS)
    assert not producer.flush(SECONDS)


SOURCES = {(0, 0): Source(b"k", b"v")}


def letter(cause: str, written_ms: int = 10, deliveries: int = 1, **fields: Any) -> DeadLetter:
    headers = {"partition": "0", "offset": "0", "message": cause}
    headers["delivery.count"] = str(deliveries)
    return DeadLetter(0, written_ms, b"k", b"v", headers)._replace(**fields)


@pytest.mark.parametrize(
    ("wrong", "acknowledgement", "letters"),
    [
        (None, "accept", []),
        (None, "reject", [letter(REJECTED)]),
        (None, "release", [letter(EXCEEDED)]),
        (None, "reject", [letter(REJECTED, 10), letter(REJECTED, 20)]),
        (None, "reject", [letter(EXCEEDED, 20, deliveries=LIMIT)]),
        ("missing in the queue", "reject", []),
        ("missing in the queue", "release", []),
        ("accepted and in the queue", "accept", [letter(REJECTED)]),
        ("twice in the queue without a kill of the leader", "reject", [letter(REJECTED)] * 2),
        (
            "twice in the queue without a kill of the leader",
            "reject",
            [letter(REJECTED, 16), letter(REJECTED, 20)],
        ),
        ("wrong cause of a record that was rejected", "reject", [letter(EXCEEDED, 20)]),
        (
            "wrong cause of a record that was rejected",
            "reject",
            [letter(EXCEEDED, 10, deliveries=LIMIT)],
        ),
        ("wrong cause of a record that was exhausted", "release", [letter(REJECTED)]),
        ("key or value of a dead letter is wrong", "reject", [letter(REJECTED, value=b"w")]),
        ("a dead letter is in the wrong partition", "reject", [letter(REJECTED, partition=1)]),
    ],
)
def test_checker_reports_wrong_dead_letters(
    wrong: str | None, acknowledgement: str, letters: list[DeadLetter]
) -> None:
    checker = ShareChecker(LIMIT)
    deliveries = LIMIT if acknowledgement == "release" else 1
    for delivery in range(1, deliveries + 1):
        checker.check_delivery((0, 0), delivery, acknowledgement)
        checker.record_success((0, 0), delivery, acknowledgement)
    kills = [LeaderKill(15, [0]), LeaderKill(18, [1])]
    checked = DeadLetterChecker(checker, SOURCES, QUEUE_PARTITIONS, copies=True, kills=kills)
    checked.check(letters)
    assert set(checked.wrong) == ({wrong} if wrong else set())


@pytest.mark.parametrize(("acknowledgement", "wrong"), [("accept", False), ("reject", True)])
def test_checker_requires_dead_letter_of_record_with_unknown_reject(
    acknowledgement: str, wrong: bool
) -> None:
    checker = ShareChecker(LIMIT)
    checker.check_delivery((0, 0), 1, acknowledgement)
    checked = DeadLetterChecker(checker, SOURCES, QUEUE_PARTITIONS, copies=True)
    checked.check([])
    assert bool(checked.wrong) is wrong
