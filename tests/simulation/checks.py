"""What must never be: invariants of replication, looked at while a simulation runs."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.protocol.records import iter_headers
from kbroker.replica import Replica
from kbroker.storage.files import FileRange

from .clients import Place, must
from .machine import Machine

READ_BYTES = 1 << 20


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
    """What was seen of one replica since its node started."""

    high_watermark: int = 0
    compared: int = 0


class Checks:
    """Knows all that was ever committed, and compares every replica with it."""

    def __init__(self, machines: list[Machine]) -> None:
        self.committed: dict[Place, Committed] = {}
        self.committers: dict[tuple[Place, int], tuple[int, int]] = {}
        """By partition and leader epoch: which start of which node moved the high watermark."""
        self.counts: Counter[str] = Counter()
        self._machines = machines
        self._seen: dict[tuple[int, int, Place], Seen] = {}

    def check_all(self) -> None:
        """Look at every replica of every node that runs."""
        for machine in self._machines:
            self.check(machine)

    def check(self, machine: Machine) -> None:
        """Look at the replicas of one node."""
        if machine.node is None:
            return
        self.counts["checks"] += 1
        for replica in machine.node.open_replicas():
            if replica.log.offline is None and not replica.closed:
                self._check_replica(machine, replica)

    def _check_replica(self, machine: Machine, replica: Replica) -> None:
        place, log = Place(replica.topic.id, replica.index), replica.log
        seen = self._seen.setdefault((machine.id, machine.starts, place), Seen())
        high_watermark = log.high_watermark
        where = f"{place} on node {machine.id}"
        must(
            high_watermark >= seen.high_watermark,
            f"{where}: the high watermark went back from {seen.high_watermark} to {high_watermark}",
        )
        must(
            log.log_end_offset >= high_watermark,
            f"{where}: the log ends at {log.log_end_offset}, below its high watermark",
        )
        if high_watermark > seen.high_watermark:
            seen.high_watermark = high_watermark
            if getattr(replica, "is_leader", True):
                self._note_committer(machine, replica, place)
            self._compare(replica, place, seen, high_watermark, where)

    def _note_committer(self, machine: Machine, replica: Replica, place: Place) -> None:
        me = machine.id, machine.starts
        other = self.committers.setdefault((place, replica.leader_epoch), me)
        must(
            other == me,
            f"{place}: nodes {other[0]} and {me[0]} both commit in epoch {replica.leader_epoch}",
        )

    def _compare(self, replica: Replica, place: Place, seen: Seen, end: int, where: str) -> None:
        """Log matching: what is committed has the same bytes everywhere; it may be news."""
        log = replica.log
        committed = self.committed.setdefault(place, Committed())
        offset = max(seen.compared, log.log_start_offset)
        while offset < end:
            found = log.read(offset, READ_BYTES, limit=end)
            data = found.records.read() if isinstance(found.records, FileRange) else found.records
            for position, header in iter_headers(data):
                batch = Batch(
                    header.next_offset, zlib.crc32(data[position : position + header.size])
                )
                known = committed.batches.setdefault(header.base_offset, batch)
                must(
                    known == batch,
                    f"{where}: the batch at {header.base_offset} is not the one committed there",
                )
                offset = header.next_offset
        seen.compared = end
        committed.end = max(committed.end, end)
