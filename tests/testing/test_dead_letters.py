"""Dead letters of share groups in the test kit."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.client.configs import Setting, describe_configs
from kbroker.protocol.errors import KafkaError
from kbroker.testing import (
    ExternalKafka,
    KafkaRecord,
    LocalBroker,
    RunningBroker,
    WaitTimeout,
    kit,
)
from kbroker.testing.dead_letters import DeadLetter

from ..sharing import GROUP, REJECT, ShareMember, initialize
from ..wire import Topic, Wire, connected

QUEUE = "dlq.orders"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
REJECTED = "Offset rejected by client."


async def enable_queue(broker: RunningBroker, *, copies: bool = False) -> None:
    await broker.create_topic(QUEUE, configs=ENABLED)
    configs = {
        "errors.deadletterqueue.topic.name": QUEUE,
        "errors.deadletterqueue.copy.record.enable": copies,
    }
    await broker.configure_group(GROUP, configs)


async def reject(broker: RunningBroker, wire: Wire, last: int) -> None:
    """Reject the records of partition 1 of "orders" up to an offset."""
    topic = Topic("orders", broker.broker.node.cluster.topics["orders"].id)
    await initialize(broker.broker.node, topic, 2)
    member = ShareMember(wire, topic)
    await member.fetch((1,))
    row = await member.acknowledge_partition((0, last, REJECT), partition=1)
    assert not row.error_code


async def test_wait_returns_dead_letters_with_origin_and_copied_record(
    broker: RunningBroker, wire: Wire
) -> None:
    await enable_queue(broker, copies=True)
    for number in range(3):
        await broker.produce("orders", {"id": number}, key=f"k{number}", partition=1)
    assert await broker.dead_letters(GROUP) == []
    found: list[DeadLetter] = []

    async def wait() -> None:
        found.extend(await broker.wait_for_dead_letters(GROUP, 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await reject(broker, wire, 1)
    assert [
        (each.topic, each.partition, each.offset, each.delivery_count, each.reason, each.key)
        for each in found
    ] == [
        ("orders", 1, 0, 1, REJECTED, b"k0"),
        ("orders", 1, 1, 1, REJECTED, b"k1"),
    ]
    assert found[1].record.json == {"id": 1}
    assert (found[1].record.topic, found[1].record.offset) == (QUEUE, 1)
    assert await broker.dead_letters(GROUP) == found


async def test_configure_group_returns_when_configs_are_in_effect(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str | None] = []

    async def describe_late(*args: Any, keys: list[str]) -> dict[str, list[Setting]]:
        """Return the old value once, as other brokers of a cluster may do."""
        (found,) = (await describe_configs(*args, keys=keys)).values()
        if not described:
            found = [each._replace(value="old") for each in found]
            broker.broker.node.context.changes.notify()
        described.append(found[0].value)
        return {GROUP: found}

    monkeypatch.setattr(kit, "describe_configs", describe_late)
    await broker.configure_group(GROUP, {"streams.rack.aware.assignment.tags": "a, b"})
    assert described[0] == "old"
    assert len(described) == 2


async def test_dead_letters_of_other_groups_are_left_out(broker: RunningBroker, wire: Wire) -> None:
    await enable_queue(broker)
    await broker.produce(QUEUE, "by hand")
    for group in ("another", GROUP):  # the second one lacks headers
        await broker.produce(QUEUE, None, headers={"__dlq.errors.group": group})
    await broker.produce("orders", "x", partition=1)
    await reject(broker, wire, 0)
    (found,) = await broker.wait_for_dead_letters(GROUP)
    assert (found.offset, found.key, found.value) == (0, None, None)


def test_headers_of_queue_follow_those_of_copied_dead_letter() -> None:
    def headers(group: str, offset: int) -> list[tuple[str, bytes | None]]:
        values = {
            "topic": "t",
            "partition": "0",
            "offset": f"{offset}",
            "group": group,
            "delivery.count": "1",
            "message": REJECTED,
        }
        return [(f"__dlq.errors.{name}", value.encode()) for name, value in values.items()]

    both = (*headers("first", 4), *headers("second", 7))
    record = KafkaRecord(QUEUE, 0, 0, 0, None, None, both)
    assert DeadLetter.from_record("first", record) is None
    found = DeadLetter.from_record("second", record)
    assert found is not None
    assert found.offset == 7


async def test_failed_wait_shows_dead_letters_and_problem_of_queue(
    broker: RunningBroker, wire: Wire
) -> None:
    with pytest.raises(ValueError, match="'queue' has no dead-letter queue; set errors"):
        await broker.dead_letters(GROUP)
    unset = r"1 dead letters of group 'queue'(?s:.*)0 dead letters(?s:.*)topic.name is not set"
    with pytest.raises(WaitTimeout, match=unset):
        await broker.wait_for_dead_letters(GROUP, timeout=0.05)
    await broker.configure_group(GROUP, {"errors.deadletterqueue.topic.name": QUEUE})
    missing = "dead letters cannot be written: topic dlq.orders does not exist"
    with pytest.raises(WaitTimeout, match=missing):
        await broker.wait_for_dead_letters(GROUP, timeout=0.05)
    await enable_queue(broker)
    await broker.produce("orders", "x", partition=1)
    await reject(broker, wire, 0)
    await broker.wait_for_dead_letters(GROUP)
    with pytest.raises(WaitTimeout, match=r"1 dead letters\n  DeadLetter\(topic='orders'") as error:
        await broker.wait_for_dead_letters(GROUP, 2, timeout=0.05)
    assert "cannot be written" not in str(error.value)


async def test_unwritten_dead_letters_prevent_idleness(
    broker: RunningBroker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = trio.Event()
    dlq = broker.broker.node.share.dlq
    write = dlq._try_to_write

    async def write_later(*args: object) -> None:
        await released.wait()
        await write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dlq, "_try_to_write", write_later)
    await enable_queue(broker)
    await broker.produce("orders", "x", partition=1)
    await reject(broker, wire, 0)
    with pytest.raises(WaitTimeout, match="group queue: dead letters are not written yet"):
        await broker.wait_until_idle(timeout=0.2)
    await broker.wait_until_idle("another", timeout=5)
    released.set()
    await broker.wait_until_idle()
    assert len(await broker.dead_letters(GROUP)) == 1


def test_synchronous_broker_waits_for_dead_letters() -> None:
    with LocalBroker(topics={"orders": 2}) as broker:
        broker.produce("orders", "x", partition=1)

        async def fill(running: RunningBroker) -> None:
            await enable_queue(running)
            async with connected(running.broker.endpoint) as wire:
                await reject(running, wire, 0)

        broker.run_in_broker(fill)
        (found,) = broker.wait_for_dead_letters(GROUP)
        assert (found.reason, found.delivery_count) == (REJECTED, 1)
        broker.expect_nothing(QUEUE)
        assert broker.dead_letters(GROUP) == [found]


def test_external_kafka_resets_configs_of_groups() -> None:
    with LocalBroker(topics={"orders": 2}) as broker:
        kafka = ExternalKafka(broker.bootstrap_servers, settle_seconds=0.1)
        with kafka.one_test():
            kafka.create_topic(QUEUE, configs=ENABLED)
            kafka.configure_group(GROUP, {"errors.deadletterqueue.topic.name": QUEUE})
            assert kafka.dead_letters(GROUP) == []
        with pytest.raises(ValueError, match="has no dead-letter queue"):
            kafka.dead_letters(GROUP)
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            kafka.configure_group(GROUP, {"no.such.config": "1"})
        kafka.close()
