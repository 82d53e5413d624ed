"""A model of a broker with transactions, and models with one planted bug each.

The model keeps everything in memory and loses nothing in a crash. `restart` completes prepared
transactions. Operations of several steps are generators: other clients are served between steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .history import READ_COMMITTED, Place

Steps = Generator[None]


class RequestRejected(Exception):
    """The broker rejected a request because of a stale epoch, generation or state."""


@dataclass(eq=False)
class Transaction:
    """A transaction.

    Attributes:
        first_offsets: First offset of each partition that has no marker yet.
        offsets: Group offsets to commit.
        outcome: True for commit, False for abort, None until prepared.
    """

    first_offsets: dict[Place, int] = field(default_factory=dict)
    offsets: dict[Place, int] = field(default_factory=dict)
    outcome: bool | None = None


@dataclass
class TransactionalId:
    """The coordinator's state of a transactional ID."""

    epoch: int = -1
    current: Transaction = field(default_factory=Transaction)
    last_outcome: bool | None = None


class Entry(NamedTuple):
    """A record, or a transaction marker if `value` is None."""

    value: int | None
    transaction: Transaction


class Model:
    """The correct model, for one consumer group."""

    def __init__(self, inputs: Iterable[Place]) -> None:
        self.logs: defaultdict[Place, list[Entry]] = defaultdict(list)
        self.identities: defaultdict[str, TransactionalId] = defaultdict(TransactionalId)
        self.inputs = list(inputs)
        self.generation = 0
        self.members: list[str] = []
        self.offsets: dict[Place, int] = {}

    # -- producers

    def init(self, name: str) -> int:
        """Initialise a transactional ID and return its new epoch."""
        identity = self.identities[name]
        identity.epoch += 1
        if identity.current.outcome is None:
            identity.current.outcome = False
        self._complete(identity)
        return identity.epoch

    def send(self, name: str, epoch: int, place: Place, value: int) -> int:
        """Append a record unless it is a duplicate, and return its offset."""
        identity = self.identities[name]
        self._check_sender(identity, epoch)
        log = self.logs[place]
        found = self._find_duplicate(log, value)
        if found is None:
            found = len(log)
            identity.current.first_offsets.setdefault(place, found)
            log.append(Entry(value, identity.current))
        return found

    def send_offsets(
        self, name: str, epoch: int, generation: int, offsets: dict[Place, int]
    ) -> None:
        """Add consumed offsets of the group to the transaction."""
        identity = self.identities[name]
        self._check_sender(identity, epoch)
        self._check_generation(generation)
        identity.current.offsets.update(offsets)

    def end(self, name: str, epoch: int, commit: bool) -> Steps:
        """Commit or abort the transaction."""
        identity = self.identities[name]
        self._check_ender(identity, epoch)
        transaction = identity.current
        if transaction.outcome is None:
            if not transaction.first_offsets and not transaction.offsets:
                if identity.last_outcome is commit:
                    return
                raise RequestRejected("no open transaction")
            transaction.outcome = commit
        elif transaction.outcome is not commit:
            raise RequestRejected("the transaction is ending with the opposite outcome")
        for place in list(transaction.first_offsets):
            yield
            self._mark(transaction, place)
        yield
        if identity.current is transaction:
            self._complete(identity)

    def _complete(self, identity: TransactionalId) -> None:
        """Write the missing markers and offsets of a prepared transaction."""
        transaction = identity.current
        assert transaction.outcome is not None
        for place in list(transaction.first_offsets):
            self._mark(transaction, place)
        self._settle_offsets(transaction)
        identity.last_outcome = transaction.outcome
        identity.current = Transaction()

    def _mark(self, transaction: Transaction, place: Place) -> None:
        if transaction.first_offsets.pop(place, None) is not None:
            self.logs[place].append(Entry(None, transaction))

    def _settle_offsets(self, transaction: Transaction) -> None:
        if transaction.outcome:
            self.offsets.update(transaction.offsets)

    def restart(self) -> None:
        """Complete prepared transactions after a crash."""
        for identity in self.identities.values():
            if identity.current.outcome is not None:
                self._complete(identity)

    # -- validation

    def _check_sender(self, identity: TransactionalId, epoch: int) -> None:
        if epoch != identity.epoch:
            raise RequestRejected("fenced")
        if identity.current.outcome is not None:
            raise RequestRejected("the transaction is ending")

    def _check_ender(self, identity: TransactionalId, epoch: int) -> None:
        if epoch != identity.epoch:
            raise RequestRejected("fenced")

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise RequestRejected("stale generation")

    def _find_duplicate(self, log: list[Entry], value: int) -> int | None:
        rows = range(max(0, len(log) - 50), len(log))
        return next((offset for offset in rows if log[offset].value == value), None)

    # -- consumers

    def stable(self, place: Place) -> int:
        """Return the last stable offset."""
        first_offsets = (each.current.first_offsets.get(place) for each in self.identities.values())
        return min(
            (first for first in first_offsets if first is not None), default=len(self.logs[place])
        )

    def fetch(self, place: Place, begin: int, isolation: str) -> tuple[int, list[tuple[int, int]]]:
        """Return the end of the fetch, and the visible offsets and values from `begin` to it."""
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
        """Start a new generation of the group."""
        self.members = members
        self.generation += 1

    def assigned(self, member: str) -> list[Place]:
        """Return the input partitions of a member in the current generation."""
        index = self.members.index(member)
        return self.inputs[index :: len(self.members)]

    def committed(self, place: Place) -> int | None:
        """Return the committed offset or -1; None while a transaction is about to change it."""
        if any(place in each.current.offsets for each in self.identities.values()):
            return None
        return self.offsets.get(place, -1)


# -- planted bugs


class StableOffsetPassesOpen(Model):
    """Planted bug: the last stable offset is the log end offset."""

    def stable(self, place: Place) -> int:
        return len(self.logs[place])


class AbortedListEmpty(Model):
    """Planted bug: Fetch returns no aborted transactions."""

    def _is_hidden(self, entry: Entry) -> bool:
        return False


class EndAnsweredBeforeMarkers(Model):
    """Planted bug: EndTxn responds after preparing; the next request writes the markers."""

    def end(self, name: str, epoch: int, commit: bool) -> Steps:
        identity = self.identities[name]
        self.restart()
        if identity.current.first_offsets:
            self._check_ender(identity, epoch)
            identity.current.outcome = commit
        else:
            yield from super().end(name, epoch, commit)

    def _check_sender(self, identity: TransactionalId, epoch: int) -> None:
        self.restart()
        super()._check_sender(identity, epoch)


class OffsetsOfAborted(Model):
    """Planted bug: offsets of aborted transactions are committed."""

    def _settle_offsets(self, transaction: Transaction) -> None:
        self.offsets.update(transaction.offsets)


class OffsetsOfCommittedDropped(Model):
    """Planted bug: offsets of committed transactions are dropped."""

    def _settle_offsets(self, transaction: Transaction) -> None:
        pass


class PendingOffsetsShown(Model):
    """Planted bug: OffsetFetch returns pending offsets."""

    def committed(self, place: Place) -> int | None:
        for identity in self.identities.values():
            if place in identity.current.offsets:
                return identity.current.offsets[place]
        return super().committed(place)


class ZombieProduces(Model):
    """Planted bug: Produce ignores the producer epoch."""

    def _check_sender(self, identity: TransactionalId, epoch: int) -> None:
        super()._check_sender(identity, identity.epoch)


class OldEpochEnds(Model):
    """Planted bug: EndTxn ignores the producer epoch."""

    def _check_ender(self, identity: TransactionalId, epoch: int) -> None:
        pass


class OldGenerationCommits(Model):
    """Planted bug: TxnOffsetCommit ignores the generation."""

    def _check_generation(self, generation: int) -> None:
        pass


class RetriesDouble(Model):
    """Planted bug: Produce does not detect duplicates."""

    def _find_duplicate(self, log: list[Entry], value: int) -> int | None:
        return None


class CrashLosesLast(Model):
    """Planted bug: a crash loses the last record of a partition."""

    def restart(self) -> None:
        super().restart()
        for log in self.logs.values():
            if log and log[-1].value is not None:
                log.pop()


class CrashTurnsMarkers(Model):
    """Planted bug: a crash turns prepared commits into aborts."""

    def restart(self) -> None:
        for identity in self.identities.values():
            prepared = identity.current
            if prepared.outcome is not None:
                aborted = Transaction(prepared.first_offsets, prepared.offsets, False)
                for place, first in prepared.first_offsets.items():
                    log = self.logs[place]
                    log[first:] = [
                        Entry(value, aborted if writer is prepared else writer)
                        for value, writer in log[first:]
                    ]
                identity.current = aborted
        super().restart()
