"""Setup of a replay from a command's options: source, target and journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from kbroker.client.cluster import ClusterClient
from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import Kind, OffsetSpec
from kbroker.client.producer import AWAY_SECONDS, Identity, Producer, new_identity
from kbroker.client.record_filter import Selection
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
from .values import Encode, LoadEncoder, encoding


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Options of a replay.

    The source is a `topic`, the NDJSON `lines` of a stream named `lines_name`, or `topic` in the
    directory `lake`.

    Attributes:
        to_topic: Target topic.
        first: Start of each partition.
        last: End of each partition.
        wanted: Selects records; None for all.
        shift_ms: Milliseconds to add to timestamps; if None, the first timestamp becomes the
            current time.
        load_encoder: Returns the encoder of the values, or None to write them unchanged.
        committed: Skip records of aborted transactions.
        allow_same_topic: Allow a target that is the source topic.
        progress: Journal file, or None.
        asked: Options that affect the output, by name. A resumed run must have equal ones.
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
    wanted: Selection | None = None
    partitioner: PartitionerName = PartitionerName.AUTO
    shift_ms: int | None = 0
    load_encoder: LoadEncoder | None = None
    codec: Codec = Codec.NONE
    committed: bool = True
    allow_same_topic: bool = False
    progress: Path | None = None
    asked: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class ReplaySetup:
    """Source, target and state of a replay.

    Attributes:
        source: Source of the records.
        target: Target topic.
        encode: Returns records with the values to write.
        keeps_partitions: True if records keep their partitions.
        journal: State of an earlier run, or None.
    """

    source: Source
    target: Target
    encode: Encode
    keeps_partitions: bool
    journal: Journal | None

    @property
    def mixes_partitions(self) -> bool:
        """True if several partitions of the source are written to one partition of the target."""
        return not self.keeps_partitions and self.source.partitions != 1


async def look_up(
    request: ReplayRequest, cluster: ClusterClient, to_cluster: ClusterClient
) -> ReplaySetup:
    """Look up source, target and journal; the target may be missing.

    Raises:
        ClientError: The source does not exist, or the journal does not match the options.
        KafkaError: The broker returned an error.
    """
    target = await describe_target(to_cluster, request.to_topic)
    await _reject_same_topic(request, cluster, target)
    journal = None if request.progress is None else load(request.progress, request.asked)
    if journal is not None and journal.finished:
        raise ClientError(
            f"the replay of {request.progress} is finished; delete the file to replay again"
        )
    source = await _source(request, cluster, {} if journal is None else journal.source)
    encode = await encoding(request.load_encoder, source)
    if journal is not None and target.partitions:
        # Partitions added since the first run would change the partitions of keys.
        target = replace(target, partitions=len(journal.offsets))
    count = target.partitions or source.partitions or 0
    keeps = keeps_partitions(request.partitioner, source.partitions, count)
    return ReplaySetup(source, target, encode, keeps, journal)


async def _reject_same_topic(
    request: ReplayRequest, cluster: ClusterClient, target: Target
) -> None:
    is_topic = request.lines is None and request.lake is None
    if not is_topic or request.allow_same_topic or request.topic != request.to_topic:
        return
    if (await cluster.metadata([])).cluster_id == target.cluster_id:
        raise ClientError(
            f"this would write topic {request.topic} to itself; name another --to-topic, or pass "
            "--allow-same-topic"
        )


async def _source(
    request: ReplayRequest, cluster: ClusterClient, remembered: Mapping[str, Any]
) -> Source:
    """Return the source, with the range that an earlier run determined, if any."""
    first, last = _bounds(request, remembered)
    if request.lines is not None:
        return NdjsonSource(
            request.lines_name,
            request.lines,
            first,
            last,
            topic=request.topic,
            only=request.partitions,
        )
    assert request.topic is not None
    if request.lake is not None:
        lake = Path(request.lake)
        only = request.partitions
        return LakeSource(lake, request.topic, first, last, only=only, remembered=remembered)
    if "ranges" in remembered:
        return await remembered_topic(
            cluster, request.topic, remembered, committed=request.committed
        )
    return await topic_source(
        cluster, request.topic, first, last, only=request.partitions, committed=request.committed
    )


def _bounds(request: ReplayRequest, remembered: Mapping[str, Any]) -> tuple[OffsetSpec, OffsetSpec]:
    """Return start and end; times such as `-2h` count from the start of the first run."""
    if "bounds" not in remembered:
        return request.first, request.last
    first, last = (OffsetSpec(Kind(kind), value) for kind, value in remembered["bounds"])
    return first, last


def dry_run(request: ReplayRequest, setup: ReplaySetup, written: Callable[[], None]) -> Replay:
    """Return a replay that writes nothing.

    Args:
        request: Options of the replay.
        setup: Source and target.
        written: Called after each simulated write.

    Returns:
        The replay, not started.

    Raises:
        ClientError: The partition count of the target is unknown.
    """
    count = setup.target.partitions or setup.source.partitions
    if not count:
        raise missing(setup.target, None)

    async def write(placed: RecordsByPartition) -> None:
        pass

    return Replay(
        setup.source,
        write,
        kept(count) if setup.keeps_partitions else by_key(count),
        Unpaced(),
        Shift(request.shift_ms),
        wanted=request.wanted,
        encode=setup.encode,
        begun=None if setup.journal is None else ResumeState(setup.journal.positions),
        written=written,
    )


@dataclass(slots=True)
class WritingReplay:
    """A replay that writes, with its journal; `earlier` counts the records of earlier runs."""

    source: Source
    replay: Replay
    journal: Journal
    writer: Writer
    earlier: int

    def save(self, *, finished: bool = False) -> None:
        """Save the progress of the replay. Raises OSError."""
        self.journal.finished = finished
        if finished or not self.replay.is_behind:
            self.writer.save(self.replay.positions, at_once=True)

    def resume_hints(self) -> list[str]:
        """Return, for each unfinished stream, the options that resume it."""
        return self.source.resume_hints(self.replay.positions)

    def save_if_due(self) -> None:
        """Save the progress if the interval has passed.

        While the replay skips records that an earlier run has written, its positions do not match
        the journal's sequences, so nothing is saved.
        """
        if not self.replay.is_behind:
            self.writer.save(self.replay.positions)


async def prepare(
    request: ReplayRequest,
    setup: ReplaySetup,
    to_cluster: ClusterClient,
    written: Callable[[], None],
) -> WritingReplay:
    """Return a replay that writes, not started. It calls `written` after each write.

    Raises:
        ClientError: The target does not exist, or is not the one of the earlier run.
        KafkaError: The broker returned an error.
    """
    if not setup.target.partitions:
        raise missing(setup.target, setup.source.partitions)
    count = setup.target.partitions
    journal, begun = setup.journal, ResumeState()
    if journal is None:
        identity = await new_identity(to_cluster)
        journal = await _new_journal(request, setup, to_cluster, identity)
    else:
        identity, already_written = await resume(to_cluster, request.to_topic, journal)
        begun = ResumeState(journal.positions, already_written)
    producer = Producer(
        to_cluster, codec=request.codec, identity=identity, patience_seconds=AWAY_SECONDS
    )
    writer = Writer(producer, request.to_topic, journal, request.progress)

    def after_write() -> None:
        writing.save_if_due()
        written()

    replay = Replay(
        setup.source,
        writer.write,
        kept(count) if setup.keeps_partitions else by_key(count),
        request.pace,
        Shift(journal.shift_ms, found=writer.save_shift),
        wanted=request.wanted,
        encode=setup.encode,
        in_order=setup.mixes_partitions,
        begun=begun,
        written=after_write,
    )
    writing = WritingReplay(setup.source, replay, journal, writer, sum(identity.sequences.values()))
    writing.save()
    return writing


async def _new_journal(
    request: ReplayRequest, setup: ReplaySetup, to_cluster: ClusterClient, identity: Identity
) -> Journal:
    bounds = [[place.kind.value, place.value] for place in (request.first, request.last)]
    return Journal(
        request.asked,
        {"bounds": bounds} | setup.source.remembered(),
        identity.producer_id,
        identity.epoch,
        await ends_of(to_cluster, request.to_topic, setup.target.partitions),
        shift_ms=request.shift_ms,
        target_id=setup.target.topic_id,
    )
