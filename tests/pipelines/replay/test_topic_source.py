"""Replay of a topic with transactions, or of a topic that changes during the replay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
from confluent_kafka import Producer

from kbroker.client import producer
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import END, START
from kbroker.client.topics import NewTopic, create_topics, delete_topics, wait_until_ready
from kbroker.pipelines.replay import topic_source as topic_source_module
from kbroker.pipelines.replay.topic_source import TopicSource, remembered_topic, topic_source
from kbroker.testing import LocalBroker

from ...brokers import started
from ...limits import PROCESS_SECONDS
from .given import records


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


async def create_orders(cluster: ClusterClient) -> None:
    await create_topics(cluster, [NewTopic("orders", 2, 1)])
    await wait_until_ready(cluster, {"orders": 2})
    for index in range(2):
        await producer.Producer(cluster).write({("orders", index): records(1, 2, 3)})


async def read_all(source: TopicSource, *, in_order: bool) -> int:
    """Return the number of records that a source reads."""
    with trio.fail_after(30):
        async with source.reading({}, None, in_order=in_order) as chunks:
            return sum([len(chunk.records) async for chunk in chunks])


@pytest.mark.parametrize("in_order", [False, True])
async def test_partition_that_has_lost_its_end_ends_replay(
    in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check, the replay would wait for other records at the lost offsets."""
    monkeypatch.setattr(topic_source_module, "QUIET_SECONDS", 0.1)
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_orders(cluster)
        ranges = {"ranges": {"0": [0, 3], "1": [0, 5]}}
        source = await remembered_topic(cluster, "orders", ranges, committed=True)
        with pytest.raises(
            ClientError, match=r"partition 1 of orders ends at 3, but its end was 5"
        ):
            await read_all(source, in_order=in_order)


@pytest.mark.parametrize("in_order", [False, True])
async def test_topic_created_again_before_its_end_is_read_ends_replay(in_order: bool) -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_orders(cluster)
        source = await topic_source(cluster, "orders", START, END)
        assert await read_all(source, in_order=in_order) == 6
        await delete_topics(cluster, ["orders"])
        await create_orders(cluster)
        with pytest.raises(ClientError, match="topic orders was deleted and created again"):
            await read_all(source, in_order=in_order)
