"""Soak tests of Kafka Streams: a windowed join through kills, internal topics, reset tool."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

from harness.brokers import Broker
from harness.streams import StreamsApplication, Work
from harness.tools import Tools
from harness.traffic import Feeder, Reader, Record, create_topics, topic_configs, topics
from test_streams import counted, line, once, words

CLIENT = "streams"
CUSTOMERS = 200
# Window size in java/StreamsApplication.java.
WINDOW_MS = 10_000
INPUTS = ("orders", "payments")
OWN_TOPICS = {
    "payments-paid-left-repartition": {"cleanup.policy": "delete", "retention.ms": "-1"},
    "payments-paid-right-repartition": {"cleanup.policy": "delete", "retention.ms": "-1"},
    "payments-paid-this-join-store-changelog": {"cleanup.policy": "delete"},
    "payments-paid-other-join-store-changelog": {"cleanup.policy": "delete"},
}
KILLS = [
    {"application": True, "broker": True, "wipe": True},
    {"application": False, "broker": True},
    {"application": True, "broker": False},
]


def order_or_payment(step: int) -> list[Record]:
    """Return an order or a payment of some customer, now or some seconds ago."""
    customer = f"c{random.randrange(CUSTOMERS)}"
    moment = int(time.time() * 1000) - random.randrange(2 * WINDOW_MS)
    return [Record(random.choice(INPUTS), None, f"{customer}:{step}", moment)]


def joined(records: list[Record]) -> Counter[tuple[str, str]]:
    """Join each order with each payment of its customer within the window: (customer, pair)."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        found[record.topic, record.value.split(":")[0]].append(record)
    return Counter(
        (customer, f"{order.value} {payment.value}")
        for customer in {customer for _topic, customer in found}
        for order, payment in itertools.product(
            found["orders", customer], found["payments", customer]
        )
        if abs(order.timestamp - payment.timestamp) <= WINDOW_MS
    )


def pairs(results: list[Record]) -> Counter[tuple[str | None, str]]:
    """Count the results of the application."""
    return Counter((record.key, record.value) for record in results)


def test_payments_are_joined_once_and_again_after_reset(
    own_broker: Broker, tools: Tools, tmp_path: Path
) -> None:
    address = own_broker.address
    create_topics(address, 2, *INPUTS, "paid")
    application = StreamsApplication("payments", address, tmp_path)
    feeder = Feeder(address, order_or_payment)
    with Work(own_broker, application, feeder, "paid") as work:
        pauses = [work.kill(**kill) for kill in KILLS]
        truth = joined(feeder.finish())
        results, aborted = work.results(truth.total())
    assert pairs(results) == truth
    for topic, expected in OWN_TOPICS.items():
        assert expected.items() <= topic_configs(address, topic).items(), topic
    completed = tools.run(
        "kafka-streams-application-reset",
        *("--bootstrap-server", address, "--application-id", "payments", "--force"),
        *("--input-topics", ",".join(INPUTS)),
    )
    assert completed.status == 0, completed
    assert not OWN_TOPICS.keys() & topics(address)
    application.wipe()
    application.start()
    try:
        again = wait_for_twice(address, truth)
    finally:
        application.kill()
    assert again == truth + truth
    print(
        f"\nfigures: {len(KILLS)} kills, results again after {min(pauses):.1f} to "
        f"{max(pauses):.1f} s; {truth.total()} pairs, {aborted} results aborted, all once, "
        "and once more after the reset"
    )


def wait_for_twice(
    address: str, truth: Counter[tuple[str, str]]
) -> Counter[tuple[str | None, str]]:
    """Wait for twice the results, as the application writes them in two runs, and return them."""
    deadline = time.monotonic() + 60
    while True:
        seen = pairs(Reader(address).read("paid"))
        if seen.total() >= 2 * truth.total() or time.monotonic() > deadline:
            return seen
        time.sleep(0.5)


def test_words_are_counted_once_while_transaction_version_changes(
    own_broker: Broker, tools: Tools, tmp_path: Path
) -> None:
    """Uses transaction version 2, then 1, then 2 again."""
    create_topics(own_broker.address, 2, "lines", "counts")
    feeder = Feeder(own_broker.address, line)
    application = StreamsApplication("words", own_broker.address, tmp_path)
    with Work(own_broker, application, feeder, "counts") as work:
        for verb, version in (("downgrade", 1), ("upgrade", 2)):
            work.wait_for_more()
            completed = tools.run(
                "kafka-features",
                *("--bootstrap-server", own_broker.address),
                *(verb, "--feature", f"transaction.version={version}"),
            )
            assert completed.status == 0, completed
            work.wait_for_more()
            work.kill(application=False, broker=True)
            work.kill(application=True, broker=False)
        lines = feeder.finish()
        results, aborted = work.results(words(lines).total())
    assert counted(results) == once(lines)
    print(f"\nfigures: transaction.version 2, 1, 2: {len(results)} words, {aborted} aborted")


def test_checker_reports_words_counted_twice(own_broker: Broker, tmp_path: Path) -> None:
    """Without transactions, words counted just before a kill are counted again."""
    create_topics(own_broker.address, 2, "lines", "counts")
    feeder = Feeder(own_broker.address, line)
    application = StreamsApplication("words", own_broker.address, tmp_path, "at_least_once")
    with Work(own_broker, application, feeder, "counts") as work:
        for _ in range(3):
            work.wait_for_more()
            application.kill()
            application.start()
        lines = feeder.finish()
        results, _aborted = work.results(words(lines).total())
    assert counted(results) != once(lines)
