"""Random simulation of a share partition (KIP-932).

Members acquire and acknowledge records, writes of the state fail, and leaders change. Every record
must be finished, and each step is checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kbroker.coordinator import (
    Acknowledgement,
    Acquired,
    Acquirer,
    Change,
    DeadLetters,
    DeliverySettings,
    LogBatch,
    PersisterStateBatch,
    PersisterStateBatches,
    ShareDelivery,
    acquire,
    without_aborted,
)
from kbroker.coordinator.share.delivery import ACCEPT, GAP, REJECT, RELEASE, RENEW
from kbroker.protocol.errors import KafkaError

LOCK_MS = 1000
MEMBERS = ("a", "b", "c")
AVAILABLE, ACKNOWLEDGED, ARCHIVING = 0, 2, 3
LIMIT_REACHED, REJECTED = "delivery limit reached", "rejected"


@dataclass(slots=True)
class Fate:
    """Expected state of one record; `deliveries` is the count that the current leader knows."""

    deliveries: int = 0
    holder: str | None = None
    until: int = 0
    ended: str | None = None
    is_pending: bool = False
    # State and delivery count that the share coordinator has persisted.
    stored: tuple[int, int] | None = None


@dataclass(slots=True)
class Pending:
    """A change that is being persisted; `is_final` if it stays even if the write fails."""

    change: Change
    is_final: bool = False
    # Acknowledgement type by offset; RELEASE for ended sessions and expired locks.
    types_by_offset: dict[int, int] = field(default_factory=dict)


class ShareWorld:
    """One share partition. `step` performs a random event, `drain` finishes all records."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = DeliverySettings(
            lock_ms=LOCK_MS,
            deliveries_max=self.random.choice((2, 3, 5)),
            locks_max=self.random.choice((10, 30, 100)),
            has_dead_letter_queue=self.random.random() < 0.5,
        )
        self.now = 0
        self.log: list[LogBatch] = []
        self.aborted: set[LogBatch] = set()
        self.next = self.random.choice((0, 7))
        self.fates: dict[int, Fate] = {}
        # Offsets of records that do not belong to aborted transactions.
        self.real: set[int] = set()
        self.stored_start = self.next
        self.stored = PersisterStateBatches()
        self.pending: list[Pending] = []
        # Records that wait for the dead-letter queue, and offsets that are in the queue.
        self.letters: list[DeadLetters] = []
        self.queue: set[int] = set()
        self.delivery = self._make_delivery()

    def _make_delivery(self) -> ShareDelivery:
        return ShareDelivery(self.stored_start, list(self.stored), lambda: self.settings)

    # -- events

    def step(self) -> None:
        do = self.random.choices(
            (
                self.append,
                self.take,
                self.acknowledge,
                self.settle,
                self.pass_time,
                self.leave,
                self.move_leader,
                self.write_dead_letters,
            ),
            (6, 12, 12, 10, 3, 1, 1, 2),
        )[0]
        do()
        self.check()

    def append(self) -> None:
        """Append one batch; some of its records, or some before it, are missing (compaction)."""
        first = self.next + self.random.choice((0, 0, 0, 0, 2))
        last = first + self.random.choice((0, 0, 1, 3, 7, 15))
        batch = LogBatch(first, last)
        self.log.append(batch)
        if self.random.random() < 0.1:
            self.aborted.add(batch)
        else:
            self.real.update(range(first, last + 1))
            self.fates.update((offset, Fate()) for offset in range(first, last + 1))
        self.next = last + 1

    def take(self, member: str | None = None) -> int:
        """Acquire records for a member, and return their number."""
        delivery = self.delivery
        offset = delivery.next_offset()
        read = [batch for batch in self.log if batch.last >= offset]
        read = read[: self.random.choice((1, 3, 100))]
        if not read or not delivery.can_acquire():
            return 0
        member = member or self.random.choice(MEMBERS)
        acquirer = Acquirer(
            member,
            self.random.choice((1, 2, 5, 50)),
            self.random.choice((1, 4, 50)),
            self.random.random() < 0.4,
        )
        got = acquire(delivery, acquirer, offset, read, self.now)
        aborted = [batch for batch in read if batch in self.aborted]
        got = without_aborted(delivery, got, aborted)
        self._check_acquired(member, got)
        if acquirer.is_exact:
            assert sum(each.last - each.first + 1 for each in got) <= acquirer.records_max
        return len(got)

    def _check_acquired(self, member: str, got: list[Acquired]) -> None:
        before = -1
        for each in got:
            assert before < each.first <= each.last
            before = each.last
            for offset in range(each.first, each.last + 1):
                fate = self.fates.setdefault(offset, Fate())  # the offset may have no record
                assert fate.ended is None, f"{offset} was delivered after it was finished"
                assert fate.holder is None, f"{offset} has two holders"
                assert not fate.is_pending, f"{offset} was delivered before its state was persisted"
                fate.deliveries += 1
                assert each.deliveries == fate.deliveries, f"{offset} has a wrong delivery count"
                assert fate.deliveries <= self.settings.deliveries_max, (
                    f"{offset} was delivered too often"
                )
                fate.holder, fate.until = member, self.now + LOCK_MS

    def _held(self, member: str) -> list[int]:
        return [o for o, f in self.fates.items() if f.holder == member and not f.is_pending]

    def acknowledge(self) -> None:
        """Acknowledge some records of a member, and sometimes records of others."""
        member = self.random.choice(MEMBERS)
        held = sorted(self._held(member))
        if not held or self.random.random() < 0.05:
            self._acknowledge_invalid(member)
            return
        rows, types_by_offset = [], {}
        last = -1
        for _ in range(self.random.randrange(1, 4)):
            remaining = [offset for offset in held if offset > last]
            if not remaining:
                break
            first = last = self.random.choice(remaining)
            while last + 1 in remaining and self.random.random() < 0.8:
                last += 1
            count = 1 if self.random.random() < 0.5 else last - first + 1
            types = self.random.choices(
                (GAP, ACCEPT, RELEASE, REJECT, RENEW), (1, 10, 5, 2, 2), k=count
            )
            rows.append(Acknowledgement(first, last, types))
            for number, offset in enumerate(range(first, last + 1)):
                types_by_offset[offset] = types[0] if count == 1 else types[number]
        change = self.delivery.acknowledge(member, rows, self.now)
        self._apply_acknowledgements(change, types_by_offset)

    def _acknowledge_invalid(self, member: str) -> None:
        """Send an invalid acknowledgement; the valid rows before it must have no effect."""
        held = sorted(self._held(member))
        unacquired = [o for o, f in self.fates.items() if f.holder != member or f.is_pending]
        wrong = [o for o in unacquired if o >= self.delivery.start_offset]
        if not wrong:
            return
        bad = self.random.choice(wrong)
        rows = [Acknowledgement(offset, offset, [ACCEPT]) for offset in held[:2] if offset < bad]
        rows.append(Acknowledgement(bad, bad, [ACCEPT]))
        try:
            self.delivery.acknowledge(member, rows, self.now)
        except KafkaError:
            return
        raise AssertionError(f"{member} may acknowledge offset {bad}")

    def _apply_acknowledgements(self, change: Change, types_by_offset: dict[int, int]) -> None:
        for offset, type_ in types_by_offset.items():
            fate = self.fates[offset]
            if type_ == RENEW:
                fate.until = self.now + LOCK_MS
            else:
                fate.is_pending = True
        ended = {offset: type_ for offset, type_ in types_by_offset.items() if type_ != RENEW}
        if change.states:
            self.pending.append(Pending(change, types_by_offset=ended))
        else:
            assert not ended

    def settle(self) -> None:
        """Persist the oldest change, or let the write fail."""
        if self.pending:
            self._settle(self.pending.pop(0), is_stored=self.random.random() < 0.8)

    def _settle(self, pending: Pending, *, is_stored: bool) -> None:
        start, count = self.delivery.start_offset, self.delivery.complete_count
        assert count == sum(
            1
            for batch in self.delivery.batches
            for run in batch.runs
            for offset in range(run.first, run.last + 1)
            if run.state.is_final and offset >= start
        )
        if is_stored:
            self._persist(start, pending.change.states)
        if pending.is_final:
            self.delivery.move_start()
        elif is_stored:
            self.delivery.confirm_change(pending.change)
        else:
            self.delivery.undo_change(pending.change, self.now)
        if is_stored or pending.is_final:
            self.letters += pending.change.dead_letters
        for offset, type_ in pending.types_by_offset.items():
            self._complete(offset, type_, is_stored=is_stored)

    def write_dead_letters(self) -> None:
        """Write one range to the dead-letter queue."""
        if not self.letters:
            return
        letters = self.letters.pop(self.random.randrange(len(self.letters)))
        self.queue.update(range(letters.first, letters.last + 1))
        archived = self.delivery.archive_dead_letters(letters)
        if archived.states:
            self.pending.append(Pending(archived, is_final=True))

    def _persist(self, start: int, states: list[PersisterStateBatch]) -> None:
        self.stored_start = max(start, self.stored_start)
        self.stored.add(states)
        self.stored.forget_before(self.stored_start)
        for each in states:
            for offset in range(each.first, each.last + 1):
                if offset in self.fates:
                    self.fates[offset].stored = each.state, each.deliveries

    def _complete(self, offset: int, type_: int, *, is_stored: bool) -> None:
        fate = self.fates[offset]
        fate.is_pending = False
        is_exhausted = fate.deliveries >= self.settings.deliveries_max
        if not is_stored:
            stays_acquired = is_exhausted and self.settings.has_dead_letter_queue
            if fate.until <= self.now and not stays_acquired:
                fate.holder = None
                fate.ended = LIMIT_REACHED if is_exhausted else None
            return
        fate.holder = None
        if type_ == ACCEPT:
            fate.ended = "accepted"
        elif type_ == GAP:
            fate.ended = "archived"
        elif type_ == REJECT:
            fate.ended = REJECTED
        elif is_exhausted:
            fate.ended = LIMIT_REACHED

    def pass_time(self) -> None:
        """Let locks expire."""
        self.now += self.random.choice((10, LOCK_MS // 2, LOCK_MS))
        change = self.delivery.expire(self.now)
        states = change.states
        expected = [
            o
            for o, f in self.fates.items()
            if f.holder and not f.is_pending and f.until <= self.now
        ]
        expired = {offset for each in states for offset in range(each.first, each.last + 1)}
        assert expired == set(expected), "locks must expire exactly at their deadline"
        for offset in expected:
            fate = self.fates[offset]
            fate.holder = None
            if fate.deliveries >= self.settings.deliveries_max:
                fate.ended = LIMIT_REACHED
        if states:
            self.pending.append(Pending(change, is_final=True))
        wake_at = self.delivery.wake_at
        held = [f.until for f in self.fates.values() if f.holder and not f.is_pending]
        assert wake_at is None or wake_at <= min(held, default=wake_at)
        assert wake_at is not None or not held

    def leave(self) -> None:
        """End the session of a member."""
        member = self.random.choice(MEMBERS)
        change = self.delivery.release(member)
        self._apply_acknowledgements(change, dict.fromkeys(self._held(member), RELEASE))

    def move_leader(self) -> None:
        """Move to another leader, which reads the persisted state and maybe pending writes."""
        for each in self.pending:
            if self.random.random() < 0.5:
                self._persist(self.delivery.start_offset, each.change.states)
        self.pending.clear()
        self.delivery = self._make_delivery()
        self.letters = self.delivery.unwritten_dead_letters()
        for offset, fate in self.fates.items():
            if offset < self.stored_start:
                fate.holder, fate.is_pending = None, False
                continue
            state, deliveries = fate.stored or (AVAILABLE, 0)
            fate.holder, fate.is_pending, fate.deliveries = None, False, deliveries
            if state == AVAILABLE:
                fate.ended = None  # no member got a response that the record is finished
            elif fate.ended is None:
                fate.ended = {ACKNOWLEDGED: "accepted", ARCHIVING: REJECTED}.get(state, "archived")

    # -- invariants

    def check(self) -> None:
        delivery = self.delivery
        for offset, fate in self.fates.items():
            if offset < delivery.start_offset and offset in self.real:
                assert fate.ended is not None, f"{offset} was skipped without being finished"
                if self.settings.has_dead_letter_queue and fate.ended in (LIMIT_REACHED, REJECTED):
                    assert offset in self.queue, f"{offset} is missing in the dead-letter queue"
        before = -1
        for batch in delivery.batches:
            for run in batch.runs:
                assert before < run.first <= run.last <= batch.last
                before = run.last
            assert batch.runs[0].first == batch.first
            assert batch.runs[-1].last == batch.last

    def drain(self) -> None:
        """Let members acquire and accept all records."""
        quiet = 0
        while quiet < 3:
            while self.pending or self.letters:
                self.write_dead_letters()
                if self.pending:
                    self._settle(self.pending.pop(0), is_stored=True)
            before = self.delivery.next_offset()
            got = self.take("a")
            held = self._held("a")
            if held:
                rows = [Acknowledgement(offset, offset, [ACCEPT]) for offset in sorted(held)]
                change = self.delivery.acknowledge("a", rows, self.now)
                self._apply_acknowledgements(change, dict.fromkeys(held, ACCEPT))
            if (
                not got and self.delivery.next_offset() == before
            ):  # otherwise the records were aborted
                quiet += 1
                self.now += 2 * LOCK_MS
                self.pass_time()
            else:
                quiet = 0
            self.check()
        left = [offset for offset in sorted(self.real) if self.fates[offset].ended is None]
        assert not left, f"{left[:5]} were not finished"


def play(seed: int, steps: int = 250) -> None:
    """Run a whole simulation."""
    world = ShareWorld(seed)
    for _ in range(steps):
        world.step()
    world.drain()
