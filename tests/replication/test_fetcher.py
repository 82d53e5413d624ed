"""Followers on real nodes: replication, and recovery after failures."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import Partition
from kbroker.cluster import Topic as ClusterTopic
from kbroker.cluster.peers import Peer
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.topics import DeleteRecordsRequest

from ..brokers import started
from ..wire import ANSWER_SECONDS, batch, delete_topic, produce, until
from .harness import (
    Links,
    links,
    log_on,
    place_topic,
    read_batches,
    replica_on,
    send,
    until_equal,
    until_leader,
    values_in,
    wire_to,
)

__all__ = ["links"]


async def test_records_and_high_watermarks_reach_all_followers() -> None:
    async with started(nodes=3) as broker:
        topic = await place_topic(broker, "t", 2, 1, 3)
        for number in range(20):
            assert await send(broker, 2, topic, b"v%d" % number, b"w") == 2 * number
        await until_equal(broker, "t", 1, 2, 3)
        assert values_in(log_on(broker, 3, "t"))[-2:] == [b"v19", b"w"]
        assert log_on(broker, 3, "t").epochs.entries == log_on(broker, 2, "t").epochs.entries


async def test_fetch_of_a_large_topic_handles_only_changed_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2, partitions=100)
        fetcher_manager = broker.local_node(2).node.replication.fetcher_manager
        looked_at: list[int] = []
        consider = fetcher_manager._update_leader

        def counted(topic: ClusterTopic, partition: Partition) -> None:
            looked_at.append(partition.index)
            consider(topic, partition)

        monkeypatch.setattr(fetcher_manager, "_update_leader", counted)
        cluster = broker.local_node(1).node.cluster
        await cluster.renew_leader(topic.name, 7, cause="test")
        assert looked_at == [7]


async def test_many_partitions_with_large_batches_are_replicated(tmp_path: Path) -> None:
    settings = {"replica_fetch_max_bytes": 1000, "replica_fetch_response_max_bytes": 5000}
    async with started(tmp_path, nodes=3, **settings) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3, partitions=8)
        async with wire_to(broker.local_node(1)) as wire:
            for number in range(40):
                records = batch([b"%d" % number * (1 if number % 5 else 3000)])
                row = await produce(wire, topic, records, partition=number % 8)
                assert row.error_code == 0
        for index in range(8):
            await until_equal(broker, "t", 1, 2, 3, index=index)
            assert len(values_in(log_on(broker, 3, "t", index))) == 5


async def test_acknowledged_records_are_synced_on_all_nodes(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await send(broker, 1, topic, b"x")
        assert [log_on(broker, each, "t").synced_offset for each in (1, 2, 3)] == [1, 1, 1]


async def test_new_leader_is_followed_and_the_old_leader_catches_up(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await send(broker, 1, topic, b"a")
        await broker.local_node(1).crash()
        leader = await until_leader(broker, "t", {2, 3})
        await send(broker, leader, topic, b"b")
        await broker.local_node(1).start()
        await until_equal(broker, "t", 1, 2, 3)
        assert values_in(log_on(broker, 1, "t")) == [b"a", b"b"]
        assert log_on(broker, 1, "t").epochs.entries == log_on(broker, leader, "t").epochs.entries


async def test_new_topic_does_not_wait_for_idle_partitions() -> None:
    async with started(nodes=3, replica_fetch_wait_max_ms=2 * ANSWER_SECONDS * 1000) as broker:
        for name in ("a", "b", "c"):
            topic = await place_topic(broker, name, 1, 2, 3)
            with trio.fail_after(ANSWER_SECONDS):
                await send(broker, 1, topic, b"x")


async def test_follower_behind_the_log_start_restarts_at_the_leaders_start(
    links: Links, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with started(nodes=2, replica_lag_time_max_ms=300) as broker:
        topic = await place_topic(broker, "t", 1, 2, configs={"internal.segment.bytes": "1000"})
        await send(broker, 1, topic, b"x" * 300)
        await until_equal(broker, "t", 1, 2)
        with links.holding(2):
            for _ in range(9):
                await send(broker, 1, topic, b"y" * 300)
            await _delete_records(broker, topic.name, 7)
        await until_equal(broker, "t", 1, 2)
        assert log_on(broker, 2, "t").log_start_offset == 7
        assert "t-0: restarted at 7 because the leader's log starts there" in caplog.text


async def test_follower_restarts_within_a_batch(links: Links) -> None:
    async with started(nodes=2, replica_lag_time_max_ms=300) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        with links.holding(2):
            await send(broker, 1, topic, *[b"%d" % number for number in range(10)])
            await _delete_records(broker, topic.name, 4)
            await until(lambda: log_on(broker, 1, "t").log_start_offset == 4)
        await until_equal(broker, "t", 1, 2)
        await until(lambda: log_on(broker, 2, "t").log_start_offset == 4)


async def test_follower_applies_the_leaders_log_start() -> None:
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2, configs={"internal.segment.bytes": "1000"})
        for _ in range(10):
            await send(broker, 1, topic, b"x" * 300)
        await _delete_records(broker, topic.name, 5)
        await until(lambda: log_on(broker, 2, "t").log_start_offset == 5)
        assert len(log_on(broker, 2, "t").segments) < 5


async def _delete_records(broker: Broker, name: str, offset: int) -> None:
    row = DeleteRecordsRequest.Partition(partition_index=0, offset=offset)
    ask = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.Topic(name=name, partitions=[row])], timeout_ms=100
    )
    async with wire_to(broker.local_node(1)) as wire:
        await wire.ask(ApiKey.DELETE_RECORDS, 2, ask)


async def test_recreated_topic_shares_nothing_with_the_deleted_one(
    links: Links, tmp_path: Path
) -> None:
    async with started(tmp_path, nodes=2, replica_lag_time_max_ms=300) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"old", b"old")
        await until_equal(broker, "t", 1, 2)
        with links.holding(2):
            async with wire_to(broker.local_node(1)) as wire:
                await delete_topic(wire, "t")
            recreated = await place_topic(broker, "t", 1, 2)
            assert recreated.id != topic.id
            await send(broker, 1, recreated, b"new")
        await until_equal(broker, "t", 1, 2)
        assert values_in(log_on(broker, 2, "t")) == [b"new"]
        assert log_on(broker, 2, "t").topic_id == recreated.id


async def test_unreachable_leader_is_logged_once(
    links: Links, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with started(nodes=2, replica_fetch_backoff_ms=50) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"x")
        refusing = broker.local_node(2).node.peers
        transport = refusing._transport

        async def refuse(endpoint: object) -> trio.abc.Stream:
            raise OSError("nobody there")

        refusing._transport = transport._replace(dial=refuse)
        broker.local_node(1).server.close_connections()
        await until(lambda: "are not fetched until it responds" in caplog.text)
        await trio.sleep(0.3)
        refusing._transport = transport
        await send(broker, 1, topic, b"y")
        await until_equal(broker, "t", 1, 2)
    assert caplog.text.count("are not fetched until it responds") == 1
    assert caplog.text.count("node 1 responds again") == 1


async def _leader_in_metadata_of(broker: Broker, node_id: int) -> tuple[int, int]:
    """Return the leader and the error code of t-0 in a node's Metadata response."""
    request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
    async with wire_to(broker.local_node(node_id)) as wire:
        (topic,) = (await wire.ask(ApiKey.METADATA, 12, request)).topics
    return topic.partitions[0].leader_id, topic.partitions[0].error_code


async def test_metadata_omits_a_leader_whose_process_is_gone() -> None:
    async with started(nodes=3, broker_session_timeout_ms=60_000) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await send(broker, 1, topic, b"x")
        assert await _leader_in_metadata_of(broker, 2) == (1, ErrorCode.NONE)
        await broker.local_node(1).crash()
        await until(
            lambda: broker.local_node(2).node.replication.fetcher_manager.is_leader_unreachable(1)
        )
        await trio.sleep(0.1)
        assert broker.local_node(2).node.replication.fetcher_manager.is_leader_unreachable(1)
        assert broker.local_node(2).node.cluster.is_ready(1), (
            "the session of node 1 has expired already"
        )
        assert await _leader_in_metadata_of(broker, 2) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        await broker.local_node(1).start()
        leader = await until_leader(broker, "t", {1, 2, 3})
        await send(broker, leader, topic, b"y")
        assert await _leader_in_metadata_of(broker, 5 - leader if leader > 1 else 2) == (leader, 0)


async def test_metadata_omits_a_dead_leader_before_the_fetcher_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(nodes=2, broker_session_timeout_ms=60_000) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"x")
        asks = trio.Event()

        async def notice_nothing(peer: Peer, message: object) -> None:
            asks.set()
            await trio.sleep_forever()

        monkeypatch.setattr(Peer, "ask", notice_nothing)
        await asks.wait()
        assert await _leader_in_metadata_of(broker, 2) == (1, ErrorCode.NONE)
        await broker.local_node(1).crash()
        assert await _leader_in_metadata_of(broker, 2) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)


async def test_metadata_names_an_unreachable_live_leader_after_its_session_timeout() -> None:
    async with started(nodes=2, broker_session_timeout_ms=1000) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"x")

        async def refuse(endpoint: object) -> trio.abc.Stream:
            raise ConnectionRefusedError

        peers = broker.local_node(2).node.peers
        transport, peers._transport = peers._transport, peers._transport._replace(dial=refuse)
        broker.local_node(1).server.close_connections()
        await until(
            lambda: broker.local_node(2).node.replication.fetcher_manager.is_leader_unreachable(1)
        )
        assert await _leader_in_metadata_of(broker, 2) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        assert await _leader_in_metadata_of(broker, 1) == (1, ErrorCode.NONE)
        await until(
            lambda: (
                not broker.local_node(2).node.replication.fetcher_manager.is_leader_unreachable(1)
            )
        )
        assert await _leader_in_metadata_of(broker, 2) == (1, ErrorCode.NONE)
        peers._transport = transport
        await until_equal(broker, "t", 1, 2)


async def test_restarted_follower_continues_at_its_log_end(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        topic = await place_topic(broker, "t", 1, 2, 3)
        await send(broker, 1, topic, b"a")
        await until_equal(broker, "t", 1, 2, 3)
        await broker.local_node(2).stop()
        await send(broker, 1, topic, b"b")
        await broker.local_node(2).start()
        await until_equal(broker, "t", 1, 2, 3)
        before = read_batches(log_on(broker, 1, "t"))
        assert read_batches(log_on(broker, 2, "t")) == before
        await until(lambda: 2 in replica_on(broker, 1, "t").partition.isr)


async def test_follower_log_moves_to_another_directory(tmp_path: Path) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    async with started(directories, nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"a")
        node = broker.local_node(2).node
        here = log_on(broker, 2, "t").directory
        (other,) = (
            each.data_dir for each in node.partitions.logs.managers if each.data_dir not in here
        )
        node.maintenance.log_dir_mover.begin("t", 0, other)
        await until(lambda: log_on(broker, 2, "t").directory.startswith(other))
        await send(broker, 1, topic, b"b")
        await until_equal(broker, "t", 1, 2)


async def test_bug_in_the_fetch_loop_is_counted_and_does_not_stop_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        follower = replica_on(broker, 2, "t")

        def fail(*_: object) -> int:
            raise AssertionError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(type(follower), "append_replicated", fail)
            await send(broker, 1, topic, b"x", acks=1)
            await until(lambda: broker.local_node(2).node.context.error_log.unhandled_errors)
        await until_equal(broker, "t", 1, 2)
        assert "fetching from node 1 failed" in caplog.text
        broker.local_node(2).node.context.error_log.unhandled_errors = 0


@pytest.mark.parametrize("damage", [True, False])
async def test_bytes_damaged_in_transit_are_fetched_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: bool
) -> None:
    """The damage is a wrong CRC or an incomplete batch."""
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        follower = type(replica_on(broker, 2, "t"))
        append = follower.append_replicated
        damaged: list[bool] = []

        def spoil(self: Replica, batches: memoryview, now_ms: int) -> int:
            if damaged:
                return append(self, batches, now_ms)
            damaged.append(True)
            spoiled = bytearray(batches)
            spoiled[-1] ^= 1
            return append(self, memoryview(spoiled if damage else spoiled[:-1]), now_ms)

        monkeypatch.setattr(follower, "append_replicated", spoil)
        await send(broker, 1, topic, b"x")
        await until_equal(broker, "t", 1, 2)
        assert "t-0: cannot fetch from node 1: CORRUPT_MESSAGE" in caplog.text


async def test_dropped_fetch_session_is_recreated() -> None:
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"a")
        broker.local_node(1).node.fetch_sessions._sessions.clear()
        await send(broker, 1, topic, b"b")
        await until_equal(broker, "t", 1, 2)


async def test_records_are_replicated_without_a_fetch_session() -> None:
    settings: dict[str, Any] = {"max.incremental.fetch.session.cache.slots": 0}
    async with started(nodes=2, **settings) as broker:
        topic = await place_topic(broker, "t", 1, 2, partitions=3)
        async with wire_to(broker.local_node(1)) as wire:
            for number in range(9):
                row = await produce(wire, topic, batch([b"x"]), partition=number % 3)
                assert row.error_code == 0
        for index in range(3):
            await until_equal(broker, "t", 1, 2, index=index)
