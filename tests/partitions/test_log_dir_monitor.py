"""A node with a full or read-only log directory resigns leadership and regains it later."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.broker import Broker
from kbroker.node.explain import explain_partition
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest
from tests.brokers import started_on
from tests.refusing_files import DATA, RefusingFiles
from tests.wire import fetch, until, values_of

from ..replication.harness import (
    Links,
    leader_of,
    links,
    log_on,
    place_topic,
    replica_on,
    send,
    try_send,
    until_equal,
    until_leader,
    values_in,
    wire_to,
)

__all__ = ["links"]

SICK = f"{DATA}/node-2"
# Less than replica.lag.time.max.ms, after which silent followers leave the ISR anyway.
FREEZES_SECONDS = 10


@pytest.fixture
def files() -> RefusingFiles:
    return RefusingFiles()


@pytest.fixture
async def broker(files: RefusingFiles, links: Links) -> AsyncIterator[Broker]:
    async with started_on(files, DATA, nodes=3) as opened:
        yield opened


def isr_of(broker: Broker, name: str) -> list[int]:
    return sorted(broker.node.cluster.topics[name].partitions[0].isr)


async def wait_until_healed(broker: Broker, *names: str) -> None:
    for name in names:
        await until(lambda name=name: isr_of(broker, name) == [1, 2, 3])  # type: ignore[misc]
        await until_equal(broker, name, 1, 2, 3)


async def test_leader_resigns_all_partitions_after_a_rejected_append(
    broker: Broker, files: RefusingFiles, caplog: pytest.LogCaptureFixture
) -> None:
    used = await place_topic(broker, "used", 2, 1, 3)
    idle = await place_topic(broker, "idle", 2, 1, 3)
    for topic in (used, idle):
        await send(broker, 2, topic, b"before")
    files.refuse(SICK)
    row = await try_send(broker, 2, used, b"refused")
    assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for topic in (used, idle):
        leader = await until_leader(broker, topic.name, {1, 3})
        assert isr_of(broker, topic.name) == [1, 3]
        with trio.fail_after(FREEZES_SECONDS):
            await send(broker, leader, topic, b"after")
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(errors) == 1, errors
    assert f"{SICK} is read-only" in errors[0]
    assert "kbroker topic trim" in errors[0]
    past = str(explain_partition(broker.local_node(2).node, "idle", 0))
    assert "read-only because cannot write /data/node-2/used-0/" in past
    assert "node 2 cannot append to its log" in past
    files.heal()
    await wait_until_healed(broker, "used", "idle")
    assert values_in(log_on(broker, 2, "used")) == [b"before", b"after"]
    assert f"{SICK} is writable again" in caplog.text


async def test_follower_with_read_only_directory_leaves_the_isr(
    broker: Broker, files: RefusingFiles
) -> None:
    used = await place_topic(broker, "used", 1, 2, 3)
    idle = await place_topic(broker, "idle", 1, 2, 3)
    await send(broker, 1, idle, b"before")
    files.refuse(SICK)
    with trio.fail_after(FREEZES_SECONDS):
        await send(broker, 1, used, b"x")
    await until(lambda: isr_of(broker, "used") == isr_of(broker, "idle") == [1, 3])
    # It has all records of the idle topic, but it may be unable to append new ones.
    assert replica_on(broker, 1, "idle").isr_proposal() is None
    revision = broker.node.cluster.topics["idle"].partitions[0].revision
    await until(lambda: files.probes_refused >= 3)
    assert broker.node.cluster.topics["idle"].partitions[0].revision == revision, (
        "it rejoined the ISR"
    )
    with trio.fail_after(FREEZES_SECONDS):
        await send(broker, 1, idle, b"y")
    assert isr_of(broker, "idle") == [1, 3]
    files.heal()
    await wait_until_healed(broker, "used", "idle")


async def test_batches_before_a_rejected_batch_are_kept(
    broker: Broker, files: RefusingFiles, links: Links
) -> None:
    """One response has two batches, and there is space for the first one only."""
    topic = await place_topic(broker, "t", 1, 2, 3)
    await send(broker, 1, topic, b"a")
    await until_equal(broker, "t", 1, 2, 3)
    with links.holding(2):
        for value in (b"b", b"c"):
            await send(broker, 1, topic, value, acks=1)
        await until(lambda: log_on(broker, 3, "t").log_end_offset == 3)
        files.takes = 1
    await until(lambda: isr_of(broker, "t") == [1, 3])
    assert values_in(log_on(broker, 2, "t")) == [b"a", b"b"]
    files.heal()
    await wait_until_healed(broker, "t")


async def test_unreplicated_partition_is_readable_and_writable_again_later(
    broker: Broker, files: RefusingFiles
) -> None:
    topic = await place_topic(broker, "t", 2)
    await send(broker, 2, topic, b"before")
    files.refuse(SICK)
    for _ in range(3):
        row = await try_send(broker, 2, topic, b"refused")
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert leader_of(broker, "t") == 2
    async with wire_to(broker.local_node(2)) as wire:
        assert values_of(await fetch(wire, topic)) == [b"before"]
        response = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    (directory,) = response.results
    assert directory.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [row.name for row in directory.topics] == ["t"]
    now = explain_partition(broker.local_node(2).node, "t", 0).now
    assert now.startswith("partition t-0 is read-only on node 2: cannot write")
    files.heal()
    watch = broker.local_node(2).node.partitions.logs
    await until(lambda: watch.read_only_reason("t", 0) is None)
    assert await send(broker, 2, topic, b"after") == 1


async def test_last_isr_member_resigns_once_another_replica_caught_up(
    files: RefusingFiles, links: Links
) -> None:
    async with started_on(files, DATA, nodes=3, replica_lag_time_max_ms="500") as broker:
        topic = await place_topic(broker, "t", 2, 1, 3)
        with links.holding(1, 3):
            await send(broker, 2, topic, b"a", acks=1)
            await until(lambda: isr_of(broker, "t") == [2])
            files.refuse(SICK)
            await try_send(broker, 2, topic, b"refused")
            assert leader_of(broker, "t") == 2
        await until_leader(broker, "t", {1, 3})
        await until(lambda: isr_of(broker, "t") == [1, 3])
        files.heal()
        await wait_until_healed(broker, "t")
        assert values_in(log_on(broker, 1, "t")) == [b"a"]


async def test_new_topic_is_led_by_another_node(broker: Broker, files: RefusingFiles) -> None:
    first = await place_topic(broker, "first", 2)
    files.refuse(SICK)
    await try_send(broker, 2, first, b"refused")
    topic = await place_topic(broker, "t", 2, 1, 3)
    leader = await until_leader(broker, "t", {1, 3})
    with trio.fail_after(FREEZES_SECONDS):
        await send(broker, leader, topic, b"a")
    files.heal()
    await wait_until_healed(broker, "t")


@pytest.mark.slow
async def test_directory_with_repeated_failures_is_probed_less_often(
    broker: Broker, files: RefusingFiles
) -> None:
    """A broken file rejects appends although the probe of its directory succeeds."""
    topic = await place_topic(broker, "t", 2)
    logs = broker.local_node(2).node.partitions.logs
    lasted = []
    for _ in range(3):
        files.takes = 0
        began = trio.current_time()  # before the append, because the response may take a while
        row = await try_send(broker, 2, topic, b"refused")
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        files.heal()
        await until(lambda: logs.read_only_reason("t", 0) is None)
        lasted.append(trio.current_time() - began)
    assert lasted[1] >= 1
    assert lasted[2] >= 2
