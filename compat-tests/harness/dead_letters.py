"""A checker of the dead-letter queue of a share group (KIP-1191).

Each record must be accepted, or be in the queue exactly once. As in Kafka, a record can be in the
queue twice if its partition leader was killed between the write to the queue and the write of the
record's state.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from .share_workers import ACCEPTED, Place, ShareChecker

PREFIX = "__dlq.errors."
REJECTED = "Offset rejected by client."
EXCEEDED = "Offset delivery count exceeded the threshold."
# Cause in the queue by outcome of a record.
CAUSES = {"rejected": REJECTED, "exhausted": EXCEEDED, "exhausted by kills": EXCEEDED}


class Source(NamedTuple):
    """Key and value of a record of the source topic."""

    key: bytes | None
    value: bytes | None


class DeadLetter(NamedTuple):
    """A record of a dead-letter queue.

    Attributes:
        partition: Partition of the queue.
        written_ms: Time at which the leader of the source partition created the record.
        headers: The headers that name the source.
    """

    partition: int
    written_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]

    @classmethod
    def of(cls, message: Any) -> DeadLetter:
        """Return the dead letter in a consumed message."""
        headers = {
            name.removeprefix(PREFIX): value.decode()
            for name, value in message.headers()
            if name.startswith(PREFIX)
        }
        written_ms = int(message.timestamp()[1])
        return cls(message.partition(), written_ms, message.key(), message.value(), headers)

    @property
    def place(self) -> Place:
        return int(self.headers["partition"]), int(self.headers["offset"])


class LeaderKill(NamedTuple):
    """A kill of a node at a wall-clock time in ms, and the source partitions that it led."""

    at_ms: int
    partitions: Collection[int]

    @classmethod
    def now(cls, partitions: Collection[int]) -> LeaderKill:
        return cls(int(time.time() * 1000), partitions)


class DeadLetterChecker:
    """Compares the dead letters of a group with the reports of its members.

    Args:
        checker: The checker that got all reports of the members.
        sources: All records of the source topic.
        queue_partitions: Number of partitions of the queue.
        copies: True if the queue has copies of the records.
        kills: Kills of nodes that led partitions of the source topic.

    Attributes:
        wrong: Number of violations by description.
        first_wrong: The first violation.
        doubled: Number of records that are in the queue again after a kill of their leader.
        counts: Number of records by outcome: accepted, or the cause in the queue.
    """

    def __init__(
        self,
        checker: ShareChecker,
        sources: Mapping[Place, Source],
        queue_partitions: int,
        *,
        copies: bool,
        kills: Collection[LeaderKill] = (),
    ) -> None:
        self._checker = checker
        self._sources = sources
        self._queue_partitions = queue_partitions
        self._copies = copies
        self._kills = kills
        self.wrong: Counter[str] = Counter()
        self.first_wrong = ""
        self.doubled = 0
        self.counts: Counter[str] = Counter()

    def check(self, letters: Iterable[DeadLetter]) -> None:
        """Check all dead letters of the group."""
        by_place: defaultdict[Place, list[DeadLetter]] = defaultdict(list)
        for letter in letters:
            self._check_contents(letter)
            by_place[letter.place].append(letter)
        for place in self._sources:
            self._check_record(place, by_place.get(place, []))

    def _check_contents(self, letter: DeadLetter) -> None:
        source = self._sources.get(letter.place)
        if source is None:
            self._report("a dead letter has no source", letter)
            return
        if (letter.key, letter.value) != (source if self._copies else (None, None)):
            self._report("key or value of a dead letter is wrong", letter)
        if letter.partition != letter.place[0] % self._queue_partitions:
            self._report("a dead letter is in the wrong partition", letter)

    def _check_record(self, place: Place, letters: list[DeadLetter]) -> None:
        if not letters:
            self.counts[ACCEPTED] += 1
            if not self._checker.may_be_accepted(place):
                self._report("missing in the queue", (place, self._checker.outcome_of(place)))
            return
        outcome = self._checker.outcome_of(place)
        self.counts[letters[0].headers["message"]] += 1
        if outcome == ACCEPTED:
            self._report("accepted and in the queue", letters)
        for letter in letters:
            if not self._is_cause_right(outcome, letter):
                self._report(f"wrong cause of a record that was {outcome}", letter)
        self._check_doubled(place, letters)

    def _is_cause_right(self, outcome: str, letter: DeadLetter) -> bool:
        """Return True if the outcome of a record explains the cause in the queue.

        As in Kafka, a new leader does not know the cause, and derives it from the delivery count.
        """
        cause = letter.headers["message"]
        if cause == CAUSES.get(outcome, cause):
            return True
        is_at_limit = int(letter.headers["delivery.count"]) >= self._checker.limit
        return cause == EXCEEDED and is_at_limit and self._is_leader_killed(letter, 0)

    def _check_doubled(self, place: Place, letters: list[DeadLetter]) -> None:
        """Check that the leader of the record was killed between its dead letters."""
        letters.sort(key=lambda letter: letter.written_ms)
        for before, after in pairwise(letters):
            self.doubled += 1
            if not self._is_leader_killed(after, before.written_ms):
                self._report("twice in the queue without a kill of the leader", letters)

    def _is_leader_killed(self, letter: DeadLetter, since_ms: int) -> bool:
        """Return True if the leader of the source was killed between a time and the write."""
        return any(
            since_ms <= kill.at_ms <= letter.written_ms and letter.place[0] in kill.partitions
            for kill in self._kills
        )

    def _report(self, what: str, subject: object) -> None:
        self.wrong[what] += 1
        self.first_wrong = self.first_wrong or f"{what}: {subject}"
