"""A model of a broker with transactions, and models with a defect each.

It keeps everything in memory and loses nothing in a crash: what was done before it is done, and
what was prepared is completed by `restart`. Methods that take several steps are generators, between
whose steps other clients are served.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .history import READ_COMMITTED, Place

Steps = Generator[None]


class Refused(Exception):
    """The broker does not do what was asked: a stale epoch, generation or state."""


@dataclass(eq=False)
class Open:
    """A transaction. `outcome` is set when it is prepared; `firsts` are places without marker."""

    firsts: dict[Place, int] = field(default_factory=dict)
    offsets: dict[Place, int] = field(default_factory=dict)
    outcome: bool | None = None


@dataclass
class Identity:
    """What the coordinator knows of a transactional id."""

    epoch: int = -1
    current: Open = field(default_factory=Open)
    last_outcome: bool | None = None


class Entry(NamedTuple):
    """A record, or with `value` None the marker of a transaction."""

    value: int | None
    transaction: Open


class Model:
    """The right one, for one group."""

    def __init__(self, inputs: Iterable[Place]) -> None:
        self.logs: defaultdict[Place, list[Entry]] = defaultdict(list)
        self.identities: defaultdict[str, Identity] = defaultdict(Identity)
        self.inputs = list(inputs)
        self.generation = 0
        self.members: list[str] = []
        self.offsets: dict[Place, int] = {}

    # -- producers

    def init(self, name: str) -> int:
        """Take over a transactional id; returns the epoch."""
        identity = self.identities[name]
        identity.epoch += 1
        if identity.current.outcome is None:
            identity.current.outcome = False
        self._complete(identity)
        return identity.epoch

    def send(self, name: str, epoch: int, place: Place, value: int) -> int:
        """Append a record, or find it; returns its offset."""
        identity = self.identities[name]
        self._check_sender(identity, epoch)
        log = self.logs[place]
        found = self._find_duplicate(log, value)
        if found is None:
            found = len(log)
            identity.current.firsts.setdefault(place, found)
            log.append(Entry(value, identity.current))
        return found

    def send_offsets(
        self, name: str, epoch: int, generation: int, offsets: dict[Place, int]
    ) -> None:
        """Add what the group has consumed to the transaction."""
        identity = self.identities[name]
        self._check_sender(identity, epoch)
        self._check_generation(generation)
        identity.current.offsets.update(offsets)

    def end(self, name: str, epoch: int, commit: bool) -> Steps:
        """Commit or abort."""
        identity = self.identities[name]
        self._check_ender(identity, epoch)
        transaction = identity.current
        if transaction.outcome is None:
            if not transaction.firsts and not transaction.offsets:
                if identity.last_outcome is commit:
                    return
                raise Refused("there is no transaction")
            transaction.outcome = commit
        elif transaction.outcome is not commit:
            raise Refused("it is being ended in the other way")
        for place in list(transaction.firsts):
            yield
            self._mark(transaction, place)
        yield
        if identity.current is transaction:
            self._complete(identity)

    def _complete(self, identity: Identity) -> None:
        """Write what is missing of a transaction whose outcome is known."""
        transaction = identity.current
        assert transaction.outcome is not None
        for place in list(transaction.firsts):
            self._mark(transaction, place)
        self._settle_offsets(transaction)
        identity.last_outcome = transaction.outcome
        identity.current = Open()

    def _mark(self, transaction: Open, place: Place) -> None:
        if transaction.firsts.pop(place, None) is not None:
            self.logs[place].append(Entry(None, transaction))

    def _settle_offsets(self, transaction: Open) -> None:
        if transaction.outcome:
            self.offsets.update(transaction.offsets)

    def restart(self) -> None:
        """After a crash: complete what was prepared."""
        for identity in self.identities.values():
            if identity.current.outcome is not None:
                self._complete(identity)

    # -- what is checked

    def _check_sender(self, identity: Identity, epoch: int) -> None:
        if epoch != identity.epoch:
            raise Refused("fenced")
        if identity.current.outcome is not None:
            raise Refused("it is being ended")

    def _check_ender(self, identity: Identity, epoch: int) -> None:
        if epoch != identity.epoch:
            raise Refused("fenced")

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise Refused("another generation")

    def _find_duplicate(self, log: list[Entry], value: int) -> int | None:
        rows = range(max(0, len(log) - 50), len(log))
        return next((offset for offset in rows if log[offset].value == value), None)

    # -- consumers

    def stable(self, place: Place) -> int:
        """The last stable offset."""
        firsts = (each.current.firsts.get(place) for each in self.identities.values())
        return min((first for first in firsts if first is not None), default=len(self.logs[place]))

    def fetch(self, place: Place, begin: int, isolation: str) -> tuple[int, list[tuple[int, int]]]:
        """The offset up to which this tells, and the records from `begin` to it."""
        is_committed = isolation == READ_COMMITTED
        end = self.stable(place) if is_committed else len(self.logs[place])
        records = [
            (offset, entry.value)
            for offset, entry in enumerate(self.logs[place][begin:end], begin)
            if entry.value is not None and not (is_committed and self._is_hidden(entry))
        ]
        return max(begin, end), records

    def _is_hidden(self, entry: Entry) -> bool:
        return entry.transaction.outcome is False

    def join(self, members: list[str]) -> None:
        """A new generation of the group."""
        self.members = members
        self.generation += 1

    def assigned(self, member: str) -> list[Place]:
        """The inputs of a member in the present generation."""
        index = self.members.index(member)
        return self.inputs[index :: len(self.members)]

    def committed(self, place: Place) -> int | None:
        """The group's offset, -1 for none; None while a transaction is about to change it."""
        if any(place in each.current.offsets for each in self.identities.values()):
            return None
        return self.offsets.get(place, -1)


# -- defects


class StableOffsetPassesOpen(Model):
    """The last stable offset is the end of the log."""

    def stable(self, place: Place) -> int:
        return len(self.logs[place])


class AbortedListEmpty(Model):
    """Fetch names no aborted transactions."""

    def _is_hidden(self, entry: Entry) -> bool:
        return False


class EndAnsweredBeforeMarkers(Model):
    """EndTxn is answered when the outcome is prepared; markers come with the next request."""

    def end(self, name: str, epoch: int, commit: bool) -> Steps:
        identity = self.identities[name]
        self.restart()
        if identity.current.firsts:
            self._check_ender(identity, epoch)
            identity.current.outcome = commit
        else:
            yield from super().end(name, epoch, commit)

    def _check_sender(self, identity: Identity, epoch: int) -> None:
        self.restart()
        super()._check_sender(identity, epoch)


class OffsetsOfAborted(Model):
    """Pending offsets are applied whatever becomes of the transaction."""

    def _settle_offsets(self, transaction: Open) -> None:
        self.offsets.update(transaction.offsets)


class OffsetsOfCommittedDropped(Model):
    """Pending offsets are never applied."""

    def _settle_offsets(self, transaction: Open) -> None:
        pass


class PendingOffsetsShown(Model):
    """OffsetFetch does not wait for transactions that are about to end."""

    def committed(self, place: Place) -> int | None:
        for identity in self.identities.values():
            if place in identity.current.offsets:
                return identity.current.offsets[place]
        return super().committed(place)


class ZombieProduces(Model):
    """Produce does not look at the epoch."""

    def _check_sender(self, identity: Identity, epoch: int) -> None:
        super()._check_sender(identity, identity.epoch)


class OldEpochEnds(Model):
    """EndTxn does not look at the epoch."""

    def _check_ender(self, identity: Identity, epoch: int) -> None:
        pass


class OldGenerationCommits(Model):
    """TxnOffsetCommit does not look at the generation."""

    def _check_generation(self, generation: int) -> None:
        pass


class RetriesDouble(Model):
    """Produce forgets what it has appended."""

    def _find_duplicate(self, log: list[Entry], value: int) -> int | None:
        return None


class CrashLosesLast(Model):
    """A crash takes the last record of a partition."""

    def restart(self) -> None:
        super().restart()
        for log in self.logs.values():
            if log and log[-1].value is not None:
                log.pop()


class CrashTurnsMarkers(Model):
    """What was prepared is completed as aborted after a crash."""

    def restart(self) -> None:
        for identity in self.identities.values():
            prepared = identity.current
            if prepared.outcome is not None:
                aborted = Open(prepared.firsts, prepared.offsets, False)
                for place, first in prepared.firsts.items():
                    log = self.logs[place]
                    log[first:] = [
                        Entry(value, aborted if writer is prepared else writer)
                        for value, writer in log[first:]
                    ]
                identity.current = aborted
        super().restart()
