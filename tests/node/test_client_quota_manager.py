"""Tests of clients that the node throttles because they exceed a quota."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
)
from kbroker.security.quotas import Entity

from ..brokers import started
from ..handlers.quota_requests import (
    USER,
    set_quota,
)
from ..sharing import ShareMember, shared_topic
from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce_request,
    request,
)

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


KILOBYTE = 1000


class Stopwatch:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def passed_ms(self) -> float:
        return (time.monotonic() - self._began) * 1000


async def send_produce(
    wire: Wire, topic: Topic, size: int, *, acks: int = -1, client_id: str = "test"
) -> None:
    ask = produce_request(topic, batch([bytes(size)]), acks=acks)
    await wire.send(ApiKey.PRODUCE, 9, ask, answered=acks != 0, client_id=client_id)


async def test_throttled_consumer_gets_no_records_and_later_all() -> None:
    """The fetch session loses no records while the consumer is throttled."""
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(4):
            await send_produce(wire, topic, 10 * KILOBYTE)
            await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=3.9 * KILOBYTE)

        async def fetched(epoch: int, session_id: int = 0, offset: int = 0) -> Any:
            ask = fetch_request(
                topic,
                offset,
                partition_max_bytes=11 * KILOBYTE,
                session_epoch=epoch,
                session_id=session_id,
            )
            return await wire.ask(ApiKey.FETCH, 12, ask)

        first = await fetched(0)
        assert (first.throttle_time_ms, first.session_id > 0) == (0, True)
        session_id = first.session_id
        assert len(first.responses[0].partitions[0].records) > 10 * KILOBYTE
        second = await fetched(1, session_id, 1)
        third = await fetched(2, session_id, 2)
        assert (second.throttle_time_ms, third.throttle_time_ms) == (0, 0)
        stopwatch = Stopwatch()
        late = await fetched(3, session_id, 3)
        assert (late.error_code, late.session_id, late.responses) == (0, session_id, [])
        assert late.throttle_time_ms > 0
        await set_quota(wire, USER, consumer_byte_rate=1e6)
        assert stopwatch.passed_ms >= late.throttle_time_ms
        last = await fetched(4, session_id, 3)
        assert len(last.responses[0].partitions[0].records) > 10 * KILOBYTE


async def test_throttled_fetch_starts_no_session() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(2):
            await send_produce(wire, topic, 10 * KILOBYTE)
            await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=1.9 * KILOBYTE)
        requests = [
            fetch_request(topic, offset, partition_max_bytes=100, session_epoch=0)
            for offset in (0, 1)
        ]
        assert (await wire.ask(ApiKey.FETCH, 12, requests[0])).session_id > 0
        sessions = len(broker.node.fetch_sessions)
        response = await wire.ask(ApiKey.FETCH, 12, requests[1])
        assert (response.session_id, response.responses) == (0, [])
        assert response.throttle_time_ms > 0
        assert len(broker.node.fetch_sessions) == sessions


async def test_batch_larger_than_quota_is_returned() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await send_produce(wire, topic, 10 * KILOBYTE)
        await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=950)
        response = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic))
        assert len(response.responses[0].partitions[0].records) > 10 * KILOBYTE
        assert response.throttle_time_ms > 0


async def test_fetch_min_bytes_is_capped_by_quota() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(3):
            await send_produce(wire, topic, KILOBYTE)
            await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=220)  # 2.2 kB in ten windows
        ask = fetch_request(topic, max_wait_ms=600_000, min_bytes=3 * KILOBYTE)
        response = await wire.ask(ApiKey.FETCH, 12, ask)
        assert KILOBYTE < len(response.responses[0].partitions[0].records) < 2.2 * KILOBYTE


async def test_followers_are_never_throttled() -> None:
    async with started(nodes=2) as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, {"user": None}, consumer_byte_rate=1, request_percentage=0.001)
        await set_quota(wire, {"user": None}, request_percentage=None)
        ask = CreateTopicsRequest.Topic(name="t", num_partitions=1, replication_factor=2)
        response = await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[ask]))
        topic = Topic("t", response.topics[0].topic_id)
        leader = broker.node.cluster.topics["t"].partitions[0].leader
        async with connected(broker.local_node(leader).endpoint) as producer:
            for _ in range(3):
                await send_produce(producer, topic, 100 * KILOBYTE)
                response = await producer.receive()
                assert response.responses[0].partition_responses[0].error_code == 0


async def test_client_above_request_percentage_is_throttled() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        await set_quota(wire, USER, request_percentage=0.0001)
        stopwatch = Stopwatch()
        ask = request(ApiKey.METADATA, topics=None)
        for _ in range(2):  # the response for all topics is cached and shared
            response = await wire.ask(ApiKey.METADATA, 9, ask)
            assert response.throttle_time_ms == 1000, "at most one window (KIP-124)"
            assert [each.name for each in response.topics] == ["t"]
        assert stopwatch.passed_ms >= 1000
        async with connected(broker.endpoint) as other:
            await other.send(ApiKey.METADATA, 2, ask)
            assert [each.name for each in (await other.receive()).topics] == ["t"]
            await set_quota(other, USER, request_percentage=None)
            response = await other.ask(ApiKey.METADATA, 9, ask)
            assert response.throttle_time_ms == 0


async def create_partitions(wire: Wire, topic: str, partitions: int, version: int) -> Any:
    row = CreateTopicsRequest.Topic(name=topic, num_partitions=partitions, replication_factor=1)
    response = await wire.ask(ApiKey.CREATE_TOPICS, version, CreateTopicsRequest(topics=[row]))
    return response.topics[0].error_code, response.throttle_time_ms


async def test_client_above_controller_mutation_rate_is_throttled() -> None:
    """A bucket of 11 tokens is refilled at one per second; empty, it rejects requests (KIP-599)."""
    async with started() as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, USER, controller_mutation_rate=1)
        assert await create_partitions(wire, "a", 12, 6) == (0, 0)
        code, throttle_ms = await create_partitions(wire, "b", 1, 6)
        assert code == THROTTLED
        assert 0 < throttle_ms <= 1000
        assert "b" not in broker.node.cluster.topics
        assert await create_partitions(wire, "b", 3, 6) == (0, 0), (
            "the throttle time was sufficient"
        )
        row = CreatePartitionsRequest.Topic(name="a", count=13)
        ask = CreatePartitionsRequest(topics=[row])
        response = await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)
        assert response.results[0].error_code == THROTTLED
        async with connected(broker.endpoint) as other:
            ask = request(ApiKey.DELETE_TOPICS, topic_names=["a"])
            response = await other.ask(ApiKey.DELETE_TOPICS, 5, ask)
            assert response.responses[0].error_code == THROTTLED
        assert "a" in broker.node.cluster.topics


async def test_mutations_of_older_clients_succeed_with_delay() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, USER, controller_mutation_rate=10)
        stopwatch = Stopwatch()
        code, throttle_ms = await create_partitions(wire, "a", 115, 5)
        assert code == 0
        assert 0 < throttle_ms <= 500
        ask = request(ApiKey.DELETE_TOPICS, topic_names=["a"])
        response = await wire.ask(ApiKey.DELETE_TOPICS, 4, ask)
        assert stopwatch.passed_ms >= throttle_ms
        assert (response.responses[0].error_code, response.throttle_time_ms > 10_000) == (0, True)


async def test_connections_above_ip_rate_are_eventually_rejected() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=0.9e6)
        async with connected(broker.endpoint) as fine:
            assert await fine.works()
        await set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=1)
        rejected = 0
        for _ in range(12):
            async with connected(broker.endpoint) as one:
                try:
                    assert await one.works()
                except ConnectionClosed:
                    rejected += 1
        assert 1 <= rejected < 12
        assert await wire.works()
        await set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=None)
        async with connected(broker.endpoint) as fine:
            assert await fine.works()


async def test_listener_has_its_own_connection_rate() -> None:
    async with started(listener_name_plaintext_max_connection_creation_rate=2) as broker:
        stopwatch = Stopwatch()
        for _ in range(4):
            async with connected(broker.endpoint) as wire:
                assert await wire.works()
        assert stopwatch.passed_ms >= 400


async def test_random_client_ids_use_little_memory() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await set_quota(wire, {"client-id": None}, producer_byte_rate=1e6)
        meters = broker.node.quota_manager.rates
        for number in range(50):
            await send_produce(wire, topic, 1, client_id=f"{number}" + "x" * 20_000)
            await wire.receive()
        (produced,) = (each for each in meters.values() if len(each))
        assert len(produced) == 50
        assert max(len(str(key)) for key in produced._used) < 600


async def test_throttled_share_group_member_gets_no_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        for _ in range(6):
            await send_produce(wire, topic, 10 * KILOBYTE)
            await wire.receive()
        member = ShareMember(wire, topic)
        await member.begin()
        await set_quota(wire, USER, consumer_byte_rate=1e6)
        for offset in range(4):
            assert await member.acquire((), max_records=1) == [(offset, offset, 1)]
        await set_quota(wire, USER, consumer_byte_rate=3 * KILOBYTE)
        late = await member.fetch((), max_records=1)
        assert (late.error_code, late.responses) == (0, [])
        assert late.throttle_time_ms > 0
        await set_quota(wire, USER, consumer_byte_rate=1e6)
        assert await member.acquire((), max_records=1) == [(4, 4, 1)]


@pytest.mark.parametrize(
    "entity",
    [
        USER,
        {"user": None},
        {"client-id": "test"},
        {"client-id": None},
        {"user": "ANONYMOUS", "client-id": "test"},
    ],
)
async def test_throttled_producer_gets_response_and_then_waits(entity: Entity) -> None:
    """30 kB in 10 s are 3 kB/s, so a quota of 2.8 kB/s causes a delay of 0.7 s."""
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await set_quota(wire, entity, producer_byte_rate=2.8 * KILOBYTE)
        stopwatch = Stopwatch()
        await send_produce(wire, topic, 30 * KILOBYTE)
        await wire.send(ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[]))
        response = await wire.receive()
        assert response.responses[0].partition_responses[0].error_code == 0
        assert 700 <= response.throttle_time_ms < 800
        await wire.receive()
        assert stopwatch.passed_ms >= response.throttle_time_ms


async def test_muted_client_delays_neither_others_nor_stop() -> None:
    async with started() as broker, connected(broker.endpoint) as other:
        topic = await create_topic(other, "t")
        async with connected(broker.endpoint) as wire:
            await set_quota(other, {"client-id": "slow"}, producer_byte_rate=1)
            await send_produce(wire, topic, 100 * KILOBYTE, client_id="slow")
            response = await wire.receive()
            assert response.throttle_time_ms > 3_600_000
            await wire.send(ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[]))
            assert await other.works()
            assert await wire.is_silent()
            assert broker.node.limits.memory.used == 0
            stopwatch = Stopwatch()
    assert stopwatch.passed_ms < 30_000, "the broker waited for the muted client"


async def test_producer_with_acks_0_is_muted() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await set_quota(wire, USER, producer_byte_rate=2.8 * KILOBYTE)
        stopwatch = Stopwatch()
        await send_produce(wire, topic, 30 * KILOBYTE, acks=0)
        assert await wire.works()
        assert stopwatch.passed_ms >= 700


async def test_quota_change_applies_to_open_connections() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")

        async def throttled() -> bool:
            await send_produce(wire, topic, KILOBYTE)
            return bool((await wire.receive()).throttle_time_ms)

        assert not await throttled()
        async with connected(broker.endpoint) as other:
            await set_quota(other, USER, producer_byte_rate=100)
            assert await throttled()
            await set_quota(other, USER, producer_byte_rate=1e9)
            assert not await throttled()
            await set_quota(other, USER, producer_byte_rate=100)
            await set_quota(other, {**USER, "client-id": "test"}, producer_byte_rate=1e9)
            assert not await throttled()
            await set_quota(other, {**USER, "client-id": "test"}, producer_byte_rate=None)
            await set_quota(other, USER, producer_byte_rate=None)
            assert broker.node.cluster.client_quotas.of_clients is None
            assert not await throttled()
