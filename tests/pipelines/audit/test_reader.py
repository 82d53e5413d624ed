"""Reading a partition that changes, or whose data does not arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.consumer import Fetched
from kbroker.client.errors import ClientError
from kbroker.client.producer import Producer
from kbroker.client.topics import (
    NewTopic,
    Partition,
    create_topics,
    delete_topics,
    wait_until_ready,
)
from kbroker.pipelines.audit import Kind, Source, reader
from kbroker.pipelines.audit.findings import Findings
from kbroker.pipelines.audit.reader import TopicReader, open_topic
from kbroker.pipelines.audit.rows import Reason
from kbroker.protocol.records import Record, encode_batch

from ...brokers import started

COUNT = 3
RECORDS = [Record(b"k%d" % number, b"v", 1000 + number) for number in range(COUNT)]


@asynccontextmanager
async def cluster_with_topic(policy: str = "delete") -> AsyncIterator[ClusterClient]:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create_filled_topic(cluster, policy)
        yield cluster


async def create_filled_topic(cluster: ClusterClient, policy: str = "delete") -> None:
    await create_topics(cluster, [NewTopic("t", 1, 1, {"cleanup.policy": policy})])
    await wait_until_ready(cluster, {"t": 1})
    await Producer(cluster).write({("t", 0): RECORDS})


async def read_all(opened: TopicReader) -> int:
    """Read the only partition and return the number of its records."""
    (facts,) = opened.facts
    async with opened.pieces(facts) as pieces:
        return sum([piece.rows.size async for piece in pieces])


@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_partition_that_has_lost_its_end_is_reported(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "QUIET_SECONDS", 0.1)
    findings = Findings()
    async with cluster_with_topic(policy) as cluster:
        opened = await open_topic(Source(cluster, "t"), findings)
        opened.facts[0].end += 5
        assert await read_all(opened) == COUNT
    assert opened.facts[0].absent == {Reason.DAMAGED: 5}
    assert "ends at 3, but its end was 8" in findings.text()


async def test_topic_created_again_during_audit_is_an_error() -> None:
    async with cluster_with_topic() as cluster:
        opened = await open_topic(Source(cluster, "t"), Findings())
        await delete_topics(cluster, ["t"])
        await create_filled_topic(cluster)
        with pytest.raises(ClientError, match="was deleted and created again"):
            await read_all(opened)


class SilentTopic:
    """Stands in for `reading_batches`; the first `silent` calls return nothing."""

    def __init__(self, silent: int) -> None:
        self.silent = silent

    @asynccontextmanager
    async def reading_batches(
        self, cluster: ClusterClient, ranges: dict[Partition, tuple[int, int]], *, committed: bool
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Fetched]]:
        send, receive = trio.open_memory_channel[Fetched](1)
        self.silent -= 1
        if self.silent < 0:
            await send.send(Fetched(("t", 0), encode_batch(RECORDS), {}, 0, COUNT))
            send.close()
        yield receive


@pytest.mark.parametrize(("silent", "found"), [(1, {}), (2, {Kind.DAMAGED: 1})])
async def test_wait_without_data_is_repeated_once(
    silent: int, found: dict[Kind, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended process may find its time limit expired before it has seen the response."""
    monkeypatch.setattr(reader, "QUIET_SECONDS", 0.1)
    findings = Findings()
    async with cluster_with_topic() as cluster:
        opened = await open_topic(Source(cluster, "t"), findings)
        monkeypatch.setattr(reader, "reading_batches", SilentTopic(silent).reading_batches)
        assert await read_all(opened) == (0 if found else COUNT)
    assert findings.counts == found
