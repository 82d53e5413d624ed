"""Source that reads a topic of any Kafka cluster with Fetch requests, without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import Read, reading
from kbroker.client.errors import ClientError, NoSuchPartition
from kbroker.client.list_offsets import EARLIEST, LATEST, offsets_at
from kbroker.client.offset_spec import OffsetSpec, find
from kbroker.client.record_filter import Select
from kbroker.client.topics import Partition
from kbroker.pipelines.topic_ids import check_topic_id, topic_id_of
from kbroker.protocol.records import Record

from .merging import merge
from .sources import Chunk, Chunks, by_partition, in_partition, of_partition

# Start and end offset (exclusive).
Range = tuple[int, int]

# Time without records after which the ends of the partitions are checked, in seconds.
QUIET_SECONDS = 10


class TopicSource:
    """Offset ranges of a topic. Create it with `topic_source` or `remembered_topic`.

    Records of aborted transactions are skipped unless `committed` is False. Control records are
    always skipped.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        partitions: int,
        ranges: Mapping[int, Range],
        *,
        committed: bool,
        topic_id: str,
    ) -> None:
        self.name = f"topic {topic}"
        self.partitions: int | None = partitions
        self.total: int | None = sum(end - begin for begin, end in ranges.values())
        self._cluster = cluster
        self._topic = topic
        self._ranges = dict(ranges)
        self._committed = committed
        self._topic_id = topic_id

    def remembered(self) -> dict[str, object]:
        return {
            "ranges": {str(index): list(part) for index, part in self._ranges.items()},
            "partitions": self.partitions,
            "topic_id": self._topic_id,
        }

    def position_of(self, partition: int | None, record: Record) -> str:
        return in_partition(self.name, partition, record)

    def positions(self, chunk: Chunk) -> dict[str, int]:
        return by_partition(chunk)

    def resume_hints(self, positions: Mapping[str, int]) -> list[str]:
        return [
            f"-p {index} --from {max(positions.get(str(index), begin), begin)} --to {end}"
            for index, (begin, end) in sorted(self._ranges.items())
            if positions.get(str(index), begin) < end
        ]

    @asynccontextmanager
    async def reading(
        self, positions: Mapping[str, int], wanted: Select | None, *, in_order: bool
    ) -> AsyncIterator[Chunks]:
        """Implement `Source`. Raises ClientError and KafkaError."""
        left = {
            (self._topic, index): (max(begin, positions.get(str(index), begin)), end)
            for index, (begin, end) in self._ranges.items()
        }
        left = {partition: part for partition, part in left.items() if part[0] < part[1]}
        parts = [{one: left[one]} for one in sorted(left)] if in_order else [left]
        async with AsyncExitStack() as stack:
            streams = []
            for part in parts:
                channel = await stack.enter_async_context(
                    reading(self._cluster, part, committed=self._committed)
                )
                chunks = self._chunks(channel, part, wanted)
                streams.append(await stack.enter_async_context(aclosing(chunks)))
            joined = (
                await stack.enter_async_context(aclosing(merge(streams)))
                if in_order
                else (streams[0])
            )
            yield await stack.enter_async_context(aclosing(self._of_same_topic(joined)))

    async def _of_same_topic(self, chunks: Chunks) -> Chunks:
        """Yield chunks; finally raise ClientError if the topic was created again."""
        async for chunk in chunks:
            yield chunk
        await check_topic_id(self._cluster, self._topic, self._topic_id)

    async def _chunks(
        self,
        channel: trio.MemoryReceiveChannel[list[Read]],
        part: Mapping[Partition, Range],
        wanted: Select | None,
    ) -> Chunks:
        while True:
            found: list[Read] | None = None
            try:
                with trio.move_on_after(QUIET_SECONDS):
                    found = await channel.receive()
            except trio.EndOfChannel:
                return
            if found is None:
                await self._check_ends(part)
                continue
            topic, index = found[0].partition
            chunk = of_partition(topic, index, (read.record for read in found), wanted)
            if chunk.records:
                yield chunk

    async def _check_ends(self, part: Mapping[Partition, Range]) -> None:
        """Raise ClientError if a partition ends before the records to read."""
        ends = await offsets_at(self._cluster, part, LATEST, committed=self._committed)
        for one, (_, end) in part.items():
            if ends[one] < end:
                raise ClientError(
                    f"partition {one[1]} of {self._topic} ends at {ends[one]}, but its end was "
                    f"{end} when the replay started: it has lost records"
                )


async def topic_source(
    cluster: ClusterClient,
    topic: str,
    first: OffsetSpec,
    last: OffsetSpec,
    *,
    only: Sequence[int] = (),
    committed: bool = True,
) -> TopicSource:
    """Return the source for the current records of a topic between two bounds.

    Bounds outside a partition are limited to its start and end.

    Args:
        cluster: Client of the cluster.
        topic: Name of the topic.
        first: Start of each partition.
        last: End of each partition.
        only: Partitions to read; empty for all.
        committed: Skip records of aborted transactions.

    Returns:
        The source.

    Raises:
        NoSuchTopic: The topic does not exist.
        NoSuchPartition: A selected partition does not exist.
        ClientError: The offsets cannot be looked up.
    """
    count, topic_id = await _look_up(cluster, topic)
    for index in only:
        if index >= count:
            raise NoSuchPartition(topic, index, count)
    listed: list[Partition] = [(topic, index) for index in sorted(set(only)) or range(count)]
    starts = await offsets_at(cluster, listed, EARLIEST)
    ends = await offsets_at(cluster, listed, LATEST, committed=committed)
    begin = await find(cluster, listed, first, committed=committed)
    end = await find(cluster, listed, last, committed=committed)
    ranges = {one[1]: (max(begin[one], starts[one]), min(end[one], ends[one])) for one in listed}
    return TopicSource(
        cluster,
        topic,
        count,
        {index: part for index, part in ranges.items() if part[0] < part[1]},
        committed=committed,
        topic_id=topic_id,
    )


async def remembered_topic(
    cluster: ClusterClient, topic: str, remembered: Mapping[str, Any], *, committed: bool
) -> TopicSource:
    """Return the source of an earlier run from its `remembered` state.

    Raises:
        NoSuchTopic: The topic does not exist.
        ClientError: The topic was created again since the earlier run.
    """
    count, topic_id = await _look_up(cluster, topic)
    await check_topic_id(cluster, topic, remembered.get("topic_id", ""))
    known = {int(index): (begin, end) for index, (begin, end) in remembered["ranges"].items()}
    return TopicSource(
        cluster,
        topic,
        remembered.get("partitions", count),
        known,
        committed=committed,
        topic_id=topic_id,
    )


async def _look_up(cluster: ClusterClient, topic: str) -> tuple[int, str]:
    """Return the partition count and the topic ID."""
    (row,) = await cluster.topics([topic])
    return len(row.partitions), topic_id_of(row)
