"""Snapshots of a broker's data, to restore it or to start another broker from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from kbroker.broker import open_broker
from kbroker.cluster import TRANSACTIONS_TOPIC, Cluster, LocalStore
from kbroker.cluster.keys import META
from kbroker.cluster.model import random_cluster_id
from kbroker.config import BrokerConfig
from kbroker.coordinator.transactions.transaction import LAST_EPOCH_GIVEN
from kbroker.coordinator_runtime.groups import GroupCoordinatorService
from kbroker.data_dirs.found_directories import METADATA_JOURNAL
from kbroker.node.node import Node
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.groups import LeaveGroupRequest
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.records import read_records
from kbroker.protocol.transaction_log import decode_key, decode_value
from kbroker.runtime.clock import Clock
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.files import Files
from kbroker.storage.naming import LOG, META_PROPERTIES, parse_directory_name

from .clock import ClockState, ClockStates, MovableClock
from .stores import DirectoryStore, Store, copy_directories
from .transactions import finish_prepared_transactions

# Name of the file with the clock states of a saved snapshot. If no clock was moved, there is no file.
CLOCKS = "test-clocks.json"
# Version of LeaveGroup and DescribeGroups requests.
LEAVE_VERSION = 5


class Snapshot:
    """Data of a broker at one moment: records, offsets, groups, producers, settings and clocks.

    `LocalBroker.snapshot` creates a snapshot. A snapshot is immutable and can be restored any number
    of times.
    """

    def __init__(self, store: Store, clocks: ClockStates) -> None:
        self.store = store
        self.clocks = clocks

    def save(self, directory: str | Path) -> None:
        """Write the snapshot into a new directory, which `kbroker serve --data-dir` can use.

        If the broker has several data directories, each becomes a numbered subdirectory.

        Args:
            directory: Path of the new directory.

        Raises:
            FileExistsError: The directory exists.
        """
        path = Path(directory)
        path.mkdir(parents=True)
        copy_directories(
            self.store, DirectoryStore(_directory_paths(path, len(self.store.directories)))
        )
        if self.clocks != ClockStates():
            (path / CLOCKS).write_text(json.dumps(self.clocks), encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> Snapshot:
        """Load a snapshot from a directory that `save` or a stopped server has written.

        The directory must exist as long as the snapshot is used.

        Args:
            directory: Path of the directory.

        Returns:
            The snapshot.

        Raises:
            FileNotFoundError: `directory` is not a data directory.
        """
        path = Path(directory)
        directories = [path] if (path / META_PROPERTIES).exists() else sorted(path.glob("[0-9]*"))
        if not directories or not all((each / META_PROPERTIES).exists() for each in directories):
            raise FileNotFoundError(
                f"there is no saved snapshot in {path}; pass a directory written by save()"
            )
        return cls(DirectoryStore([each.as_posix() for each in directories]), _read_clocks(path))


def _directory_paths(path: Path, count: int) -> list[str]:
    if count == 1:
        return [path.as_posix()]
    return [(path / str(number)).as_posix() for number in range(count)]


def _read_clocks(path: Path) -> ClockStates:
    if not (path / CLOCKS).exists():
        return ClockStates()
    log, coordinator = json.loads((path / CLOCKS).read_text(encoding="utf-8"))
    return ClockStates(ClockState(*log), ClockState(*coordinator))


async def take_snapshot(node: Node, store: Store, clock: MovableClock) -> Snapshot:
    """Return a snapshot of a running node, and of its clocks at the same moment.

    Raises:
        StorageError: The data cannot be copied.
    """
    await node.partitions.open_all()
    async with node.partitions.checkpoint_lock:
        return Snapshot(store.copy(node.partitions.logs), clock.states())


# -- restoring


class Progress(NamedTuple):
    """Values that clients have seen. They must not decrease in a restore.

    Attributes:
        leader_epochs: Leader epochs by topic ID and partition.
        producer_id: Next producer ID.
        producers: Producer ID and epoch by transactional ID.
    """

    leader_epochs: dict[tuple[UUID, int], int]
    producer_id: int
    producers: dict[str, tuple[int, int]]


# Progress of a cluster that no client has used.
NO_PROGRESS = Progress({}, 0, {})


async def read_progress(store: Store) -> Progress:
    """Read the progress of the cluster of a stopped broker."""
    journal = _journal(store)
    if journal is None:
        return NO_PROGRESS
    metadata = LocalStore(store.files, journal)
    cluster = await Cluster.open(metadata)
    epochs = {
        (topic.id, partition.index): partition.leader_epoch
        for topic in cluster.topics.values()
        for partition in topic.partitions
    }
    await metadata.aclose()
    return Progress(epochs, cluster.next_producer_id, dict(_producers(store)))


def _producers(store: Store) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield transactional IDs, each with its producer ID and epoch; later pairs are newer."""
    files = store.files
    for directory in store.directories:
        for name in files.listdir(directory):
            partition = parse_directory_name(name)
            if partition is not None and partition[0] == TRANSACTIONS_TOPIC:
                for log in files.listdir(f"{directory}/{name}"):
                    if log.endswith(LOG):
                        yield from _producers_in(files, f"{directory}/{name}/{log}")


def _producers_in(files: Files, path: str) -> Iterator[tuple[str, tuple[int, int]]]:
    file = files.open(path)
    with suppress(KafkaError, DecodeError):  # a power cut may have truncated the last write
        for record in read_records(file.read(0, file.size)):
            transactional_id = decode_key(record.key) if record.key is not None else None
            if transactional_id is not None and record.value is not None:
                value = decode_value(record.value)
                yield transactional_id, (value.producer_id, value.producer_epoch)
    file.close()


def _journal(store: Store) -> str | None:
    paths = [f"{directory}/{METADATA_JOURNAL}" for directory in store.directories]
    return next((path for path in paths if store.files.exists(path)), None)


async def prepare_restored_store(
    config: BrokerConfig, store: Store, clock: Clock, progress: Progress
) -> None:
    """Prepare a store that was filled from a snapshot, so that clients recover by themselves.

    All members are removed from their groups, because no client is connected; they join again in a
    later generation. Leader epochs, producer IDs and producer epochs become higher than those that
    clients have seen.

    Args:
        config: Settings of the broker.
        store: The store.
        clock: Clock of the broker.
        progress: Progress before the restore.
    """
    async with open_broker(
        config,
        data_dir=store.data_dirs,
        files=store.files,
        clock=clock,
        listeners=[],
        grace_seconds=0,
    ) as broker:
        cluster = broker.node.cluster
        await cluster.raise_leader_epochs(progress.leader_epochs, cause="restored")
        await cluster.skip_producer_ids(progress.producer_id)
        _remove_members(broker.node.groups)
        await _raise_producer_epochs(broker.node, progress.producers)


async def _raise_producer_epochs(node: Node, seen: dict[str, tuple[int, int]]) -> None:
    """Raise the epochs of transactional producers above those that clients have seen."""
    await finish_prepared_transactions([node])
    for shard, transactional_id, known in node.transactions.known():
        current = known.producer_id, known.epoch
        producer_id, epoch = seen.get(transactional_id, current)
        if (producer_id, epoch) != current:
            above = epoch if producer_id == known.producer_id else LAST_EPOCH_GIVEN
            service = node.transactions
            service.run(
                shard, shard.coordinator.raise_epoch(transactional_id, above, service.now())
            )
    await finish_prepared_transactions([node])


def _remove_members(groups: GroupCoordinatorService) -> None:
    for shard in groups.shards():
        for row in shard.coordinator.list_groups():
            group = shard.coordinator.describe_group(row.group_id, LEAVE_VERSION)
            members = [
                LeaveGroupRequest.Member(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    reason="the broker was restored from a snapshot",
                )
                for member in group.members
            ]
            if members:
                request = LeaveGroupRequest(group_id=row.group_id, members=members)
                groups.run(shard, shard.coordinator.leave(request, groups.now(), LEAVE_VERSION))


async def assign_new_cluster_id(store: Store) -> None:
    """Replace the cluster ID of a store by a new random one."""
    cluster_id = random_cluster_id()
    for directory in store.directories:
        path = f"{directory}/{META_PROPERTIES}"
        meta = MetaProperties.from_bytes(store.files.read_bytes(path), path)
        store.files.write_atomic(path, replace(meta, cluster_id=cluster_id).to_bytes())
    journal = _journal(store)
    if journal is not None:
        metadata = LocalStore(store.files, journal)
        await metadata.transact(
            {META: {"cluster_id": cluster_id}}, compares={}, cause="made from a snapshot"
        )
        await metadata.aclose()
