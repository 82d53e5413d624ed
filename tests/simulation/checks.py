"""What must never be: invariants of replication, looked at while a simulation runs."""

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

from .clients import Place, must
from .machine import Machine
from .seeded import Events
from .store import SharedTruth

READ_BYTES = 1 << 20
PARTITIONS = "p/"


class Batch(NamedTuple):
    """A committed batch: where it ends, and a checksum of all its bytes."""

    end: int
    checksum: int


@dataclass
class Committed:
    """What was committed in one partition, by base offset of the batches."""

    batches: dict[int, Batch] = field(default_factory=dict)
    end: int = 0


@dataclass
class Seen:
    """What was seen of one replica, as long as its node runs and it stays there."""

    log: Log
    high_watermark: int = 0
    compared: int = 0


class Checks:
    """Knows all that was ever committed, and compares every replica with it.

    * Log matching: below its high watermark every replica has the same bytes.
    * Leader candidate completeness: whoever leads or may be elected has all that was committed.
    * One leader of an epoch commits.
    * No high watermark goes back while its node runs.
    * Quorum superset: a leader counts on all that may be elected after it.
    """

    def __init__(self, machines: list[Machine], truth: SharedTruth, events: Events) -> None:
        self.committed: dict[Place, Committed] = {}
        self.partitions: dict[Place, Partition] = {}
        """As the store has them."""
        self.counts: Counter[str] = Counter()
        self._machines = machines
        self._events = events
        self._seen: dict[tuple[int, Place], Seen] = {}
        self._committers: dict[tuple[Place, int], tuple[int, int]] = {}
        """By partition and leader epoch: which start of which node moved the high watermark."""
        truth.store.watch(self._on_change, after=0)

    # -- what the store says

    def _on_change(self, change: Change) -> None:
        self._events.note(f"store {change.revision}: {change.cause}: {dict(change.entries)}")
        for key, entry in change.entries.items():
            if key.startswith(PARTITIONS):
                self._on_partition(key, entry)
                self.counts["given away"] += "cannot append" in change.cause
        self.check_all()

    def _on_partition(self, key: str, entry: Entry | None) -> None:
        topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
        place = Place(UUID(topic_id), int(index))
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

    def places(self) -> list[Place]:
        """All partitions that there are."""
        return list(self.partitions)

    # -- what the nodes have

    def check_all(self) -> None:
        """Look at every replica of every node that runs."""
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

    def _replicas(self) -> Iterator[tuple[Machine, Replica, Place]]:
        for machine in self._machines:
            if machine.node is not None:
                for replica in machine.node.partitions.opened():
                    if replica.log.offline is None and not replica.closed:
                        yield machine, replica, Place(replica.topic.id, replica.index)

    def _check_replica(self, machine: Machine, replica: Replica, place: Place) -> None:
        log = replica.log
        seen = self._seen.get((machine.id, place))
        if seen is None or seen.log is not log:
            seen = self._seen[machine.id, place] = Seen(log)
        where = f"{place} on node {machine.id}"
        high_watermark = log.high_watermark
        must(
            seen.high_watermark <= high_watermark <= log.log_end_offset,
            f"{where}: the high watermark went from {seen.high_watermark} to {high_watermark}, "
            f"the log ends at {log.log_end_offset}",
        )
        if high_watermark > seen.high_watermark:
            seen.high_watermark = high_watermark
            if replica.is_leader:
                self._check_committer(machine, replica, place)
            self._compare(log, place, seen, high_watermark, where)
        if machine.id in self._electable(place):
            self._check_complete(log, place, seen, where)

    def _electable(self, place: Place) -> set[int]:
        """The nodes that may be elected to lead a partition, and the one that leads it."""
        truth = self.partitions.get(place)
        return {*truth.isr, *truth.elr} if truth is not None else set()

    def _leads(self, machine: Machine, replica: Replica, place: Place) -> bool:
        """Whether a replica leads, and is no leader of before."""
        truth = self.partitions.get(place)
        return (
            replica.is_leader
            and truth is not None
            and (truth.leader, truth.leader_epoch) == (machine.id, replica.leader_epoch)
        )

    def _check_committer(self, machine: Machine, replica: Replica, place: Place) -> None:
        me = machine.id, machine.starts
        other = self._committers.setdefault((place, replica.leader_epoch), me)
        must(
            other == me,
            f"{place}: nodes {other[0]} and {me[0]} both commit in epoch {replica.leader_epoch}",
        )

    def _check_complete(self, log: Log, place: Place, seen: Seen, where: str) -> None:
        end = self.committed[place].end if place in self.committed else 0
        must(
            log.log_end_offset >= end,
            f"{where} may lead and ends at {log.log_end_offset}, but {end} were committed",
        )
        if seen.compared < end:
            self._compare(log, place, seen, end, where)

    def _compare(self, log: Log, place: Place, seen: Seen, end: int, where: str) -> None:
        """What is committed has the same bytes everywhere; the first to have it says which."""
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
                    f"{where}: the batch at {header.base_offset} is not the one committed there",
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

    # -- in the end

    def all_in_sync(self) -> bool:
        """Whether every partition is led, and all its replicas are in sync."""
        return all(
            each.leader >= 0 and set(each.isr) == set(each.replicas)
            for each in self.partitions.values()
        )

    def compare_all(self) -> None:
        """Compare every replica with what was committed, from its first byte on."""
        for machine, replica, place in self._replicas():
            log, where = replica.log, f"{place} on node {machine.id}"
            self._compare(log, place, Seen(log), log.high_watermark, where)

    def others_have_all_of(self, node_id: int) -> bool:
        """Whether for each partition another node is in sync."""
        return all(set(each.isr) - {node_id} for each in self.partitions.values())

    def all_alike(self) -> bool:
        """Whether every replica has all that was committed, as its high watermark."""
        ends = {
            (place, machine.id): replica.log.high_watermark
            for machine, replica, place in self._replicas()
        }
        return all(
            ends.get((place, node), 0) == self.committed.get(place, Committed()).end
            for place, partition in self.partitions.items()
            for node in partition.replicas
        )
