"""Faults of the simulated store; `tests/cluster/test_store.py` tests the contract of stores."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock

from kbroker.cluster import Cluster, TopicsChanged
from kbroker.cluster.store import OPERATIONS_MAX, Change, Entry, MetadataStore, OutcomeUnknown
from kbroker.storage.errors import StorageError

from .seeded import run
from .store import SharedTruth, SimulatedStore, StoreFaults

WAIT_SECONDS = 10


@asynccontextmanager
async def running_store(seed: int = 1, **faults: float) -> AsyncIterator[SharedTruth]:
    async with trio.open_nursery() as nursery:
        truth = SharedTruth(Random(seed), StoreFaults(**faults))
        nursery.start_soon(truth.run)
        yield truth
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_client(truth: SharedTruth, name: str) -> AsyncIterator[SimulatedStore]:
    async with trio.open_nursery() as nursery:
        client = truth.client(name)
        nursery.start_soon(client.run)
        yield client
        nursery.cancel_scope.cancel()


async def put(client: MetadataStore, key: str) -> int | None:
    return await client.transact({key: {}}, compares={}, cause="test")


def keys(truth: SharedTruth) -> list[str]:
    return [key for change in truth.history for key in change.entries]


async def test_lost_request_is_not_applied(autojump_clock: MockClock) -> None:
    async with running_store(lost_requests=1) as truth:
        with pytest.raises(OutcomeUnknown):
            await put(truth.client("1"), "a")
        await trio.sleep(WAIT_SECONDS)
        assert keys(truth) == []
        assert truth.faults_met["lost_requests"] == 1


async def test_request_with_lost_response_is_applied(autojump_clock: MockClock) -> None:
    async with running_store(lost_responses=1) as truth:
        with pytest.raises(OutcomeUnknown):
            await put(truth.client("1"), "a")
        assert keys(truth) == ["a"]
        assert truth.faults_met["lost_responses"] == 1


async def test_late_request_is_applied_after_client_timeout(autojump_clock: MockClock) -> None:
    """The compares run when the request arrives: writes in between decide."""
    async with running_store(late_requests=1) as truth:
        client = truth.client("1")
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.transact({"a": {}}, compares={"a": 0}, cause="late")
        assert keys(truth) == []
        truth.faults.late_requests = 0
        done = await put(client, "b")
        await trio.sleep(WAIT_SECONDS)
        assert [change.entries.keys() for change in truth.history] == [{"b"}, {"a"}]
        assert done == 1


async def test_request_of_cancelled_client_is_applied(autojump_clock: MockClock) -> None:
    async with running_store(delay_seconds=0.5) as truth:
        with trio.move_on_after(0):
            await put(truth.client("1"), "a")
        assert keys(truth) == []
        await trio.sleep(WAIT_SECONDS)
        assert keys(truth) == ["a"]


async def test_stale_read_is_not_older_than_last_revision_of_its_client(
    autojump_clock: MockClock,
) -> None:
    async with running_store(stale_reads=1) as truth:
        writer, reader = truth.client("1"), truth.client("2")
        for number in range(10):
            await put(writer, str(number))
        revisions = [(await reader.range("")).revision for _ in range(20)]
        assert revisions == sorted(revisions)
        assert revisions[0] < revisions[-1]
        assert (await writer.range("")).revision == 10


@pytest.mark.parametrize(
    ("requests", "responses", "done"), [(True, True, []), (True, False, []), (False, True, ["a"])]
)
async def test_client_that_is_cut_off_catches_up_after_healing(
    requests: bool, responses: bool, done: list[str], autojump_clock: MockClock
) -> None:
    received: list[Change] = []
    async with running_store() as truth, running_client(truth, "1") as client:
        client.watch(received.append, after=0)
        truth.cut("1", requests=requests, responses=responses)
        with pytest.raises(OutcomeUnknown):
            await put(client, "a")
        assert keys(truth) == done
        await put(truth.client("2"), "b")
        await trio.sleep(WAIT_SECONDS)
        assert [key for change in received for key in change.entries] == (
            [] if responses else ["b"]
        )
        truth.heal("1")
        await put(client, "c")
        assert [key for change in received for key in change.entries] == [*done, "b", "c"]


async def test_client_behind_compaction_gets_the_difference(
    autojump_clock: MockClock,
) -> None:
    received: list[Change] = []
    async with running_store() as truth, running_client(truth, "1") as client:
        other = truth.client("2")
        client.watch(received.append, after=0)
        for key in ("kept", "changed", "gone", "anew"):
            await put(client, key)
        received.clear()
        truth.cut("1")
        await other.transact({"gone": None, "anew": None}, compares={}, cause="test")
        for key in ("changed", "changed", "anew", "new"):
            await put(other, key)
        truth.compact(truth.revision)
        truth.heal("1")
        await trio.sleep(WAIT_SECONDS)
        assert [(each.revision, each.entries) for each in received] == [
            (8, {"gone": None, "anew": None}),
            (9, {"changed": Entry({}, 7), "anew": Entry({}, 8), "new": Entry({}, 9)}),
        ]


async def test_cluster_behind_compaction_converges(
    autojump_clock: MockClock,
) -> None:
    """Topics were created, altered, extended and recreated while it was cut off."""
    async with (
        running_store() as truth,
        running_client(truth, "1") as here,
        running_client(truth, "2") as second,
    ):
        behind, ahead = await Cluster.open(here), await Cluster.open(second)
        for name in ("grown", "anew", "gone"):
            await ahead.create_topic(name, [[1], [1]], {}, cause="test")
        await trio.sleep(WAIT_SECONDS)
        received: list[TopicsChanged] = []
        behind.subscribe(received.append)
        truth.cut("1")
        for name in ("new", "new_and_grown"):
            await ahead.create_topic(name, [[1], [1]], {}, cause="test")
        for name in ("grown", "new_and_grown"):
            await ahead.add_partitions(name, [[1]], cause="test")
            assert await ahead.alter_topic_configs(ahead.topics[name], {"a": "b"}, cause="test")
        for name in ("anew", "gone"):
            await ahead.delete_topic(name, cause="test")
        await ahead.create_topic("anew", [[1], [1], [1]], {}, cause="test")
        truth.compact(truth.revision)
        truth.heal("1")
        await trio.sleep(WAIT_SECONDS)
        assert behind.topics == ahead.topics
        assert behind.topics_by_id == ahead.topics_by_id
        assert {topic.name for event in received for topic in event.deleted} == {"anew", "gone"}
        created = {topic.name for event in received for topic in event.created}
        assert created == {"anew", "new", "new_and_grown"}
        assert {topic.name for event in received for topic in event.altered} == {"grown"}


async def test_transaction_with_late_event_has_unknown_outcome(autojump_clock: MockClock) -> None:
    """A caller that gets a result would continue with a copy that lacks the change."""
    async with (
        running_store(late_events=1, timeout_seconds=0.1) as truth,
        running_client(truth, "1") as client,
    ):
        received: list[Change] = []
        client.watch(received.append, after=0)
        with pytest.raises(OutcomeUnknown):
            await put(client, "a")
        assert (keys(truth), received) == (["a"], [])
        await trio.sleep(WAIT_SECONDS)
        assert len(received) == 1


async def test_lease_ttl_is_rounded_up_and_lease_ends_if_holder_is_cut_off(
    autojump_clock: MockClock,
) -> None:
    async with running_store() as truth:
        client = truth.client("1")
        lease = await client.grant(0.6, holder="node 1")
        assert lease.ttl_seconds == 1
        assert await client.transact({"live/1": {}}, compares={}, cause="up", lease=lease)
        truth.cut("1")
        with pytest.raises(OutcomeUnknown):
            await lease.keep_alive()
        await trio.sleep(lease.ttl_seconds + 0.5)
        assert [change.cause for change in truth.history] == ["up", "lease of node 1 ended"]
        assert truth.faults_met["leases_ended"] == 1
        truth.heal("1")
        assert not await lease.keep_alive()


async def test_store_rejects_large_transactions_endless_leases_and_closed_clients(
    autojump_clock: MockClock,
) -> None:
    async with running_store() as truth:
        client = truth.client("1")
        with pytest.raises(ValueError, match="at most 127"):
            await client.transact(
                {str(n): {} for n in range(OPERATIONS_MAX + 1)}, compares={}, cause="test"
            )
        with pytest.raises(ValueError, match="TTL must be finite"):
            await client.grant(math.inf, holder="node 1")
        await client.aclose()
        with pytest.raises(StorageError, match="closed"):
            await client.range("")


def test_same_seed_gives_same_store_history() -> None:
    def met(seed: int) -> tuple[list[str], list[tuple[str, int]]]:
        """Return the stored keys and the faults met, in a run with all kinds of faults."""

        async def main() -> tuple[list[str], list[tuple[str, int]]]:
            often = dict.fromkeys(("lost_requests", "lost_responses", "late_requests"), 0.2)
            async with running_store(seed, late_events=0.2, **often) as truth:
                async with running_client(truth, "1") as client:
                    client.watch(lambda change: None, after=0)
                    for number in range(30):
                        try:
                            await put(client, str(number))
                        except OutcomeUnknown:
                            truth.faults_met["unknown"] += 1
                return keys(truth), sorted(truth.faults_met.items())

        return run(main, seed)

    assert met(7) == met(7)
    assert met(7) != met(8)
