"""Requests that the broker executed although the client never received the response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.brokers import Broker
from harness.clients import ClientProcess, Library, eventually
from harness.proxy import LossyProxy

PRODUCE, OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP, INIT_PRODUCER_ID = 0, 8, 11, 14, 22
LOST = 3
VALUES = [str(i) for i in range(60)]


@pytest.fixture(scope="session")
def proxy(make_broker: Callable[..., Broker]) -> Iterator[LossyProxy]:
    """Start a broker that clients reach only through a lossy proxy."""
    lossy = LossyProxy()
    broker = make_broker("behind-proxy", advertise=lossy.address)
    broker.start()
    lossy.upstream = ("127.0.0.1", broker.port)
    yield lossy
    lossy.close()
    broker.kill()


@pytest.fixture
def worker(client: Library, proxy: LossyProxy, spawn: Any) -> ClientProcess:
    process: ClientProcess = spawn(client, proxy.address)
    return process


def send(worker: ClientProcess, topic: str, **options: Any) -> list[str]:
    """Send all values in many small requests and return the topic's values."""
    records = [{"value": value, "partition": 0} for value in VALUES]
    answers = worker("produce", topic=topic, records=records, linger_ms=0, **options)
    assert all("offset" in answer for answer in answers), answers
    held = worker("offsets", topic=topic, at="latest")["0"]
    rows = worker("read", topic=topic, count=held)
    assert len(rows) == held
    return [row["value"] for row in rows]


@pytest.mark.needs("idempotent")
def test_idempotent_producer_writes_once_despite_lost_responses(
    worker: ClientProcess, proxy: LossyProxy, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    proxy.drop(PRODUCE, LOST)
    assert send(worker, topic, idempotent=True) == VALUES
    assert proxy.dropped[PRODUCE] == LOST


@pytest.mark.needs("retries_init_producer_id")
@pytest.mark.needs("idempotent")
def test_producer_recovers_from_lost_producer_id(
    worker: ClientProcess, proxy: LossyProxy, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    proxy.drop(INIT_PRODUCER_ID, 1)
    assert send(worker, topic, idempotent=True) == VALUES
    assert proxy.dropped[INIT_PRODUCER_ID] == 1


def test_plain_producer_duplicates_but_loses_no_records(
    worker: ClientProcess, proxy: LossyProxy, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic)
    proxy.drop(PRODUCE, LOST)
    held = Counter(send(worker, topic, retries=10))
    assert proxy.dropped[PRODUCE] == LOST
    assert set(held) == set(VALUES)
    assert held.total() > len(VALUES), (
        "a response was lost, so at least one record must be duplicated"
    )


@pytest.mark.needs("groups")
@pytest.mark.parametrize("api", [JOIN_GROUP, SYNC_GROUP], ids=["join", "sync"])
def test_member_joins_after_lost_response(
    worker: ClientProcess, proxy: LossyProxy, unique: Callable[[str], str], api: int
) -> None:
    topic = unique("topic")
    worker.admin("create_topic", name=topic, partitions=2)
    proxy.drop(api, 1)
    worker("join", member="me", topics=[topic], group=unique("group"), session_ms=2_000)
    eventually(
        lambda: worker("state", member="me")["assigned"],
        lambda seen: seen == [[topic, 0], [topic, 1]],
        "both partitions",
    )
    assert proxy.dropped[api] == 1


@pytest.mark.needs("retries_commits")
@pytest.mark.needs("groups")
def test_commit_succeeds_after_lost_response(
    worker: ClientProcess, proxy: LossyProxy, unique: Callable[[str], str]
) -> None:
    topic, group = unique("topic"), unique("group")
    worker.admin("create_topic", name=topic)
    records = [{"value": value, "partition": 0} for value in VALUES]
    worker("produce", topic=topic, records=records)
    # librdkafka requests the coordinator only after its fetch: see FINDINGS.md.
    worker("join", member="me", topics=[topic], group=group, session_ms=10_000, fetch_wait_ms=20)
    eventually(
        lambda: worker("state", member="me")["count"], lambda seen: seen == len(VALUES), "records"
    )
    proxy.drop(OFFSET_COMMIT, 1)
    worker("commit", member="me")
    assert proxy.dropped[OFFSET_COMMIT] == 1
    assert worker("committed", group=group, topic=topic) == {"0": len(VALUES)}
