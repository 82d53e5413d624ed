"""Reader of a topic for an audit: pieces of its partitions, and facts about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.configs import Resource, describe_configs
from kbroker.client.consumer import Fetched, reading_batches
from kbroker.client.errors import CannotRead, NoSuchPartition, first_error
from kbroker.client.list_offsets import EARLIEST, LATEST, offsets_at
from kbroker.client.topics import Partition
from kbroker.pipelines.topic_ids import check_topic_id, topic_id_of
from kbroker.protocol.errors import ErrorCode, KafkaError

from .findings import Findings
from .partition import PartitionAudit, PartitionFacts
from .rows import Piece, Rows

# Error codes of partitions with corrupt files.
DAMAGE = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE})
# Maximum wait for data before the end of a partition, in seconds. One wait without data is repeated,
# because this process may have been suspended.
QUIET_SECONDS = 60

# Callback that gets all records with their partition.
Watch = Callable[[int, Rows], None]


@dataclass(frozen=True, slots=True)
class Source:
    """A topic to audit.

    Attributes:
        cluster: Client of the cluster.
        topic: Name of the topic.
        committed: Ignore records of aborted transactions, and stop at the first open transaction.
        partitions: Partitions to read; empty for all.
    """

    cluster: ClusterClient
    topic: str
    committed: bool = True
    partitions: Collection[int] = ()


class TopicReader:
    """Reader of each partition of a topic. Create it with `open_topic`."""

    def __init__(
        self,
        source: Source,
        topic_id: str,
        facts: list[PartitionFacts],
        findings: Findings,
        *,
        compacted: bool,
    ) -> None:
        self.source = source
        self._topic_id = topic_id
        self.facts = facts
        self.compacted = compacted
        self.findings = findings

    @asynccontextmanager
    async def pieces(
        self, facts: PartitionFacts, watch: Watch | None = None
    ) -> AsyncIterator[AsyncIterator[Piece]]:
        """Read one partition; yields its pieces in order. Raises ClientError or KafkaError."""
        audit = PartitionAudit(
            facts, self.findings, compacted=self.compacted, committed=self.source.committed
        )
        send, receive = trio.open_memory_channel[Fetched | str](1)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, facts, send)
                yield _pieces(audit, receive, watch)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:  # hide the nursery from the caller
            raise first_error(group) from None

    async def _feed(
        self, facts: PartitionFacts, send: trio.MemorySendChannel[Fetched | str]
    ) -> None:
        """Send the fetched batches, or a string if the rest cannot be read."""
        partition = facts.topic, facts.partition
        begin, quiet_at = facts.begin, -1
        with send:
            while begin < facts.end:
                try:
                    async with reading_batches(
                        self.source.cluster,
                        {partition: (begin, facts.end)},
                        committed=self.source.committed,
                    ) as channel:
                        while fetched := await _next(channel):
                            await send.send(fetched)
                            begin = fetched.next_offset
                    if begin < facts.end:
                        await self._check_quiet_partition(facts, is_repeated=begin == quiet_at)
                        quiet_at = begin
                except (CannotRead, KafkaError) as error:
                    if error.code in DAMAGE:
                        await send.send(str(error))
                        break
                    begin = await self._advanced_start(partition, begin, error)
                    await send.send(Fetched(partition, b"", {}, begin, begin))
                except _QuietPartition as error:
                    await send.send(str(error))
                    break
            await check_topic_id(self.source.cluster, facts.topic, self._topic_id)

    async def _check_quiet_partition(self, facts: PartitionFacts, *, is_repeated: bool) -> None:
        """Raise _QuietPartition unless the missing records may still arrive."""
        partition = facts.topic, facts.partition
        ends = await offsets_at(
            self.source.cluster, [partition], LATEST, committed=self.source.committed
        )
        if ends[partition] < facts.end:
            raise _QuietPartition(
                f"the partition ends at {ends[partition]}, but its end was {facts.end} when the "
                "audit started: it has lost records"
            )
        if is_repeated:
            raise _QuietPartition(f"the broker sent no data for {2 * QUIET_SECONDS} s")

    async def _advanced_start(
        self, partition: Partition, begin: int, error: CannotRead | KafkaError
    ) -> int:
        """Return the log start offset if it advanced; otherwise raise the error."""
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise error
        starts = await offsets_at(self.source.cluster, [partition], EARLIEST)
        if starts[partition] <= begin:
            raise error
        return starts[partition]


class _QuietPartition(Exception):
    """No data arrives before the end of a partition."""


async def _next(channel: trio.MemoryReceiveChannel[Fetched]) -> Fetched | None:
    """Return the next Fetch response; None at the end, or after a timeout."""
    with trio.move_on_after(QUIET_SECONDS):
        async for fetched in channel:
            return fetched
    return None


async def _pieces(
    audit: PartitionAudit, channel: trio.MemoryReceiveChannel[Fetched | str], watch: Watch | None
) -> AsyncIterator[Piece]:
    async for found in channel:
        if isinstance(found, str):
            audit.report_unreadable(found)
            continue
        for piece in audit.read(found):
            if watch is not None and piece.rows.size:
                watch(audit.facts.partition, piece.rows)
            yield piece
    yield audit.finish()


async def open_topic(source: Source, findings: Findings) -> TopicReader:
    """Look up partitions, their start and end offsets, and whether the topic is compacted.

    Raises:
        NoSuchTopic: The topic does not exist.
        NoSuchPartition: A selected partition does not exist.
        ClientError: The topic cannot be read now.
    """
    cluster, topic = source.cluster, source.topic
    (row,) = await cluster.topics([topic])
    topic_id = topic_id_of(row)
    numbers = sorted(each.partition_index for each in row.partitions)
    for wanted in source.partitions:
        if wanted not in numbers:
            raise NoSuchPartition(topic, wanted, len(numbers))
    chosen = [(topic, number) for number in numbers if number in (source.partitions or numbers)]
    starts = await offsets_at(cluster, chosen, EARLIEST)
    ends = await offsets_at(cluster, chosen, LATEST, committed=source.committed)
    tops = await offsets_at(cluster, chosen, LATEST) if source.committed else ends
    facts = [
        PartitionFacts(
            *one, starts[one], starts[one], ends[one], beyond_stable=max(tops[one] - ends[one], 0)
        )
        for one in chosen
    ]
    compacted = await _is_compacted(cluster, topic)
    return TopicReader(source, topic_id, facts, findings, compacted=compacted)


async def _is_compacted(cluster: ClusterClient, topic: str) -> bool:
    settings = (await describe_configs(cluster, Resource.TOPIC, [topic]))[topic]
    policy = next((one.value or "" for one in settings if one.name == "cleanup.policy"), "")
    return "compact" in policy.split(",")
