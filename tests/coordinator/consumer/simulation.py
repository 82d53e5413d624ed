"""Random simulation of one consumer group (KIP-848) with many consumers, failures, and one seed.

Consumers behave like real ones: they take assigned partitions, revoke partitions, and report what
they own. Responses get lost, appends fail, consumers die and return, static members leave
temporarily, topics change, and the shard restarts. After every step, `check` verifies the
invariants. At the end, `heal` stops all failures, and every consumer must get its assignment.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.coordinator import ConsumerGroupSettings
from kbroker.coordinator.common.modern_group import MemberState
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.replay import end_transaction, replay
from kbroker.coordinator.state import ShardState
from kbroker.protocol.errors import ErrorCode

from ..harness import FakeTopics, Harness, unlimited

Place = tuple[UUID, int]
NAMES = ("orders", "audit", "events")
PATTERNS = ("or.*", "(audit|events)", ".*")
BAD_NEWS = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)
FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class Violation(AssertionError):
    """An invariant does not hold."""


def must(holds: bool, failure: str) -> None:
    if not holds:
        raise Violation(failure)


@dataclass
class Consumer:
    """A consumer that knows only what responses contain."""

    member_id: str
    instance_id: str | None
    subscription: dict[str, Any]
    epoch: int = 0
    owned: set[Place] = field(default_factory=set)
    assigned: set[Place] = field(default_factory=set)
    alive: bool = True
    must_send_all: bool = True

    def forget(self) -> None:
        self.epoch, self.must_send_all = 0, True
        self.owned, self.assigned = set(), set()

    def apply(self) -> None:
        """Revoke and take partitions as the last response says."""
        self.owned = set(self.assigned)


class Claim(NamedTuple):
    """A commit that a member could have sent in its epoch at that time, and may send later."""

    member_id: str
    epoch: int
    place: Place
    # Number of the check at which the member had the partition.
    check: int


class Tenure(NamedTuple):
    """Holder of a partition, and the check since which it has held it."""

    member_id: str
    since: int


NOBODY = Tenure("", 0)
CLAIMS_KEPT = 30


class ConsumerSimulation:
    """One run. `work` counts the events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.work: Counter[str] = Counter()
        settings = ConsumerGroupSettings(
            assignment_interval_ms=self.rng.choice((0, 1_000)),
            assignors=self.rng.choice((("uniform", "range"), ("range", "uniform"))),
        )
        self.h = Harness(topics=FakeTopics(), consumer=settings)
        self.consumers: list[Consumer] = []
        self._numbers = itertools.count()
        self._epoch = 0
        self._epochs: dict[str, int] = {}
        self._checks = 0
        self._tenures: dict[Place, Tenure] = {}
        self._claims: deque[Claim] = deque(maxlen=CLAIMS_KEPT)

    # -- events of consumers

    def run(self, steps: int) -> None:
        moves = {
            self.join: 3,
            self.beat: 30,
            self.leave: 1,
            self.die: 1,
            self.leave_temporarily: 1,
            self.subscribe: 1,
            self.change_topics: 1,
            self.commit: 5,
            self.claim: 5,
            self.commit_late: 5,
            self.wait: 8,
            self.restart: 1,
        }
        for _ in range(steps):
            move = self.rng.choices(list(moves), list(moves.values()))[0]
            if self.rng.random() < 0.05:
                self.h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
            move()
            self.h.append_fails = None
            self.check()

    @property
    def living(self) -> list[Consumer]:
        return [each for each in self.consumers if each.alive]

    def _random_member(self) -> Consumer | None:
        return self.rng.choice(self.living) if self.living else None

    def _subscription(self) -> dict[str, Any]:
        if self.rng.random() < 0.3:
            return {"subscribed_topic_regex": self.rng.choice(PATTERNS), "topics": []}
        names = self.rng.sample(NAMES, self.rng.choice((1, 2, 3)))
        return {"subscribed_topic_regex": "", "topics": names}

    def join(self) -> None:
        if len(self.living) >= 6:
            return
        number = next(self._numbers)
        away = {each.instance_id for each in self.consumers if each.instance_id}
        away -= {each.instance_id for each in self.living}
        instance = None
        if self.rng.random() < 0.4:
            instance = self.rng.choice([*away, f"static-{number}"])
        consumer = Consumer(f"member-{number}", instance, self._subscription())
        self.consumers.append(consumer)
        self._beat(consumer)

    def beat(self) -> None:
        consumer = self._random_member()
        if consumer is not None:
            if self.rng.random() < 0.7:
                consumer.apply()
            self._beat(consumer)

    def _beat(self, consumer: Consumer) -> None:
        fields: dict[str, Any] = {"instance_id": consumer.instance_id}
        sends_owned = consumer.must_send_all or self.rng.random() < 0.7
        if consumer.must_send_all:
            fields |= consumer.subscription | {"rebalance_timeout_ms": 30_000}
        response = self.h.beat(
            consumer.member_id,
            consumer.epoch,
            owned=self._indexes_by_name(consumer.owned) if sends_owned else None,
            **fields,
        )
        self.work[ErrorCode(response.error_code).name] += 1
        if self.rng.random() < 0.1:
            # The response is lost. The consumer no longer takes partitions of earlier responses:
            # its report of owned partitions has released them. (Kafka's consumer takes them
            # nevertheless, and reads them until its next heartbeat, which is fenced.)
            consumer.must_send_all, consumer.assigned = True, set(consumer.owned)
            self.work["lost"] += 1
            return
        if response.error_code in FENCED:
            consumer.forget()
        elif not response.error_code:
            consumer.epoch, consumer.must_send_all = response.member_epoch, False
            must(response.member_epoch > 0, "member epoch is 0")
            if response.assignment is not None:
                consumer.assigned = {
                    (row.topic_id, index)
                    for row in response.assignment.topic_partitions
                    for index in row.partitions
                }
        else:
            must(response.error_code in BAD_NEWS, f"{response}")
            consumer.must_send_all = True

    def _indexes_by_name(self, owned: set[Place]) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for topic_id, index in owned:
            rows.setdefault(self.h.topics.name_of(topic_id) or "gone", []).append(index)
        return rows

    def leave(self) -> None:
        consumer = self._random_member()
        if consumer is not None:
            consumer.alive = False
            self.h.beat(consumer.member_id, -1, instance_id=consumer.instance_id)
            consumer.forget()
            self.work["left"] += 1

    def leave_temporarily(self) -> None:
        consumer = self._random_member()
        if consumer is not None and consumer.instance_id is not None:
            consumer.alive = False
            self.h.beat(consumer.member_id, -2, instance_id=consumer.instance_id)
            consumer.forget()
            self.work["away"] += 1

    def die(self) -> None:
        consumer = self._random_member()
        if consumer is not None:
            consumer.alive = False
            self.work["died"] += 1

    def subscribe(self) -> None:
        consumer = self._random_member()
        if consumer is not None:
            consumer.subscription = self._subscription()
            consumer.must_send_all = True
            self._beat(consumer)

    def change_topics(self) -> None:
        name = self.rng.choice(NAMES)
        known = self.h.topics.topics.get(name)
        if known is None:
            self.h.create_topic(name, self.rng.randint(1, 6))
        elif self.rng.random() < 0.3:
            self.h.delete_topic(name)
        else:
            self.h.create_topic(name, known[1] + 1)
        self.work["topics"] += 1

    def commit(self) -> None:
        """Commit an owned partition; this must succeed even if the consumer's epoch is outdated."""
        consumer = self._random_member()
        if consumer is None or not consumer.owned or not self._is_member(consumer):
            return
        topic_id, index = self.rng.choice(sorted(consumer.owned, key=str))
        name = self.h.topics.name_of(topic_id)
        if name is None or not consumer.epoch or consumer.must_send_all:
            return
        (code,) = self.h.commit({(name, index): 1}, consumer.member_id, consumer.epoch)
        fails = self.h.append_fails is None
        if (topic_id, index) in consumer.assigned or not fails:
            allowed = (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            must(code in allowed, f"{consumer} may not commit {name}-{index}: {code}")
            self.work["committed"] += 1

    def claim(self) -> None:
        """Save a commit that a member could send now, to send it later with the current epoch."""
        consumer = self._random_member()
        if consumer is not None and consumer.epoch > 0:
            self._claim(consumer.member_id, consumer.epoch, consumer.owned)

    def _claim(self, member_id: str, epoch: int, owned: set[Place]) -> None:
        """Save a commit for one partition of a member whose heartbeat was just answered."""
        group = self.group()
        member = None if group is None else group.members.get(member_id)
        held = [place for place in owned if self._tenures.get(place, NOBODY).member_id == member_id]
        if held and member is not None and member.epoch == epoch:
            place = self.rng.choice(sorted(held, key=str))
            self._claims.append(Claim(member_id, epoch, place, self._checks))

    def commit_late(self) -> None:
        """Send a delayed commit, which must fail if another member had the partition since.

        Like Kafka, kbroker accepts every commit with the current epoch of the member. A member that
        revokes partitions in two steps keeps its epoch, although others may have the first ones.
        """
        group = self.group()
        if group is None or not self._claims:
            return
        claim = self.rng.choice(self._claims)
        member = group.members.get(claim.member_id)
        name = self.h.topics.name_of(claim.place[0])
        if name is None:
            return
        (code,) = self.h.commit({(name, claim.place[1]): 1}, claim.member_id, claim.epoch)
        if code:
            self.work["late commits refused"] += 1
            return
        if member is None or member.epoch != claim.epoch:
            tenure = self._tenures.get(claim.place, NOBODY)
            is_own = tenure.member_id == claim.member_id and tenure.since <= claim.check
            must(is_own, f"{claim} was committed, but {tenure}")
        self.work["late commits taken"] += 1

    def wait(self) -> None:
        """Let all living consumers send heartbeats while time passes."""
        for _ in range(self.rng.choice((1, 1, 1, 5, 12))):
            self.h.sleep(self.rng.choice((500, 5_000)))
            for consumer in self.living:
                if self.rng.random() < 0.95:
                    self._beat(consumer)

    def restart(self) -> None:
        self.h = self.h.restarted()
        self.work["restarted"] += 1

    # -- invariants

    def group(self) -> ConsumerGroup | None:
        return self.h.coordinator._state.find_group("g", ConsumerGroup)

    def _is_member(self, consumer: Consumer) -> bool:
        group = self.group()
        member = None if group is None else group.members.get(consumer.member_id)
        return member is not None and member.epoch >= 0

    def check(self) -> None:
        self._checks += 1
        group = self.group()
        if group is None:
            must(not self._epochs, "the group was deleted")
            self.forget_claims()
            return
        must(group.epoch >= self._epoch, "the group epoch decreased")
        must(group.assignment_epoch <= group.epoch, "assignment epoch is greater than group epoch")
        self._epoch = group.epoch
        holders: dict[Place, str] = {}
        for member in group.members.values():
            if member.epoch > 0:
                before = self._epochs.get(member.id, 0)
                must(member.epoch >= before, f"the epoch of {member.id} decreased")
            self._epochs[member.id] = member.epoch
            for part in (member.assigned, member.revoking):
                for topic_id, partitions in part.items():
                    for partition in partitions:
                        place = (topic_id, partition)
                        must(place not in holders, f"{place} has two members")
                        holders[place] = member.id
                        must(group.holder(*place) == member.id, "holder is wrong")
            must(
                not member.revoking or member.state is MemberState.UNREVOKED,
                f"{member.id} has revoking partitions in another state than UNREVOKED",
            )
        self._follow(holders)
        must(
            sum(map(len, group.held.values())) == len(holders),
            "holders of unassigned partitions remain",
        )
        for consumer in self.living:
            if self._is_member(consumer):
                for place in consumer.owned:
                    must(
                        holders.get(place, consumer.member_id) == consumer.member_id,
                        f"{place} is read by two members",
                    )
        if self._checks % 20 == 0:
            must(picture(group) == picture(self._replayed()), "replayed state differs")

    def _follow(self, holders: dict[Place, str]) -> None:
        """Update the holder of each partition."""
        self._tenures = {
            place: known
            if (known := self._tenures.get(place)) is not None and known.member_id == holder
            else Tenure(holder, self._checks)
            for place, holder in holders.items()
        }

    def forget_claims(self) -> None:
        """Drop saved commits, because epochs have restarted."""
        self._claims.clear()
        self._tenures.clear()

    def _replayed(self) -> ConsumerGroup:
        state = ShardState(unlimited())
        for entry in self.h.entries:
            entry.load(
                lambda *record: replay(state, *record),
                lambda producer, commit: end_transaction(state, producer, commit=commit),
            )
        live = self.h.coordinator._state.memory.limits
        must(state.memory.limits.members.used == live.members.used, "sum of memory is wrong")
        group = state.find_group("g", ConsumerGroup)
        assert group is not None
        return group

    def heal(self) -> None:
        """Stop all failures, and check that every partition is assigned to one consumer."""
        self.rng = random.Random(0)
        self.rng.random = lambda: 0.5  # type: ignore[method-assign]
        for _ in range(40):
            self.h.sleep(5_000)
            for consumer in self.living:
                self._beat(consumer)
                consumer.apply()
            self.check()
        group = self.group()
        if group is None:
            return
        must(
            {*group.members} == {each.member_id for each in self.living},
            "members differ from living clients",
        )
        if not group.members:
            return
        must(group.state.value == "Stable", f"group is {group.state} after healing")
        read: Counter[Place] = Counter()
        for consumer in self.living:
            read.update(consumer.owned)
        wanted = {
            (self.h.topics.topics[name][0], index)
            for name in group.topics_after(None, None, group.resolved)
            if name in self.h.topics.topics
            for index in range(self.h.topics.topics[name][1])
        }
        must(read == Counter(wanted), f"read {read}, wanted {wanted}")


def picture(group: ConsumerGroup) -> tuple[Any, ...]:
    """Return the stored state of a group, and the aggregates over its members."""
    return (
        group.epoch,
        group.assignment_epoch,
        group.metadata_hash,
        group.members,
        {each: dict(target) for each, target in group.targets.items()},
        group.resolved,
        group.static_ids,
        group.topics,
        group.patterns,
        group.held,
        group.unreconciled,
    )
