"""Setup of a replay from a command's options: source, target and journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from kbroker.client.cluster import ClusterClient
from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import Kind, OffsetSpec
from kbroker.client.producer import AWAY_SECONDS, Identity, Producer, new_identity
from kbroker.client.record_filter import RecordPredicate
from kbroker.protocol.compression import Codec

from .journal import Journal, ends_of, load, resume
from .lake_source import LakeSource
from .ndjson_source import NdjsonSource
from .pace import Pace, Unpaced
from .partitioners import PartitionerName, RecordsByPartition, by_key, keeps_partitions, kept
from .replay import Replay, ResumeState, Shift
from .sources import Source
from .target import Target, Writer, describe_target, missing
from .topic_source import remembered_topic, topic_source
from .values import Encode, Subject, encoding


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Options of a replay.

    The source is a `topic`, the NDJSON `lines` of a stream named `lines_name`, or `topic` in the
    directory `lake`. If `subject` is set, values are encoded with its newest schema. If `shift_ms`
    is None, the first timestamp becomes the current time. `asked` has the options that affect the
    output, by name: a resumed run must have the same.
    """

    to_topic: str
    first: OffsetSpec
    last: OffsetSpec
    pace: Pace
    topic: str | None = None
    lines: BinaryIO | None = None
    lines_name: str = "the standard input"
    lake: str | None = None
    partitions: tuple[int, ...] = ()
    wanted: RecordPredicate | None = None
    partitioner: PartitionerName = PartitionerName.AUTO
    shift_ms: int | None = 0
    subject: Subject | None = None
    codec: Codec = Codec.NONE
    committed: bool = True
    allow_same_topic: bool = False
    progress: Path | None = None
    asked: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """Source, target and state of a replay.

    Attributes:
        source: Where records are read.
        target: Where records are written.
        encode: Returns records with the values to write.
        keeps: Records keep their partitions.
        journal: State of an earlier run, or None.
    """

    source: Source
    target: Target
    encode: Encode
    keeps: bool
    journal: Journal | None

    @property
    def mixes(self) -> bool:
        """True if several partitions of the source are written to one partition of the target."""
        return not self.keeps and self.source.partitions != 1


async def find(order: ReplayRequest, cluster: ClusterClient, to_cluster: ClusterClient) -> Found:
    """Look up source, target and journal; the target may be missing.

    Raises:
        ClientError: The source does not exist, or the journal does not match the options.
        KafkaError: The broker returned an error.
    """
    target = await describe_target(to_cluster, order.to_topic)
    await _reject_same_topic(order, cluster, target)
    journal = None if order.progress is None else load(order.progress, order.asked)
    if journal is not None and journal.finished:
        raise ClientError(
            f"the replay of {order.progress} is finished; delete the file to replay again"
        )
    source = await _source(order, cluster, {} if journal is None else journal.source)
    encode = await encoding(order.subject, source)
    count = target.partitions or source.partitions or 0
    keeps = keeps_partitions(order.partitioner, source.partitions, count)
    return Found(source, target, encode, keeps, journal)


async def _reject_same_topic(order: ReplayRequest, cluster: ClusterClient, target: Target) -> None:
    is_topic = order.lines is None and order.lake is None
    if not is_topic or order.allow_same_topic or order.topic != order.to_topic:
        return
    if (await cluster.metadata([])).cluster_id == target.cluster_id:
        raise ClientError(
            f"this would write topic {order.topic} to itself; name another --to-topic, or pass "
            "--allow-same-topic"
        )


async def _source(
    order: ReplayRequest, cluster: ClusterClient, remembered: Mapping[str, Any]
) -> Source:
    """Return the source, with the range that an earlier run determined, if any."""
    first, last = _bounds(order, remembered)
    if order.lines is not None:
        return NdjsonSource(
            order.lines_name, order.lines, first, last, topic=order.topic, only=order.partitions
        )
    assert order.topic is not None
    if order.lake is not None:
        lake = Path(order.lake)
        return LakeSource(lake, order.topic, first, last, only=order.partitions)
    if "ranges" in remembered:
        ranges = remembered["ranges"]
        return await remembered_topic(cluster, order.topic, ranges, committed=order.committed)
    return await topic_source(
        cluster, order.topic, first, last, only=order.partitions, committed=order.committed
    )


def _bounds(order: ReplayRequest, remembered: Mapping[str, Any]) -> tuple[OffsetSpec, OffsetSpec]:
    """Return start and end; times such as `-2h` count from the start of the first run."""
    if "bounds" not in remembered:
        return order.first, order.last
    first, last = (OffsetSpec(Kind(kind), value) for kind, value in remembered["bounds"])
    return first, last


def dry_run(order: ReplayRequest, found: Found, written: Callable[[], None]) -> Replay:
    """Return a replay that writes nothing. Raises ClientError if the partition count is unknown."""
    count = found.target.partitions or found.source.partitions
    if not count:
        raise missing(found.target, None)

    async def write(placed: RecordsByPartition) -> None:
        pass

    return Replay(
        found.source,
        write,
        kept(count) if found.keeps else by_key(count),
        Unpaced(),
        Shift(order.shift_ms),
        wanted=order.wanted,
        encode=found.encode,
        begun=None if found.journal is None else ResumeState(found.journal.positions),
        written=written,
    )


@dataclass(slots=True)
class Writing:
    """A replay that writes, with its journal; `earlier` counts the records of earlier runs."""

    source: Source
    replay: Replay
    journal: Journal
    writer: Writer
    earlier: int

    def keep(self, *, finished: bool = False) -> None:
        """Save the progress of the replay. Raises OSError."""
        self.journal.finished = finished
        if finished or not self.replay.is_behind:
            self.writer.keep(self.replay.positions, at_once=True)

    def left(self) -> list[str]:
        """Return, for each unfinished stream, the options that resume it."""
        return self.source.left(self.replay.positions)

    def written(self) -> None:
        """Save the progress if the interval has passed.

        While the replay skips records that an earlier run has written, its positions do not match
        the journal's sequences, so nothing is saved.
        """
        if not self.replay.is_behind:
            self.writer.keep(self.replay.positions)


async def prepare(
    order: ReplayRequest, found: Found, to_cluster: ClusterClient, written: Callable[[], None]
) -> Writing:
    """Return a replay that writes, and calls `written` after each write.

    Raises:
        ClientError: The target does not exist, or is not the one of the earlier run.
        KafkaError: The broker returned an error.
    """
    if not found.target.partitions:
        raise missing(found.target, found.source.partitions)
    count = found.target.partitions
    journal, begun = found.journal, ResumeState()
    if journal is None:
        identity = await new_identity(to_cluster)
        journal = await _new_journal(order, found, to_cluster, identity)
    else:
        identity, there = await resume(to_cluster, order.to_topic, journal)
        begun = ResumeState(journal.positions, there)
    producer = Producer(
        to_cluster, codec=order.codec, identity=identity, patience_seconds=AWAY_SECONDS
    )
    writer = Writer(producer, order.to_topic, journal, order.progress)

    def shift_found(ms: int) -> None:
        journal.shift_ms = ms
        writer.keep(journal.positions, at_once=True)

    def after_write() -> None:
        writing.written()
        written()

    replay = Replay(
        found.source,
        writer.write,
        kept(count) if found.keeps else by_key(count),
        order.pace,
        Shift(journal.shift_ms, found=shift_found),
        wanted=order.wanted,
        encode=found.encode,
        in_order=found.mixes,
        begun=begun,
        written=after_write,
    )
    writing = Writing(found.source, replay, journal, writer, sum(identity.sequences.values()))
    writing.keep()
    return writing


async def _new_journal(
    order: ReplayRequest, found: Found, to_cluster: ClusterClient, identity: Identity
) -> Journal:
    bounds = [[place.kind.value, place.value] for place in (order.first, order.last)]
    return Journal(
        order.asked,
        {"bounds": bounds} | found.source.remembered(),
        identity.producer_id,
        identity.epoch,
        await ends_of(to_cluster, order.to_topic, found.target.partitions),
        shift_ms=order.shift_ms,
    )
