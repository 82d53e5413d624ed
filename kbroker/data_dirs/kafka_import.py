"""Import the partitions of a stopped Apache Kafka: `kbroker log import`.

Apache Kafka and kbroker write the same files, so segments, indexes, epochs, producer snapshots and
`__consumer_offsets` are taken as they are, with the checkpoints that say how far they are safe.
What Kafka keeps in its metadata log instead (settings of topics, leader epochs, producer ids, users,
ACLs, quotas) is read from there.

The new data directory counts as one only when everything is in it: `meta.properties` is written last,
and a broker refuses a directory with topics but without that file. A run that was interrupted is
continued by the same command.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

from kbroker.cluster import Cluster, LocalStore
from kbroker.cluster.model import Partition as ClusterPartition
from kbroker.cluster.model import Topic, check_topic_name, random_cluster_id
from kbroker.config import BrokerConfig, ConfigError, validate_topic_configs
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.metadata_log import (
    BROKER_RESOURCE,
    LEADER_UNCHANGED,
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RightsRecord,
    decode_metadata_record,
)
from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import iter_headers
from kbroker.runtime.threads import at_once
from kbroker.storage.batches import BEGINNING, Position, walk_headers
from kbroker.storage.checkpoints import (
    MetaProperties,
    OffsetCheckpoints,
    Offsets,
    PartitionMetadata,
    clean_marker,
)
from kbroker.storage.epochs import LeaderEpochs
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.files import OsFiles
from kbroker.storage.naming import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOCK,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    directory_name,
    parse_directory_name,
    parse_file_name,
    segments_from,
)
from kbroker.storage.producer_state import ProducerStates
from kbroker.storage.sync import sync_file

from .found_directories import METADATA_JOURNAL
from .imported_security import ImportedSecurity

logger = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
FILES = (META_PROPERTIES, LOCK, CLEAN_SHUTDOWN, RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
"""What is read of a directory beside its partitions."""
INT32_MAX = 2**31 - 1
CAUSE = "imported from Apache Kafka"
PRODUCER_ID_BLOCK = 1000
"""How many ids Kafka hands a broker at once: some above the last one seen may be out."""

Key = tuple[str, int]


class KafkaImportError(Exception):
    """The directories cannot be taken over; the message says why and what to do."""


class Transfer(StrEnum):
    """How files get to the new directory."""

    COPY = "copy"
    MOVE = "move"
    LINK = "link"
    """Hard links for segments that nobody writes to any more, copies of the rest."""


@dataclass(slots=True)
class Source:
    """The directory of a stopped broker: one entry of its `log.dirs`."""

    path: Path
    cluster_id: str
    is_clean: bool
    partitions: dict[Key, UUID]
    foreign: list[str]
    """Names of directories that look like those of partitions, and are none."""


@dataclass(slots=True)
class KafkaMetadata:
    """What Kafka's metadata log says beside what the directories say."""

    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, str] = field(default_factory=dict)
    """What was set on brokers while they ran."""
    leader_epochs: dict[tuple[UUID, int], int] = field(default_factory=dict)
    next_producer_id: int = 0
    security: ImportedSecurity = field(default_factory=ImportedSecurity)

    def replay(self, record: MetadataRecord | None) -> None:
        """Take in one record."""
        if isinstance(record, RightsRecord):
            self.security.replay(record)
        elif isinstance(record, ConfigRecord):
            self._replay_config(record)
        elif isinstance(record, PartitionRecord):
            self.leader_epochs[record.topic_id, record.partition_id] = record.leader_epoch
        elif isinstance(record, PartitionChangeRecord) and record.leader != LEADER_UNCHANGED:
            key = record.topic_id, record.partition_id
            self.leader_epochs[key] = self.leader_epochs.get(key, -1) + 1
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = max(self.next_producer_id, record.next_producer_id)

    def _replay_config(self, record: ConfigRecord) -> None:
        if record.resource_type == TOPIC_RESOURCE:
            configs = self.configs.setdefault(record.resource_name, {})
        elif record.resource_type == BROKER_RESOURCE:
            configs = self.broker_configs
        else:
            return
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value


@dataclass(slots=True)
class Plan:
    """What is taken over: where each partition lies now, and the topics with their settings."""

    sources: list[Source]
    directories: dict[Key, Path]
    topics: list[Topic]
    next_producer_id: int
    security: ImportedSecurity
    cluster_id: str
    left_out: list[str]
    """Sentences about what is not taken over."""

    @property
    def is_clean(self) -> bool:
        return all(source.is_clean for source in self.sources)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(_size(directory) for directory in self.directories.values())


# -- reading


def read_source(path: Path) -> Source:
    """Look at a directory of Apache Kafka. Raises KafkaImportError."""
    for name in FILES:
        _check_plain(path / name)
    try:
        text = (path / META_PROPERTIES).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise KafkaImportError(
            f"{path} is not a directory of `log.dirs` ({error.strerror}: {META_PROPERTIES})"
        ) from None
    if "kbroker.format.version" in text:
        raise KafkaImportError(
            f"{path} is a data directory of kbroker: kbroker serve --data-dir {path}"
        )
    rows = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    fields = {row[0].strip(): row[1].strip() for row in rows}
    _check_stopped(path)
    is_clean = (path / CLEAN_SHUTDOWN).exists()
    cluster_id = fields.get("cluster.id") or random_cluster_id()
    partitions, foreign = _partitions_in(path)
    return Source(path, cluster_id, is_clean, partitions, foreign)


def _partitions_in(path: Path) -> tuple[dict[Key, UUID], list[str]]:
    """The partitions in a directory, which may not exist, with the ids of their topics; and the names
    of directories that only look like theirs. Raises KafkaImportError."""
    partitions, foreign = {}, []
    for directory in sorted(path.iterdir()) if path.is_dir() else ():
        key = parse_directory_name(directory.name) if directory.is_dir() else None
        if key is None:
            continue
        if not _is_partition(key) or directory_name(*key) != directory.name:
            foreign.append(directory.name)
            continue
        _check_plain(directory)
        for each in directory.iterdir():
            _check_plain(each)
        if key[0] != METADATA_TOPIC:
            partitions[key] = _topic_id(directory)
    return partitions, foreign


def _is_partition(key: Key) -> bool:
    try:
        check_topic_name(key[0])
    except KafkaError:
        return False
    return key[1] <= INT32_MAX


def _check_plain(path: Path) -> None:
    """Refuse what leads out of the directory, and what has no end when it is read.

    Nothing is said of a path that is not there. Raises KafkaImportError.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise KafkaImportError(f"{path} is a symbolic link; put what it leads to in its place")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise KafkaImportError(f"{path} is neither a file nor a directory; remove it")


def _check_stopped(path: Path) -> None:
    """Kafka holds a lock on a file while it runs; the lock is one that `fcntl` sees."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows, where an open file cannot be copied anyway
        return
    try:
        with (path / LOCK).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except OSError:
        raise KafkaImportError(
            f"a broker still runs on {path}; stop it, then run this again"
        ) from None


def _topic_id(directory: Path) -> UUID:
    try:
        held = PartitionMetadata.from_bytes((directory / PARTITION_METADATA).read_bytes())
    except OSError:
        held = None
    if held is None:
        raise KafkaImportError(
            f"{directory / PARTITION_METADATA} is missing or damaged: start and stop the broker with "
            "Kafka 2.8 or newer, which writes it"
        )
    return held.topic_id


def read_metadata(sources: Iterable[Source]) -> KafkaMetadata | None:
    """Read the metadata log in the first directory that has it; None when none has.

    The newest snapshot comes first, then the records behind it.
    """
    for source in sources:
        directory = source.path / directory_name(METADATA_TOPIC, 0)
        if directory.is_dir():
            metadata = KafkaMetadata()
            for value in _metadata_values(directory):
                metadata.replay(decode_metadata_record(value))
            return metadata
    return None


def _metadata_values(directory: Path) -> Iterator[bytes]:
    snapshots = sorted(directory.glob("*-*.checkpoint"))
    begin = 0
    if snapshots:
        begin = int(snapshots[-1].name.partition("-")[0])
        yield from (value for _, value in _values(snapshots[-1]))
    for path in sorted(directory.glob(f"*{LOG}")):
        yield from (value for offset, value in _values(path) if offset >= begin)


def _values(path: Path) -> Iterator[tuple[int, bytes]]:
    data = path.read_bytes()
    for at, header in iter_headers(data):
        if header.is_control:
            continue
        for record in batch_records(memoryview(data)[at : at + header.size], header):
            if record.value is not None:
                yield record.offset, record.value


# -- planning


def plan(paths: Iterable[Path], data_dir: Path, *, only: Iterable[str] = ()) -> Plan:
    """Find out what can be taken over from some directories. Raises KafkaImportError.

    Parameters: `paths` are the `log.dirs` of one broker, or of several brokers of one cluster: the
    first directory that has a partition counts. `data_dir` is where they will go; what an interrupted
    run moved there already is part of the plan. `only` names topics; none are all.
    """
    if (data_dir / META_PROPERTIES).exists():
        raise KafkaImportError(
            f"{data_dir} is a data directory already; name a new one with --data-dir"
        )
    sources = [read_source(path) for path in paths]
    clusters = {source.cluster_id for source in sources}
    if len(clusters) > 1:
        raise KafkaImportError(
            f"these directories are of different clusters: {', '.join(sorted(clusters))}"
        )
    metadata = read_metadata(sources)
    wanted = set(only)
    directories: dict[Key, Path] = {}
    ids: dict[str, UUID] = {}
    arrived = (data_dir, _partitions_in(data_dir)[0])
    for path, partitions in (arrived, *((each.path, each.partitions) for each in sources)):
        for key, topic_id in partitions.items():
            if wanted and key[0] not in wanted:
                continue
            directories.setdefault(key, path / directory_name(*key))
            if ids.setdefault(key[0], topic_id) != topic_id:
                raise KafkaImportError(f"the partitions of {key[0]} are of two topics of that name")
    if not directories:
        raise KafkaImportError("there are no partitions of the topics that you name")
    left_out = [
        f"{source.path / name}: no topic of Kafka has such a name"
        for source in sources
        for name in source.foreign
    ]
    topics = [_topic(name, ids[name], directories, metadata, left_out) for name in sorted(ids)]
    next_id = _next_producer_id(directories.values(), metadata)
    left_out += _open_transactions(directories)
    left_out += _broker_settings(topics, metadata)
    security = ImportedSecurity() if metadata is None else metadata.security
    left_out += security.drop_unknown()
    if metadata is None:
        left_out.append(
            f"settings of topics, users, ACLs, quotas: no directory has {METADATA_TOPIC}-0"
        )
    return Plan(sources, directories, topics, next_id, security, sources[0].cluster_id, left_out)


def _topic(
    name: str,
    topic_id: UUID,
    directories: Mapping[Key, Path],
    metadata: KafkaMetadata | None,
    left_out: list[str],
) -> Topic:
    indexes = sorted(index for topic, index in directories if topic == name)
    if indexes != list(range(len(indexes))):
        missing = min(set(range(len(indexes))) - set(indexes))
        raise KafkaImportError(
            f"partition {missing} of {name} is in none of the directories; name the other directories of "
            "log.dirs, or those of the other brokers, too"
        )
    topic = Topic(name, topic_id, configs=_known_configs(name, metadata, left_out))
    if topic.is_internal:
        topic.configs.setdefault("cleanup.policy", "compact")  # never by age
    for index in indexes:
        epoch = _leader_epoch(directories[name, index])
        if metadata is not None:
            epoch = max(epoch, metadata.leader_epochs.get((topic_id, index), -1))
        topic.partitions.append(ClusterPartition(index, [], [], -1, max(epoch, 0)))
    return topic


def _known_configs(
    name: str, metadata: KafkaMetadata | None, left_out: list[str]
) -> dict[str, str]:
    known = {}
    for key, value in (metadata.configs.get(name, {}) if metadata else {}).items():
        try:
            validate_topic_configs({key: value}, BrokerConfig())
        except ConfigError as error:
            left_out.append(f"{key}={value} of {name}: {error}")
        else:
            known[key] = value
    return known


def _leader_epoch(directory: Path) -> int:
    try:
        epochs = LeaderEpochs.from_bytes((directory / LEADER_EPOCHS).read_bytes())
    except OSError:
        return -1
    return -1 if epochs is None else epochs.latest


def _next_producer_id(directories: Iterable[Path], metadata: KafkaMetadata | None) -> int:
    """An id above all that were given out."""
    if metadata is not None and metadata.next_producer_id:
        return metadata.next_producer_id
    largest = max(
        (each for directory in directories for each in _producer_ids(directory)), default=-1
    )
    return (largest // PRODUCER_ID_BLOCK + 2) * PRODUCER_ID_BLOCK if largest >= 0 else 0


def _producer_ids(directory: Path) -> Iterator[int]:
    """Those that its snapshots name, and those of the segments that go on behind the newest one."""
    snapshots = sorted(directory.glob(f"*{SNAPSHOT}"))
    for path in snapshots:
        states = ProducerStates.from_bytes(path.read_bytes(), 0)
        yield from (producer_id for producer_id, _ in states or ())
    logs = sorted(directory.glob(f"*{LOG}"))
    for path, following in zip_longest(logs, logs[1:]):
        if not snapshots or following is None or following.stem > snapshots[-1].stem:
            file = OsFiles(read_only=True).open(path.as_posix())
            # What a crash has torn is cut at the first start.
            with closing(file), suppress(CorruptLogError):
                for _, header in walk_headers(file, BEGINNING, Position(file.size)):
                    yield header.producer_id


def _broker_settings(topics: Iterable[Topic], metadata: KafkaMetadata | None) -> Iterator[str]:
    """Settings of brokers act on topics too: retention above all, which would delete records."""
    kept = [
        topic.name
        for topic in topics
        if topic.configs.get("cleanup.policy", "delete") != "compact"
        and not topic.configs.keys() & {"retention.ms", "retention.bytes"}
    ]
    if kept:
        named = ", ".join(kept[:3]) + (f" and {len(kept) - 3} more" if len(kept) > 3 else "")
        yield (
            f"server.properties ({named}): no retention of their own, so kbroker deletes their "
            "records after 7 days unless `kbroker serve --config server.properties` says otherwise"
        )
    if metadata is not None:
        for name, value in metadata.broker_configs.items():
            yield f"{name}={value} of brokers: kbroker serve -o {name}={value}"


def _open_transactions(directories: Mapping[Key, Path]) -> Iterator[str]:
    """Nobody will end these: readers of committed records stop at them."""
    for key, directory in directories.items():
        newest = max(directory.glob(f"*{SNAPSHOT}"), default=None)
        states = ProducerStates.from_bytes(newest.read_bytes(), 0) if newest else None
        if states is not None and states.first_open_offset is not None:
            yield (
                f"the transaction that is open in {directory_name(*key)} from offset "
                f"{states.first_open_offset} on: end it in Kafka first, or read_committed stops there"
            )


# -- importing


async def import_logs(
    what: Plan,
    data_dir: Path,
    *,
    node_id: int,
    transfer: Transfer,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Make a data directory for node `node_id` out of a plan.

    Parameters: `data_dir` is the one of the plan; `progress` is told how many bytes are there.
    Raises KafkaImportError; OSError or StorageError: plan again and call again, and it goes on where it
    stopped.
    """
    if transfer == Transfer.LINK and not what.is_clean:
        # The first start may cut a segment, and a link would cut Kafka's file too.
        raise KafkaImportError(
            "--link needs a Kafka that was stopped properly; copy the files instead"
        )
    files = OsFiles(at_once=at_once)
    _make_directory(data_dir)
    lock = files.lock(str(data_dir / LOCK))
    try:
        await _write_metadata(what, data_dir, node_id)
        _write_checkpoints(what, data_dir, files)
        _transfer_all(what, data_dir, transfer, progress)
        _make_durable(what, data_dir, files)
        if what.is_clean:
            checksums = OffsetCheckpoints(files, str(data_dir)).checksums()
            files.write_atomic(str(data_dir / CLEAN_SHUTDOWN), clean_marker(checksums))
        meta = MetaProperties(what.cluster_id, node_id, random_cluster_id())
        files.write_atomic(str(data_dir / META_PROPERTIES), meta.to_bytes())
    finally:
        lock.release()


def _make_durable(what: Plan, data_dir: Path, files: OsFiles) -> None:
    directories = [data_dir / directory_name(*key) for key in what.directories]
    paths = [path.as_posix() for directory in directories for path in directory.iterdir()]
    files.at_once([partial(sync_file, files, path) for path in paths])
    for directory in directories:
        files.sync_dir(str(directory))
    files.sync_dir(str(data_dir))


def _make_directory(data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)


def _transfer_all(
    what: Plan, data_dir: Path, transfer: Transfer, progress: Callable[[int], None]
) -> None:
    done = 0
    for key, directory in what.directories.items():
        target = data_dir / directory_name(*key)
        if not target.exists():
            _transfer(directory, target, transfer)
        done += _size(target)
        progress(done)


async def _write_metadata(what: Plan, data_dir: Path, node_id: int) -> None:
    """Write what the cluster knows; topics that an earlier run wrote stay as they are."""
    for topic in what.topics:
        for partition in topic.partitions:
            partition.replicas = partition.isr = [node_id]
            partition.leader = node_id
    store = LocalStore(OsFiles(), str(data_dir / METADATA_JOURNAL))
    try:
        cluster = await Cluster.open(store, cluster_id=what.cluster_id)
        for topic in what.topics:
            if topic.name not in cluster.topics:
                await cluster.import_topic(topic, cause=CAUSE)
        await cluster.skip_producer_ids(what.next_producer_id)
        await what.security.write(cluster, cause=CAUSE)
    except KafkaError as error:
        raise KafkaImportError(error.message) from None
    finally:
        await store.aclose()


def _write_checkpoints(what: Plan, data_dir: Path, files: OsFiles) -> None:
    """Carry over how far each log is safe, and where it begins."""
    checkpoints = OffsetCheckpoints(files, str(data_dir))
    known = {source.path: OffsetCheckpoints(files, str(source.path)) for source in what.sources}
    checkpoints.update(
        (key, _offsets_of(known[directory.parent], key, directory))
        for key, directory in what.directories.items()
        if directory.parent in known
    )


def _offsets_of(known: OffsetCheckpoints, key: Key, directory: Path) -> Offsets:
    """Return what is known of a log. Kafka checkpoints no log start at which a segment begins."""
    offsets = known.get(key)
    segments = segments_from((path.name for path in directory.iterdir()), 0)
    return offsets._replace(log_start=max([offsets.log_start, *segments[:1]]))


def _transfer(directory: Path, target: Path, how: Transfer) -> None:
    """Bring one partition over; it has its name in the new directory only when it is whole."""
    if how == Transfer.MOVE:
        try:
            directory.rename(target)
        except OSError:  # another file system
            _copy(directory, target, how)
            shutil.rmtree(directory)
    else:
        _copy(directory, target, how)


def _copy(directory: Path, target: Path, how: Transfer) -> None:
    temporary = target.with_name(f"{target.name}.importing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    segments = [name for name in names if (parse_file_name(name) or (0, ""))[1] == LOG]
    for name in names:
        if how == Transfer.LINK and name in segments[:-1]:
            os.link(directory / name, temporary / name)
        else:
            shutil.copy2(directory / name, temporary / name)
    temporary.rename(target)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
