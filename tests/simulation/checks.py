"""Invariants of replication that the simulator checks while a run is in progress."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kbroker.cluster import Partition
from kbroker.cluster.store import Change, Entry
from kbroker.partitions.replica import Replica
from kbroker.protocol.records import iter_headers
from kbroker.storage.files import FileRange
from kbroker.storage.log import Log

from .clients import TopicIdPartition, must
from .machine import Machine
from .seeded import Events
from .store import SharedTruth

READ_BYTES = 1 << 20
PARTITIONS = "p/"


class Batch(NamedTuple):
    """A committed batch: its end offset, and a checksum of all its bytes."""

    end: int
    checksum: int


@dataclass
class Committed:
    """The committed batches of one partition by base offset, and its committed end offset."""

    batches: dict[int, Batch] = field(default_factory=dict)
    end: int = 0


@dataclass
class Seen:
    """The last checked state of one replica, until its node stops or its log is replaced."""

    log: Log
    high_watermark: int = 0
    compared: int = 0


class Checks:
    """Record of all committed batches, and the invariants that every replica must satisfy.

    * Log matching: below its high watermark every replica has the same bytes.
    * Leader completeness: the leader and every electable replica have all committed batches.
    * Only one node commits in a leader epoch.
    * The high watermark of a replica never decreases while its node runs.
    * Quorum superset: the leader's ISR contains every replica that may be elected after it.
    """

    def __init__(self, machines: list[Machine], truth: SharedTruth, events: Events) -> None:
        self.committed: dict[TopicIdPartition, Committed] = {}
        # Current partition state in the metadata store.
        self.partitions: dict[TopicIdPartition, Partition] = {}
        self.counts: Counter[str] = Counter()
        self._machines = machines
        self._events = events
        self._seen: dict[tuple[int, TopicIdPartition], Seen] = {}
        # Node ID and start count of the node that advanced the high watermark, by partition and
        # leader epoch.
        self._committers: dict[tuple[TopicIdPartition, int], tuple[int, int]] = {}
        truth.store.watch(self._on_change, after=0)

    # -- metadata

    def _on_change(self, change: Change) -> None:
        self._events.note(f"store {change.revision}: {change.cause}: {dict(change.entries)}")
        for key, entry in change.entries.items():
            if key.startswith(PARTITIONS):
                self._on_partition(key, entry)
                self.counts["given away"] += "cannot append" in change.cause
        self.check_all()

    def _on_partition(self, key: str, entry: Entry | None) -> None:
        topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
        place = TopicIdPartition(UUID(topic_id), int(index))
        before = self.partitions.pop(place, None)
        if entry is None:
            return
        after = Partition.from_document(place.partition, entry.value, entry.revision)
        self.partitions[place] = after
        if before is not None:
            must(
                after.leader_epoch >= before.leader_epoch,
                f"{place}: the leader epoch went back to {after.leader_epoch}",
            )
            self.counts["elections"] += after.leader_epoch > before.leader_epoch
            self.counts["ISR changes"] += set(after.isr) != set(before.isr)
            self.counts["reassigned"] += after.replicas != before.replicas

    def places(self) -> list[TopicIdPartition]:
        """Return all existing partitions."""
        return list(self.partitions)

    # -- replicas

    def check_all(self) -> None:
        """Check every replica of every running node."""
        for machine, replica, place in self._replicas():
            self._check_replica(machine, replica, place)
        self._check_quorums()
        for machine in self._machines:
            if machine.node is not None:
                must(
                    not machine.node.context.error_log.unhandled_errors,
                    f"node {machine.id}: an unexpected error",
                )
        self.counts["checks"] += 1

    def _replicas(self) -> Iterator[tuple[Machine, Replica, TopicIdPartition]]:
        for machine in self._machines:
            if machine.node is not None:
                for replica in machine.node.partitions.opened():
                    if replica.log.offline is None and not replica.closed:
                        yield machine, replica, TopicIdPartition(replica.topic.id, replica.index)

    def _check_replica(self, machine: Machine, replica: Replica, place: TopicIdPartition) -> None:
        log = replica.log
        seen = self._seen.get((machine.id, place))
        if seen is None or seen.log is not log:
            seen = self._seen[machine.id, place] = Seen(log)
        label = f"{place} on node {machine.id}"
        high_watermark = log.high_watermark
        must(
            seen.high_watermark <= high_watermark <= log.log_end_offset,
            f"{label}: the high watermark went from {seen.high_watermark} to {high_watermark}, "
            f"the log ends at {log.log_end_offset}",
        )
        if high_watermark > seen.high_watermark:
            seen.high_watermark = high_watermark
            if replica.is_leader:
                self._check_committer(machine, replica, place)
            self._compare(log, place, seen, high_watermark, label)
        if machine.id in self._electable(place):
            self._check_complete(log, place, seen, label)

    def _electable(self, place: TopicIdPartition) -> set[int]:
        """Return the leader of a partition and the nodes that may be elected."""
        truth = self.partitions.get(place)
        return {*truth.isr, *truth.elr} if truth is not None else set()

    def _leads(self, machine: Machine, replica: Replica, place: TopicIdPartition) -> bool:
        """Return True if a replica is the current leader rather than a deposed one."""
        truth = self.partitions.get(place)
        return (
            replica.is_leader
            and truth is not None
            and (truth.leader, truth.leader_epoch) == (machine.id, replica.leader_epoch)
        )

    def _check_committer(self, machine: Machine, replica: Replica, place: TopicIdPartition) -> None:
        me = machine.id, machine.starts
        other = self._committers.setdefault((place, replica.leader_epoch), me)
        must(
            other == me,
            f"{place}: nodes {other[0]} and {me[0]} both commit in epoch {replica.leader_epoch}",
        )

    def _check_complete(self, log: Log, place: TopicIdPartition, seen: Seen, label: str) -> None:
        end = self.committed[place].end if place in self.committed else 0
        must(
            log.log_end_offset >= end,
            f"{label} may lead with log end offset {log.log_end_offset}, but {end} is committed",
        )
        if seen.compared < end:
            self._compare(log, place, seen, end, label)

    def _compare(self, log: Log, place: TopicIdPartition, seen: Seen, end: int, label: str) -> None:
        """Compare committed bytes with those of the first replica that committed them."""
        committed = self.committed.setdefault(place, Committed())
        offset = max(seen.compared, log.log_start_offset)
        while offset < end:
            records = log.read(offset, READ_BYTES, limit=end).records
            data = records.read() if isinstance(records, FileRange) else records
            for position, header in iter_headers(data):
                checksum = zlib.crc32(data[position : position + header.size])
                batch = Batch(header.next_offset, checksum)
                known = committed.batches.setdefault(header.base_offset, batch)
                must(
                    known == batch,
                    f"{label}: the batch at {header.base_offset} differs from the committed one",
                )
                offset = header.next_offset
        seen.compared = end
        committed.end = max(committed.end, end)

    def _check_quorums(self) -> None:
        for machine, replica, place in self._replicas():
            if replica.leader_state is None or not self._leads(machine, replica, place):
                continue
            electable = self._electable(place)
            counted = set(replica.leader_state.maximal_isr)
            must(
                electable <= counted,
                f"{place}: {electable} may be elected, but its leader {machine.id} counts on "
                f"{counted}",
            )

    # -- end of the run

    def all_in_sync(self) -> bool:
        """Return True if every partition has a leader and all its replicas are in sync."""
        return all(
            each.leader >= 0 and set(each.isr) == set(each.replicas)
            for each in self.partitions.values()
        )

    def compare_all(self) -> None:
        """Compare every replica with the committed batches from its log start offset."""
        for machine, replica, place in self._replicas():
            log, label = replica.log, f"{place} on node {machine.id}"
            self._compare(log, place, Seen(log), log.high_watermark, label)

    def others_have_all_of(self, node_id: int) -> bool:
        """Return True if every partition has an in-sync replica on another node."""
        return all(set(each.isr) - {node_id} for each in self.partitions.values())

    def all_replicas_match(self) -> bool:
        """Return True if the high watermark of every replica is the committed end offset."""
        ends = {
            (place, machine.id): replica.log.high_watermark
            for machine, replica, place in self._replicas()
        }
        return all(
            ends.get((place, node), 0) == self.committed.get(place, Committed()).end
            for place, partition in self.partitions.items()
            for node in partition.replicas
        )
