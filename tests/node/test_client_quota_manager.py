"""Clients above their quota, throttled by the node."""

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


class Seconds:
    """How long something takes, at least."""

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


async def test_a_consumer_above_its_quota_gets_no_records_and_then_all_of_them() -> None:
    """In a session, of which nothing is lost meanwhile."""
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
        passed = Seconds()
        late = await fetched(3, session_id, 3)
        assert (late.error_code, late.session_id, late.responses) == (0, session_id, [])
        assert late.throttle_time_ms > 0
        await set_quota(wire, USER, consumer_byte_rate=1e6)
        assert passed.passed_ms >= late.throttle_time_ms
        last = await fetched(4, session_id, 3)
        assert len(last.responses[0].partitions[0].records) > 10 * KILOBYTE


async def test_a_session_does_not_begin_with_an_answer_without_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(2):
            await send_produce(wire, topic, 10 * KILOBYTE)
            await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=1.9 * KILOBYTE)
        asks = [
            fetch_request(topic, offset, partition_max_bytes=100, session_epoch=0)
            for offset in (0, 1)
        ]
        assert (await wire.ask(ApiKey.FETCH, 12, asks[0])).session_id > 0
        sessions = len(broker.node.fetch_sessions)
        answer = await wire.ask(ApiKey.FETCH, 12, asks[1])
        assert (answer.session_id, answer.responses) == (0, [])
        assert answer.throttle_time_ms > 0
        assert len(broker.node.fetch_sessions) == sessions


async def test_a_batch_that_is_larger_than_any_quota_comes_all_the_same() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await send_produce(wire, topic, 10 * KILOBYTE)
        await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=950)
        answer = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic))
        assert len(answer.responses[0].partitions[0].records) > 10 * KILOBYTE
        assert answer.throttle_time_ms > 0


async def test_a_fetch_does_not_wait_for_more_than_it_can_get() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for _ in range(3):
            await send_produce(wire, topic, KILOBYTE)
            await wire.receive()
        await set_quota(wire, USER, consumer_byte_rate=220)  # 2.2 kB in ten windows
        ask = fetch_request(topic, max_wait_ms=600_000, min_bytes=3 * KILOBYTE)
        answer = await wire.ask(ApiKey.FETCH, 12, ask)
        assert KILOBYTE < len(answer.responses[0].partitions[0].records) < 2.2 * KILOBYTE


async def test_followers_are_never_held_back() -> None:
    async with started(nodes=2) as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, {"user": None}, consumer_byte_rate=1, request_percentage=0.001)
        await set_quota(wire, {"user": None}, request_percentage=None)
        ask = CreateTopicsRequest.Topic(name="t", num_partitions=1, replication_factor=2)
        answer = await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[ask]))
        topic = Topic("t", answer.topics[0].topic_id)
        leader = broker.node.cluster.topics["t"].partitions[0].leader
        async with connected(broker.local_node(leader).endpoint) as producer:
            for _ in range(3):
                await send_produce(producer, topic, 100 * KILOBYTE)
                answer = await producer.receive()
                assert answer.responses[0].partition_responses[0].error_code == 0


async def test_what_takes_the_time_of_the_event_loop_is_held_back() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        await set_quota(wire, USER, request_percentage=0.0001)
        passed = Seconds()
        ask = request(ApiKey.METADATA, topics=None)
        for _ in range(2):  # the answer about all topics is made once, and the same for all
            answer = await wire.ask(ApiKey.METADATA, 9, ask)
            assert answer.throttle_time_ms == 1000, "at most one window (KIP-124)"
            assert [each.name for each in answer.topics] == ["t"]
        assert passed.passed_ms >= 1000
        async with connected(broker.endpoint) as other:
            await other.send(ApiKey.METADATA, 2, ask)
            assert [each.name for each in (await other.receive()).topics] == ["t"]
            await set_quota(other, USER, request_percentage=None)
            answer = await other.ask(ApiKey.METADATA, 9, ask)
            assert answer.throttle_time_ms == 0


async def mutations(wire: Wire, topic: str, partitions: int, version: int) -> Any:
    row = CreateTopicsRequest.Topic(name=topic, num_partitions=partitions, replication_factor=1)
    answer = await wire.ask(ApiKey.CREATE_TOPICS, version, CreateTopicsRequest(topics=[row]))
    return answer.topics[0].error_code, answer.throttle_time_ms


async def test_who_makes_too_many_partitions_is_told_so() -> None:
    """A bucket of 11 is filled by one per second; who finds it empty is refused (KIP-599)."""
    async with started() as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, USER, controller_mutation_rate=1)
        assert await mutations(wire, "a", 12, 6) == (0, 0)
        code, throttle_ms = await mutations(wire, "b", 1, 6)
        assert code == THROTTLED
        assert 0 < throttle_ms <= 1000
        assert "b" not in broker.node.cluster.topics
        assert await mutations(wire, "b", 3, 6) == (0, 0), "the time told was enough"
        row = CreatePartitionsRequest.Topic(name="a", count=13)
        ask = CreatePartitionsRequest(topics=[row])
        answer = await wire.ask(ApiKey.CREATE_PARTITIONS, 3, ask)
        assert answer.results[0].error_code == THROTTLED
        async with connected(broker.endpoint) as other:
            ask = request(ApiKey.DELETE_TOPICS, topic_names=["a"])
            answer = await other.ask(ApiKey.DELETE_TOPICS, 5, ask)
            assert answer.responses[0].error_code == THROTTLED
        assert "a" in broker.node.cluster.topics


async def test_older_clients_get_what_they_ask_for_and_wait() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, USER, controller_mutation_rate=10)
        passed = Seconds()
        code, throttle_ms = await mutations(wire, "a", 115, 5)
        assert code == 0
        assert 0 < throttle_ms <= 500
        ask = request(ApiKey.DELETE_TOPICS, topic_names=["a"])
        answer = await wire.ask(ApiKey.DELETE_TOPICS, 4, ask)
        assert passed.passed_ms >= throttle_ms
        assert (answer.responses[0].error_code, answer.throttle_time_ms > 10_000) == (0, True)


async def test_who_connects_too_often_is_turned_away_after_a_while() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=0.9e6)
        async with connected(broker.endpoint) as fine:
            assert await fine.works()
        await set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=1)
        refused = 0
        for _ in range(12):
            async with connected(broker.endpoint) as one:
                try:
                    assert await one.works()
                except ConnectionClosed:
                    refused += 1
        assert 1 <= refused < 12
        assert await wire.works()
        await set_quota(wire, {"ip": "127.0.0.1"}, connection_creation_rate=None)
        async with connected(broker.endpoint) as fine:
            assert await fine.works()


async def test_a_listener_has_a_rate_of_connections_of_its_own() -> None:
    async with started(listener_name_plaintext_max_connection_creation_rate=2) as broker:
        passed = Seconds()
        for _ in range(4):
            async with connected(broker.endpoint) as wire:
                assert await wire.works()
        assert passed.passed_ms >= 400


async def test_made_up_client_ids_cost_no_memory() -> None:
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


async def test_a_member_of_a_share_group_above_its_quota_is_given_no_records() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        for _ in range(6):
            await send_produce(wire, topic, 10 * KILOBYTE)
            await wire.receive()
        member = ShareMember(wire, topic)
        await member.begin()
        await set_quota(wire, USER, consumer_byte_rate=1e6)
        for offset in range(4):
            assert await member.take((), max_records=1) == [(offset, offset, 1)]
        await set_quota(wire, USER, consumer_byte_rate=3 * KILOBYTE)
        late = await member.fetch((), max_records=1)
        assert (late.error_code, late.responses) == (0, [])
        assert late.throttle_time_ms > 0
        await set_quota(wire, USER, consumer_byte_rate=1e6)
        assert await member.take((), max_records=1) == [(4, 4, 1)]


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
async def test_a_producer_above_its_quota_is_answered_and_then_waits(entity: Entity) -> None:
    """30 kB over 10 s are 3 kB/s: of 2.8 kB/s that is 0.7 s too early."""
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await set_quota(wire, entity, producer_byte_rate=2.8 * KILOBYTE)
        passed = Seconds()
        await send_produce(wire, topic, 30 * KILOBYTE)
        await wire.send(ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[]))
        answer = await wire.receive()
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert 700 <= answer.throttle_time_ms < 800
        await wire.receive()
        assert passed.passed_ms >= answer.throttle_time_ms


async def test_who_is_muted_holds_up_nobody_and_is_closed_at_once() -> None:
    async with started() as broker, connected(broker.endpoint) as other:
        topic = await create_topic(other, "t")
        async with connected(broker.endpoint) as wire:
            await set_quota(other, {"client-id": "slow"}, producer_byte_rate=1)
            await send_produce(wire, topic, 100 * KILOBYTE, client_id="slow")
            answer = await wire.receive()
            assert answer.throttle_time_ms > 3_600_000
            await wire.send(ApiKey.METADATA, 9, request(ApiKey.METADATA, topics=[]))
            assert await other.works()
            assert await wire.is_silent()
            assert broker.node.request_memory.used == 0
            passed = Seconds()
    assert passed.passed_ms < 30_000, "the broker did not wait for it"


async def test_a_producer_that_wants_no_answers_is_muted_as_well() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await set_quota(wire, USER, producer_byte_rate=2.8 * KILOBYTE)
        passed = Seconds()
        await send_produce(wire, topic, 30 * KILOBYTE, acks=0)
        assert await wire.works()
        assert passed.passed_ms >= 700


async def test_a_change_rules_at_once_on_connections_that_are_open() -> None:
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
