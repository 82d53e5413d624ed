"""Resumed replays whose source or target has changed since the first run."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.consumer import Fetched
from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import END, START
from kbroker.client.producer import Producer
from kbroker.client.topics import (
    NewTopic,
    create_topics,
    delete_topics,
    grow_topic,
    wait_until_ready,
)
from kbroker.pipelines.replay import journal as journal_module
from kbroker.pipelines.replay.job import ReplayRequest, WritingReplay, look_up, prepare
from kbroker.pipelines.replay.journal import Journal, ends_of, load, resume
from kbroker.pipelines.replay.pace import Unpaced
from kbroker.pipelines.replay.partitioners import PartitionerName, kept
from kbroker.pipelines.replay.replay import Replay, ResumeState, Shift
from kbroker.protocol.records import HEADER_SIZE, Record, encode_batch

from ...brokers import started
from .given import ListSource, ListTarget, records

COUNT = 40
PARTITIONS = 2
Change = Callable[[ClusterClient], Awaitable[None]]


@asynccontextmanager
async def cluster_with_topics() -> AsyncIterator[ClusterClient]:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        await create(cluster, "orders", COUNT)
        await create(cluster, "copy", 0)
        yield cluster


async def create(cluster: ClusterClient, topic: str, count: int) -> None:
    await create_topics(cluster, [NewTopic(topic, PARTITIONS, 1)])
    await wait_until_ready(cluster, {topic: PARTITIONS})
    listed = [Record(b"k%d" % number, b"v", 1000 + number) for number in range(count)]
    for index in range(PARTITIONS):
        await Producer(cluster).write({(topic, index): listed})


async def recreate(cluster: ClusterClient, topic: str, count: int = COUNT) -> None:
    await delete_topics(cluster, [topic])
    await create(cluster, topic, count)


async def prepared(
    cluster: ClusterClient, progress: Path, partitioner: PartitionerName = PartitionerName.AUTO
) -> WritingReplay:
    request = ReplayRequest(
        "copy", START, END, Unpaced(), topic="orders", partitioner=partitioner, progress=progress
    )
    found = await look_up(request, cluster, cluster)
    return await prepare(request, found, cluster, lambda: None)


async def run_and_lose_progress(
    cluster: ClusterClient, progress: Path, partitioner: PartitionerName = PartitionerName.AUTO
) -> None:
    """Write all records, as a run that was killed before it saved its progress."""
    writing = await prepared(cluster, progress, partitioner)
    saved = load(progress, {})
    assert await writing.replay.run()
    assert saved is not None
    saved.save(progress)


@pytest.mark.parametrize(
    ("partitioner", "grown"),
    [
        (PartitionerName.KEY, "copy"),
        (PartitionerName.AUTO, "copy"),
        (PartitionerName.AUTO, "orders"),
    ],
)
async def test_partitions_added_between_runs_do_not_duplicate_records(
    partitioner: PartitionerName, grown: str, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    async with cluster_with_topics() as cluster:
        await run_and_lose_progress(cluster, progress, partitioner)
        await grow_topic(cluster, grown, PARTITIONS + 1)
        await wait_until_ready(cluster, {grown: PARTITIONS + 1})
        assert await (await prepared(cluster, progress, partitioner)).replay.run()
        count = PARTITIONS + (grown == "copy")
        assert sum((await ends_of(cluster, "copy", count)).values()) == PARTITIONS * COUNT


@pytest.mark.parametrize("topic", ["orders", "copy"])
async def test_topic_created_again_between_runs_is_rejected(topic: str, tmp_path: Path) -> None:
    """The new topic has as many records as the old one, so its offsets show no difference."""
    progress = tmp_path / "progress"
    async with cluster_with_topics() as cluster:
        await run_and_lose_progress(cluster, progress)
        await recreate(cluster, topic)
        with pytest.raises(ClientError, match=f"topic {topic} was deleted and created again"):
            await prepared(cluster, progress)


async def test_batch_whose_records_are_compacted_counts_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = bytearray(
        encode_batch(records(1, 2, 3), producer_id=7, producer_epoch=0, base_sequence=0)
    )
    emptied = whole[:HEADER_SIZE]
    struct.pack_into(">i", emptied, 8, HEADER_SIZE - 12)
    struct.pack_into(">i", emptied, HEADER_SIZE - 4, 0)

    @asynccontextmanager
    async def reading_batches(
        cluster: ClusterClient, ranges: object
    ) -> AsyncIterator[AsyncIterator[Fetched]]:
        async def found() -> AsyncIterator[Fetched]:
            yield Fetched(("copy", 0), bytes(emptied), {}, 0, 3)

        yield found()

    async with cluster_with_topics() as cluster:
        await Producer(cluster).write({("copy", 0): records(1, 2, 3)})
        monkeypatch.setattr(journal_module, "reading_batches", reading_batches)
        _, already_written = await resume(cluster, "copy", Journal({}, {}, 7, 0, {"0": 0}))
    assert already_written == {0: 3}


async def test_source_that_has_lost_written_records_is_rejected() -> None:
    begun = ResumeState({}, {0: 4})
    source = ListSource(records(1, 2, 3))
    replay = Replay(source, ListTarget().write, kept(1), Unpaced(), Shift(0), begun=begun)
    with pytest.raises(ClientError, match="the source ends before the records"):
        await replay.run()
