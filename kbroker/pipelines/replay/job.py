"""A replay as the command asks for it: the source, the target and the journal put together."""

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

from .journal import Journal, ends_of, go_on, load
from .lake_source import LakeSource
from .ndjson_source import NdjsonSource
from .pace import Pace, Unpaced
from .partitioners import PartitionerName, RecordsByPartition, by_key, keeps_partitions, kept
from .replay import Begun, Replay, Shift
from .sources import Source
from .target import Target, Writer, look_at, missing
from .topic_source import remembered_topic, topic_source
from .values import Encode, Subject, encoding


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be replayed, and how.

    The source is a `topic`, the `lines` of a stream that is called `lines_name`, or `topic` in the
    directory `lake`. Values are written by the newest schema of `subject`, if there is one, else as they
    are. `shift_ms` is None for timestamps of which the first is now. `asked` is what the
    command said about what is written, by option: a run that goes on must be asked the same.
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
    """What a replay has to do with.

    `encode` gives records their new values; `keeps` is whether records keep their partitions;
    `journal` what an earlier run left.
    """

    source: Source
    target: Target
    encode: Encode
    keeps: bool
    journal: Journal | None

    @property
    def mixes(self) -> bool:
        """Whether several partitions of the source write to one of the target."""
        return not self.keeps and self.source.partitions != 1


async def find(order: Order, cluster: ClusterClient, to_cluster: ClusterClient) -> Found:
    """Look up source, target and journal; the target may be missing.

    Raises ClientError and KafkaError.
    """
    target = await look_at(to_cluster, order.to_topic)
    await _refuse_itself(order, cluster, target)
    journal = None if order.progress is None else load(order.progress, order.asked)
    if journal is not None and journal.finished:
        raise ClientError(f"{order.progress} says that all is written; delete it to begin anew")
    source = await _source(order, cluster, {} if journal is None else journal.source)
    encode = await encoding(order.subject, source)
    count = target.partitions or source.partitions or 0
    keeps = keeps_partitions(order.partitioner, source.partitions, count)
    return Found(source, target, encode, keeps, journal)


async def _refuse_itself(order: Order, cluster: ClusterClient, target: Target) -> None:
    is_topic = order.lines is None and order.lake is None
    if not is_topic or order.allow_same_topic or order.topic != order.to_topic:
        return
    if (await cluster.metadata([])).cluster_id == target.cluster_id:
        raise ClientError(
            f"this would write {order.topic} into itself; name another --to-topic, or say "
            "--allow-same-topic"
        )


async def _source(order: Order, cluster: ClusterClient, remembered: Mapping[str, Any]) -> Source:
    """The source; where it begins and ends was `remembered` if an earlier run found that out."""
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


def _bounds(order: Order, remembered: Mapping[str, Any]) -> tuple[OffsetSpec, OffsetSpec]:
    """Where to begin and end: `-2h` still counts from when the first run began."""
    if "bounds" not in remembered:
        return order.first, order.last
    first, last = (OffsetSpec(Kind(kind), value) for kind, value in remembered["bounds"])
    return first, last


def rehearse(order: Order, found: Found, written: Callable[[], None]) -> Replay:
    """A replay that writes nothing. Raises ClientError when nothing tells the partitions."""
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
        begun=None if found.journal is None else Begun(found.journal.positions),
        written=written,
    )


@dataclass(slots=True)
class Writing:
    """A replay that writes; `earlier` is how many records earlier runs have written.

    `keep` saves how far it came.
    """

    source: Source
    replay: Replay
    journal: Journal
    writer: Writer
    earlier: int

    def keep(self, *, finished: bool = False) -> None:
        """Save how far the replay came. Raises OSError."""
        self.journal.finished = finished
        if finished or not self.replay.is_behind:
            self.writer.keep(self.replay.positions, at_once=True)

    def left(self) -> list[str]:
        """For each stream that is not done, the options that go on with it."""
        return self.source.left(self.replay.positions)

    def written(self) -> None:
        """Save how far the replay came when it is time to.

        As long as it is behind the target, positions do not belong to the journal's sequences.
        """
        if not self.replay.is_behind:
            self.writer.keep(self.replay.positions)


async def prepare(
    order: Order, found: Found, to_cluster: ClusterClient, written: Callable[[], None]
) -> Writing:
    """A replay that writes; `written` is called whenever it has. Raises ClientError, KafkaError."""
    if not found.target.partitions:
        raise missing(found.target, found.source.partitions)
    count = found.target.partitions
    journal, begun = found.journal, Begun()
    if journal is None:
        identity = await new_identity(to_cluster)
        journal = await _new_journal(order, found, to_cluster, identity)
    else:
        identity, there = await go_on(to_cluster, order.to_topic, journal)
        begun = Begun(journal.positions, there)
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
    order: Order, found: Found, to_cluster: ClusterClient, identity: Identity
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
