"""Replay of a topic with transactions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kbroker.testing import LocalBroker

from ...limits import PROCESS_SECONDS


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 1, "copy": 1}) as opened:
        yield opened


def write_transactions(bootstrap: str) -> None:
    """Write a committed, an aborted and an open transaction, and a record outside transactions."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "a"})
    producer.init_transactions(20)
    for name in ("committed", "aborted"):
        producer.begin_transaction()
        for number in range(3):
            producer.produce("orders", f"{name} {number}", timestamp=1_000 + number)
        producer.flush(20)
        if name == "committed":
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce("orders", "plain", timestamp=2_000)
    plain.flush(20)
    still_open = Producer({"bootstrap.servers": bootstrap, "transactional.id": "b"})
    still_open.init_transactions(20)
    still_open.begin_transaction()
    still_open.produce("orders", "open", timestamp=3_000)
    still_open.flush(20)


def replay(bootstrap: str, *options: str) -> None:
    words = ["replay", "orders", "--to-topic", "copy", "-b", bootstrap, *options]
    subprocess.run(
        [sys.executable, "-m", "kbroker", *words],
        check=True,
        capture_output=True,
        timeout=PROCESS_SECONDS,
    )


COMMITTED = ["committed 0", "committed 1", "committed 2", "plain"]
ALL = [*COMMITTED[:3], "aborted 0", "aborted 1", "aborted 2", "plain", "open"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [([], COMMITTED), (["--rate", "10000"], COMMITTED), (["--read-uncommitted"], ALL)],
)
def test_only_committed_records_are_replayed(
    broker: LocalBroker, options: list[str], expected: list[str]
) -> None:
    """The replay does not wait for an open transaction: it ends before its first record."""
    write_transactions(broker.bootstrap_servers)
    replay(broker.bootstrap_servers, *options)
    found = sorted(broker.records("copy"), key=lambda each: each.offset)
    assert [(each.value or b"").decode() for each in found] == expected
    assert [each.offset for each in found] == list(range(len(expected)))
