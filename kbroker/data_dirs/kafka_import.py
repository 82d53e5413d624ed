"""Import of partitions from the directories of a stopped Apache Kafka: `kbroker log import`.

Apache Kafka and kbroker use the same file formats. Segments, indexes, epochs, producer snapshots,
`__consumer_offsets` and the offset checkpoints are therefore transferred unchanged. Kafka's metadata log
contains the rest: topic settings, leader epochs, producer IDs, users, ACLs and quotas.

`meta.properties` is written last. A broker rejects a directory with topics but without that file, so an
incomplete import cannot be started. The same command continues an interrupted import.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

from kbroker.cluster import EVERY_NODE, Cluster, LocalStore, ResourceType
from kbroker.cluster.model import TRANSACTIONS_TOPIC, Topic, check_topic_name, random_cluster_id
from kbroker.cluster.model import Partition as ClusterPartition
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.metadata_log import (
    LEADER_UNCHANGED,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    SecurityRecord,
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
    deleted_directory_name,
    directory_name,
    parse_directory_name,
    parse_file_name,
    segments_from,
)
from kbroker.storage.producer_state import ProducerStates
from kbroker.storage.sync import sync_file

from .found_directories import METADATA_JOURNAL
from .imported_configs import ImportedConfigs
from .imported_security import ImportedSecurity

logger = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
# Files that are read besides the partitions.
FILES = (META_PROPERTIES, LOCK, CLEAN_SHUTDOWN, RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
INT32_MAX = 2**31 - 1
CAUSE = "imported from Apache Kafka"
# Number of producer IDs in the blocks that Kafka allocates to brokers. Used IDs may not be logged yet.
PRODUCER_ID_BLOCK = 1000
# Name of a partition's directory while its files are copied. A longer name than the final one might
# exceed the limit of file systems.
TEMPORARY_NAME = ".importing"
# Broker settings that are the retention of topics without a retention of their own.
DEFAULT_RETENTION = frozenset({"log.retention.ms", "log.retention.bytes"})

Key = tuple[str, int]


class KafkaImportError(Exception):
    """The directories cannot be imported; the message contains the reason and the fix."""


class Transfer(StrEnum):
    """Ways to transfer files to the new directory."""

    COPY = "copy"
    MOVE = "move"
    # Hard links of closed segments, and copies of all other files.
    LINK = "link"


@dataclass(slots=True)
class Source:
    """A directory of a stopped broker: an entry of `log.dirs`."""

    path: Path
    cluster_id: str
    node_id: str
    is_clean: bool
    partitions: dict[Key, UUID]
    # Names of directories that only look like partitions.
    foreign: list[str]


@dataclass(slots=True)
class KafkaMetadata:
    """Data from Kafka's metadata log that the partition directories do not contain."""

    configs: ImportedConfigs = field(default_factory=ImportedConfigs)
    leader_epochs: dict[tuple[UUID, int], int] = field(default_factory=dict)
    next_producer_id: int = 0
    security: ImportedSecurity = field(default_factory=ImportedSecurity)

    def replay(self, record: MetadataRecord | None) -> None:
        """Apply one record."""
        if isinstance(record, SecurityRecord):
            self.security.replay(record)
        elif isinstance(record, ConfigRecord):
            self.configs.replay(record)
        elif isinstance(record, PartitionRecord):
            self.leader_epochs[record.topic_id, record.partition_id] = record.leader_epoch
        elif isinstance(record, PartitionChangeRecord) and record.leader != LEADER_UNCHANGED:
            key = record.topic_id, record.partition_id
            self.leader_epochs[key] = self.leader_epochs.get(key, -1) + 1
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = max(self.next_producer_id, record.next_producer_id)


@dataclass(slots=True)
class Plan:
    """The imported data: directories of partitions, topics with settings, and security."""

    sources: list[Source]
    directories: dict[Key, Path]
    topics: list[Topic]
    next_producer_id: int
    configs: ImportedConfigs
    security: ImportedSecurity
    cluster_id: str
    # Sentences about data that is not imported.
    not_imported: list[str]

    @property
    def is_clean(self) -> bool:
        return all(source.is_clean for source in self.sources)

    @property
    def bytes(self) -> int:
        """Total size of all files in bytes."""
        return sum(_total_bytes(directory) for directory in self.directories.values())


# -- reading


def read_source(path: Path) -> Source:
    """Read a log directory of Apache Kafka. Raises KafkaImportError."""
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
            f"{path} is a data directory of kbroker; use kbroker serve --data-dir {path}"
        )
    rows = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    fields = {row[0].strip(): row[1].strip() for row in rows}
    with _locked(path):
        pass
    is_clean = (path / CLEAN_SHUTDOWN).exists()
    cluster_id = fields.get("cluster.id") or random_cluster_id()
    node_id = fields.get("node.id") or fields.get("broker.id") or ""
    partitions, foreign = _partitions_in(path)
    return Source(path, cluster_id, node_id, is_clean, partitions, foreign)


def _partitions_in(path: Path) -> tuple[dict[Key, UUID], list[str]]:
    """Return the partitions of a directory with topic IDs, and names that only look like partitions.

    The directory may not exist. Raises KafkaImportError.
    """
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
    """Raise KafkaImportError for links, pipes and devices; a missing path is accepted.

    Links could lead out of the directory, and reading a device may not end.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise KafkaImportError(f"{path} is a symbolic link; replace it by its target")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise KafkaImportError(f"{path} is neither a file nor a directory; remove it")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold Kafka's `fcntl` lock on a directory. Raises KafkaImportError if a running Kafka has it."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows, where an open file cannot be copied anyway
        yield
        return
    with ExitStack() as opened:
        try:
            file = opened.enter_context((path / LOCK).open("r+b"))
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except OSError:
            raise KafkaImportError(f"a broker uses {path}; stop it and retry") from None
        yield


def _topic_id(directory: Path) -> UUID:
    try:
        metadata = PartitionMetadata.from_bytes((directory / PARTITION_METADATA).read_bytes())
    except OSError:
        metadata = None
    if metadata is None:
        raise KafkaImportError(
            f"{directory / PARTITION_METADATA} is missing or damaged; start and stop the broker with "
            "Kafka 2.8 or newer to create it"
        )
    return metadata.topic_id


def read_metadata(sources: Iterable[Source]) -> KafkaMetadata | None:
    """Read the metadata log of the first directory that contains it: newest snapshot, then records.

    Returns:
        The metadata, or None if no directory contains the metadata log.
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


def plan(
    paths: Iterable[Path],
    data_dir: Path,
    *,
    only: Iterable[str] = (),
    transfer: Transfer = Transfer.COPY,
) -> Plan:
    """Determine what to import. Raises KafkaImportError.

    Args:
        paths: The `log.dirs` of one or several brokers of a cluster. If several directories contain
            a partition, the first one is used.
        data_dir: Target directory. Partitions that an interrupted run moved there are included.
        only: Topics to import; empty for all.
        transfer: How files will be transferred.
    """
    if (data_dir / META_PROPERTIES).exists():
        raise KafkaImportError(
            f"{data_dir} is already a data directory; set a new one with --data-dir"
        )
    sources = [read_source(path) for path in paths]
    clusters = {source.cluster_id for source in sources}
    if len(clusters) > 1:
        raise KafkaImportError(
            f"the directories belong to different clusters: {', '.join(sorted(clusters))}; import one "
            "cluster at a time"
        )
    metadata = read_metadata(sources)
    directories, ids = _chosen_directories(sources, data_dir, set(only), transfer)
    if not directories:
        raise KafkaImportError("the directories contain no partitions of the requested topics")
    not_imported = [
        f"{source.path / name}: not a valid partition name"
        for source in sources
        for name in source.foreign
    ]
    known = metadata or KafkaMetadata()
    not_imported += known.configs.remove_unsupported(ids, {each.node_id for each in sources})
    topics = [_topic(name, ids[name], directories, known) for name in sorted(ids)]
    next_id = _next_producer_id(directories.values(), metadata)
    not_imported += _open_transactions(directories)
    not_imported += _default_retention(topics, known.configs)
    not_imported += known.security.remove_unsupported()
    if metadata is None:
        not_imported.append(
            f"settings, users, ACLs, quotas: no directory contains {METADATA_TOPIC}-0"
        )
    imported = known.configs, known.security, sources[0].cluster_id
    return Plan(sources, directories, topics, next_id, *imported, not_imported)


def _chosen_directories(
    sources: Sequence[Source], data_dir: Path, wanted: Collection[str], transfer: Transfer
) -> tuple[dict[Key, Path], dict[str, UUID]]:
    """Return the directories of the wanted partitions, and the IDs of their topics.

    Raises:
        KafkaImportError: Partitions of a topic have different topic IDs, or a partition changed
            after an earlier import copied it.
    """
    directories: dict[Key, Path] = {}
    ids: dict[str, UUID] = {}
    earlier_run = (data_dir, _partitions_in(data_dir)[0])
    if transfer != Transfer.MOVE:
        _check_unchanged(sources, *earlier_run)
    for path, partitions in (earlier_run, *((each.path, each.partitions) for each in sources)):
        for key, topic_id in partitions.items():
            if wanted and key[0] not in wanted:
                continue
            directories.setdefault(key, path / directory_name(*key))
            if ids.setdefault(key[0], topic_id) != topic_id:
                raise KafkaImportError(
                    f"the partitions of {key[0]} have different topic IDs; remove those of the deleted topic"
                )
    return directories, ids


def _check_unchanged(
    sources: Iterable[Source], data_dir: Path, transferred: Mapping[Key, UUID]
) -> None:
    """Raise KafkaImportError if Kafka has run since an interrupted import copied partitions."""
    for key in transferred:
        name = directory_name(*key)
        source = next((each.path for each in sources if key in each.partitions), None)
        if source is not None and _log_sizes(source / name) != _log_sizes(data_dir / name):
            raise KafkaImportError(
                f"{source / name} has changed since an earlier import copied it; remove {data_dir} and "
                "import again"
            )


def _log_sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.glob(f"*{LOG}")}


def _topic(
    name: str, topic_id: UUID, directories: Mapping[Key, Path], metadata: KafkaMetadata
) -> Topic:
    indexes = sorted(index for topic, index in directories if topic == name)
    if indexes != list(range(len(indexes))):
        missing = min(set(range(len(indexes))) - set(indexes))
        raise KafkaImportError(
            f"partition {missing} of {name} is in none of the directories; add the other directories of "
            "log.dirs, or those of the other brokers"
        )
    topic = Topic(name, topic_id, configs=dict(metadata.configs.of(ResourceType.TOPIC, name)))
    if topic.is_internal:
        topic.configs.setdefault("cleanup.policy", "compact")  # never by age
    for index in indexes:
        known_epoch = metadata.leader_epochs.get((topic_id, index), -1)
        epoch = max(known_epoch, _leader_epoch(directories[name, index]))
        topic.partitions.append(ClusterPartition(index, [], [], -1, max(epoch, 0)))
    return topic


def _leader_epoch(directory: Path) -> int:
    try:
        epochs = LeaderEpochs.from_bytes((directory / LEADER_EPOCHS).read_bytes())
    except OSError:
        return -1
    return -1 if epochs is None else epochs.latest


def _next_producer_id(directories: Iterable[Path], metadata: KafkaMetadata | None) -> int:
    """Return a producer ID above all used producer IDs."""
    if metadata is not None and metadata.next_producer_id:
        return metadata.next_producer_id
    largest = max(
        (each for directory in directories for each in _producer_ids(directory)), default=-1
    )
    return (largest // PRODUCER_ID_BLOCK + 2) * PRODUCER_ID_BLOCK if largest >= 0 else 0


def _producer_ids(directory: Path) -> Iterator[int]:
    """Yield the producer IDs in the snapshots, and in segments after the newest snapshot."""
    snapshots = sorted(directory.glob(f"*{SNAPSHOT}"))
    for path in snapshots:
        states = ProducerStates.from_bytes(path.read_bytes(), 0)
        yield from (producer_id for producer_id, _ in states or ())
    logs = sorted(directory.glob(f"*{LOG}"))
    for path, following in zip_longest(logs, logs[1:]):
        if not snapshots or following is None or following.stem > snapshots[-1].stem:
            file = OsFiles(read_only=True).open(path.as_posix())
            # A torn tail is truncated at the first start.
            with closing(file), suppress(CorruptLogError):
                for _, header in walk_headers(file, BEGINNING, Position(file.size)):
                    yield header.producer_id


def _default_retention(topics: Iterable[Topic], configs: ImportedConfigs) -> Iterator[str]:
    """Yield a warning about topics whose retention was a static setting of the brokers."""
    if configs.of(ResourceType.BROKER, EVERY_NODE).keys() & DEFAULT_RETENTION:
        return
    kept = [
        topic.name
        for topic in topics
        if topic.configs.get("cleanup.policy", "delete") != "compact"
        and not topic.configs.keys() & {"retention.ms", "retention.bytes"}
    ]
    if kept:
        named = ", ".join(kept[:3]) + (f" and {len(kept) - 3} more" if len(kept) > 3 else "")
        yield (
            f"server.properties ({named}): no topic retention, so kbroker deletes their records "
            "after 7 days unless `kbroker serve --config server.properties` sets another retention"
        )


def _open_transactions(directories: Mapping[Key, Path]) -> Iterator[str]:
    """Yield warnings about open transactions, if the coordinator that ends them is not imported."""
    if any(topic == TRANSACTIONS_TOPIC for topic, _ in directories):
        return
    for key, directory in directories.items():
        newest = max(directory.glob(f"*{SNAPSHOT}"), default=None)
        states = ProducerStates.from_bytes(newest.read_bytes(), 0) if newest else None
        if states is not None and states.first_open_offset is not None:
            yield (
                f"open transaction in {directory_name(*key)} from offset "
                f"{states.first_open_offset} on: end it in Kafka first, or read_committed consumers stop there"
            )


# -- importing


async def import_logs(
    plan: Plan,
    data_dir: Path,
    *,
    node_id: int,
    transfer: Transfer,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Create a data directory from a plan.

    After an OSError or StorageError, plan and call again to continue.

    Args:
        plan: The plan.
        data_dir: Target directory of the plan.
        node_id: ID of the node that will use the directory.
        transfer: How files are transferred.
        progress: Called with the number of transferred bytes.

    Raises:
        KafkaImportError: Links were requested after an unclean shutdown, or a limit is exceeded.
    """
    if transfer == Transfer.LINK and not plan.is_clean:
        # The first start may truncate a segment, and through a link it would truncate Kafka's file.
        raise KafkaImportError(
            "--link requires a clean shutdown of Kafka; shut it down cleanly, or copy the files"
        )
    files = OsFiles(at_once=at_once)
    _make_directory(data_dir)
    with ExitStack() as locks:
        for source in plan.sources:
            locks.enter_context(_locked(source.path))
        locks.callback(files.lock(str(data_dir / LOCK)).release)
        await _write_metadata(plan, data_dir, node_id)
        _write_checkpoints(plan, data_dir, files)
        _transfer_all(plan, data_dir, files, transfer, progress)
        _make_durable(plan, data_dir, files)
        if plan.is_clean:
            checksums = OffsetCheckpoints(files, str(data_dir)).checksums()
            files.write_atomic(str(data_dir / CLEAN_SHUTDOWN), clean_marker(checksums))
        meta = MetaProperties(plan.cluster_id, node_id, random_cluster_id())
        files.write_atomic(str(data_dir / META_PROPERTIES), meta.to_bytes())


def _make_durable(plan: Plan, data_dir: Path, files: OsFiles) -> None:
    _sync(files, [data_dir / directory_name(*key) for key in plan.directories])


def _sync(files: OsFiles, directories: Sequence[Path]) -> None:
    """Make the files in directories survive a power failure, and the names of the directories."""
    paths = [path.as_posix() for directory in directories for path in directory.iterdir()]
    files.at_once([partial(sync_file, files, path) for path in paths])
    for directory in directories:
        files.sync_dir(str(directory))
    for parent in {directory.parent for directory in directories}:
        files.sync_dir(str(parent))


def _make_directory(data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)


def _transfer_all(
    plan: Plan,
    data_dir: Path,
    files: OsFiles,
    transfer: Transfer,
    progress: Callable[[int], None],
) -> None:
    done = 0
    shutil.rmtree(data_dir / TEMPORARY_NAME, ignore_errors=True)  # left by an interrupted import
    for key, directory in plan.directories.items():
        target = data_dir / directory_name(*key)
        if not target.exists():
            _transfer(files, directory, target, transfer)
        done += _total_bytes(target)
        progress(done)


async def _write_metadata(plan: Plan, data_dir: Path, node_id: int) -> None:
    """Write the cluster metadata; topics that an earlier run wrote stay unchanged."""
    for topic in plan.topics:
        for partition in topic.partitions:
            partition.replicas = partition.isr = [node_id]
            partition.leader = node_id
    store = LocalStore(OsFiles(), str(data_dir / METADATA_JOURNAL))
    try:
        cluster = await Cluster.open(store, cluster_id=plan.cluster_id)
        others = sorted(cluster.topics.keys() - {topic.name for topic in plan.topics})
        if others:
            # Without their partitions, the broker would create them empty.
            raise KafkaImportError(
                f"an earlier import into {data_dir} also has {', '.join(others[:3])}"
                f"{f' and {len(others) - 3} more topics' if len(others) > 3 else ''}; repeat it with "
                f"the same options, or set a new directory with --data-dir"
            )
        for topic in plan.topics:
            if topic.name not in cluster.topics:
                await cluster.import_topic(topic, cause=CAUSE)
        await cluster.skip_producer_ids(plan.next_producer_id)
        await plan.configs.write(cluster, node_id, cause=CAUSE)
        await plan.security.write(cluster, cause=CAUSE)
    except KafkaError as error:
        raise KafkaImportError(error.message) from None
    finally:
        await store.aclose()


def _write_checkpoints(plan: Plan, data_dir: Path, files: OsFiles) -> None:
    """Transfer the recovery points, high watermarks and log start offsets."""
    checkpoints = OffsetCheckpoints(files, str(data_dir))
    known = {source.path: OffsetCheckpoints(files, str(source.path)) for source in plan.sources}
    checkpoints.update(
        (key, _offsets_of(known[directory.parent], key, directory))
        for key, directory in plan.directories.items()
        if directory.parent in known
    )


def _offsets_of(known: OffsetCheckpoints, key: Key, directory: Path) -> Offsets:
    """Return the checkpointed offsets; Kafka omits log starts that equal the first segment's."""
    offsets = known.get(key)
    segments = segments_from((path.name for path in directory.iterdir()), 0)
    return offsets._replace(log_start=max([offsets.log_start, *segments[:1]]))


def _transfer(files: OsFiles, directory: Path, target: Path, how: Transfer) -> None:
    """Transfer one partition; the directory gets its final name when the transfer is complete."""
    if how == Transfer.MOVE:
        try:
            directory.rename(target)
        except OSError:  # another file system
            _copy(directory, target, how)
            _sync(files, [target])
            _remove(directory)
    else:
        _copy(directory, target, how)


def _remove(directory: Path) -> None:
    """Remove a partition that is copied.

    If the removal is interrupted, the rest has the name of a deleted partition, which another import
    and Kafka ignore.
    """
    key = parse_directory_name(directory.name)
    assert key is not None
    removed = directory.with_name(deleted_directory_name(*key, _topic_id(directory)))
    directory.rename(removed)
    shutil.rmtree(removed)


def _copy(directory: Path, target: Path, how: Transfer) -> None:
    temporary = target.with_name(TEMPORARY_NAME)
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


def _total_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
