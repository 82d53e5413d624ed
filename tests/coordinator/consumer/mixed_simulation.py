"""Random simulation of one group with members of the consumer and the classic protocol.

It extends `consumer.simulation`. The group is converted from one protocol to the other and back as
members join and leave. Requests are sent twice, and consumers pause until they are fenced. If
requested, the coordinator moves at every step: another node loads it from the log, and pending
requests get no response.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)

from ..harness import REBALANCE_MS, Call, joining
from .simulation import NAMES, Consumer, ConsumerSimulation, Place, must

TRY_AGAIN = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass
class OldConsumer:
    """A consumer of the classic, eager protocol: it revokes all partitions before it rejoins."""

    topics: list[str]
    member_id: str = ""
    generation: int = -1
    wants: str = "join"
    # Topics of each member, if this consumer is the leader.
    leads: dict[str, list[str]] | None = None
    owned: set[Place] = field(default_factory=set)
    call: Call[Any] | None = None
    alive: bool = True

    def rejoin(self, code: int) -> None:
        """Rejoin after an error, without the member ID if that is unknown."""
        self.wants, self.leads, self.owned = "join", None, set()
        if code not in TRY_AGAIN and code != ErrorCode.ILLEGAL_GENERATION:
            self.member_id, self.generation = "", -1


class MixedSimulation(ConsumerSimulation):
    """One run. With `moves_always`, the coordinator moves after every step."""

    def __init__(self, seed: int, *, moves_always: bool = False) -> None:
        super().__init__(seed)
        self.moves_always = moves_always
        self.old: list[OldConsumer] = []
        self._was_consumer_group = False
        self._paused: dict[str, int] = {}
        self._steps = 0

    def run(self, steps: int) -> None:
        moves = {
            self.join: 3,
            self.beat: 25,
            self.beat_twice: 4,
            self.leave: 1,
            self.leave_all: 1,
            self.die: 1,
            self.leave_temporarily: 1,
            self.pause: 1,
            self.subscribe: 1,
            self.change_topics: 1,
            self.commit: 4,
            self.claim: 6,
            self.save_old_commits: 6,
            self.commit_late: 8,
            self.join_old: 2,
            self.resume_old: 25,
            self.leave_old: 1,
            self.kill_old: 1,
            self.wait: 8,
            self.restart: 1,
        }
        for self._steps in range(steps):
            move = self.rng.choices(list(moves), list(moves.values()))[0]
            if self.rng.random() < 0.05:
                self.h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
            move()
            self.h.append_fails = None
            if self.moves_always:
                self.restart()
            self.check()

    # -- more events of consumer-protocol members

    def beat_twice(self) -> None:
        """Send a heartbeat twice, as a client does after a lost response."""
        consumer = self._random_member()
        if consumer is not None:
            epoch, assigned = consumer.epoch, set(consumer.assigned)
            self._beat(consumer)
            if epoch > 0 and not consumer.must_send_all:
                consumer.epoch, consumer.assigned = epoch, assigned
                consumer.owned &= assigned
                consumer.must_send_all = True
                self._beat(consumer)
                self.work["twice"] += 1

    def pause(self) -> None:
        """Stop sending heartbeats until the session has expired, without noticing."""
        consumer = self._random_member()
        if consumer is not None:
            self._paused[consumer.member_id] = self._steps + self.rng.choice((3, 10, 30))
            self.work["paused"] += 1

    def _beat(self, consumer: Consumer) -> None:
        if self._paused.get(consumer.member_id, 0) <= self._steps:
            super()._beat(consumer)

    def leave_all(self) -> None:
        for consumer in self.living:
            if self.rng.random() < 0.7:
                consumer.alive = False
                self.h.beat(consumer.member_id, -1, instance_id=consumer.instance_id)
                consumer.forget()

    # -- members of the classic protocol

    @property
    def living_old(self) -> list[OldConsumer]:
        return [each for each in self.old if each.alive]

    def join_old(self) -> None:
        if len(self.living_old) < 4:
            self.old.append(OldConsumer(self.rng.sample(NAMES, self.rng.choice((1, 2, 3)))))

    def resume_old(self) -> None:
        if self.living_old:
            self._resume(self.rng.choice(self.living_old))

    def leave_old(self) -> None:
        if self.living_old:
            consumer = self.rng.choice(self.living_old)
            consumer.alive, consumer.owned = False, set()
            if consumer.member_id:
                self.h.leave((consumer.member_id, None))
                self.work["old left"] += 1

    def kill_old(self) -> None:
        if self.living_old:
            self.rng.choice(self.living_old).alive = False

    def save_old_commits(self) -> None:
        """Save commits of classic members, like `claim`."""
        if self.living_old:
            consumer = self.rng.choice(self.living_old)
            self._claim(consumer.member_id, consumer.generation, consumer.owned)

    def _resume(self, consumer: OldConsumer) -> None:
        """Make the next step of a consumer: send a request, or process a pending response."""
        if consumer.call is None:
            self._ask(consumer)
        if consumer.call is not None and not consumer.call.is_pending:
            response, consumer.call = consumer.call.response, None
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                consumer.member_id = response.member_id
            elif response.error_code:
                consumer.rejoin(response.error_code)
            elif consumer.wants == "join":
                self._joined(consumer, response)
            else:
                self._synced(consumer, response)

    def _ask(self, consumer: OldConsumer) -> None:
        if consumer.wants == "join":
            consumer.owned = set()
            protocols = (("range", write_subscription(consumer.topics)),)
            request = joining(consumer.member_id, protocols)
            freed = self.h.coordinator.delete_empty_modern_group(request, self.h.now)
            if freed is not None:
                self.h.settle(freed)
                if self.h.coordinator.delete_empty_modern_group(request, self.h.now) is not None:
                    return  # the assignment could not be stored
            consumer.call = self.h.join(
                consumer.member_id, protocols=protocols, rebalance_ms=REBALANCE_MS
            )
        elif consumer.wants == "sync":
            shares = None if consumer.leads is None else self._shares(consumer.leads)
            consumer.call = self.h.sync(consumer.member_id, consumer.generation, shares)
        else:
            code = self.h.heartbeat(consumer.member_id, consumer.generation)
            if code:
                consumer.rejoin(code)

    def _joined(self, consumer: OldConsumer, response: Any) -> None:
        must(response.generation_id >= consumer.generation, "generation decreased")
        consumer.member_id, consumer.generation = response.member_id, response.generation_id
        consumer.wants, consumer.leads = "sync", None
        if response.leader == response.member_id:
            subscriptions = {
                row.member_id: read_subscription(row.metadata) for row in response.members
            }
            consumer.leads = {
                each: list(subscription.topics)
                for each, subscription in subscriptions.items()
                if subscription
            }
        self.work["old joined"] += 1

    def _synced(self, consumer: OldConsumer, response: Any) -> None:
        assignment = read_assignment(response.assignment)
        must(assignment is not None, "assignment cannot be parsed")
        assert assignment is not None
        for row in assignment.assigned_partitions:
            topic_id = self.h.topics.id_of(row.topic)
            if topic_id is not None:
                consumer.owned |= {(topic_id, index) for index in row.partitions}
        consumer.wants = "beat"

    def _shares(self, topics: dict[str, list[str]]) -> dict[str, bytes]:
        shares: dict[str, list[tuple[str, int]]] = {member_id: [] for member_id in topics}
        for name in NAMES:
            readers = sorted(each for each in topics if name in topics[each])
            known = self.h.topics.topics.get(name)
            for index in range(known[1] if known and readers else 0):
                shares[readers[index % len(readers)]].append((name, index))
        return {member_id: write_assignment(rows) for member_id, rows in shares.items()}

    def restart(self) -> None:
        super().restart()
        classic = self.classic()
        if classic is not None and not self._was_consumer_group:
            # A generation is stored with the leader's assignment; otherwise its number is used
            # again.
            self._epoch = min(self._epoch, classic.generation)
        for consumer in self.old:
            consumer.call = None  # the connection is closed

    def wait(self) -> None:
        super().wait()
        for consumer in self.living_old:
            if self.rng.random() < 0.9:
                self._resume(consumer)

    # -- invariants

    def classic(self) -> ClassicGroup | None:
        return self.h.coordinator._state.find_group("g", ClassicGroup)

    def check(self) -> None:
        classic = self.classic()
        if self.group() is not None:
            must(classic is None, "group has both types")
            self._was_consumer_group = True
            super().check()
        elif classic is not None and classic.members:
            if self._was_consumer_group:
                self.work["became classic"] += 1
            self._was_consumer_group = False
            self._epochs.clear()
            self.forget_claims()
            must(classic.generation >= self._epoch, "generation is less than the previous epoch")
            self._epoch = classic.generation
        else:
            self._was_consumer_group, self._epoch = False, 0
            self._epochs.clear()
            self.forget_claims()
        self._check_readers()

    def _check_readers(self) -> None:
        """Check that no two members that may still commit read the same partition."""
        read: dict[Place, str] = {}
        for consumer in self.living_old:
            if not self._counts(consumer):
                continue
            for place in consumer.owned:
                must(place not in read, f"{place} is read by two classic members")
                read[place] = consumer.member_id
        for newer in self.living:
            if self._is_member(newer):
                for place in newer.owned:
                    must(place not in read, f"{place} is read by two members, one of each protocol")

    def _counts(self, consumer: OldConsumer) -> bool:
        """Return True if the consumer is a member of the current generation."""
        classic, group = self.classic(), self.group()
        if classic is not None:
            is_member = consumer.member_id in classic.members
            return is_member and classic.generation == consumer.generation
        member = None if group is None else group.members.get(consumer.member_id)
        return member is not None and member.classic is not None

    def heal(self) -> None:
        """Stop all failures, and check that each partition is read by one member."""
        self.rng.random = lambda: 0.5  # type: ignore[method-assign]
        self._paused.clear()
        for _ in range(60):
            self.h.sleep(3_000)
            for consumer in self.living:
                self._beat(consumer)
                consumer.apply()
            for old in self.living_old:
                self._resume(old)
            self.check()
        read: Counter[Place] = Counter()
        for owned in [each.owned for each in self.living] + [
            each.owned for each in self.living_old
        ]:
            read.update(owned)
        must(read == Counter(self._expected_partitions()), f"read {read}")

    def _expected_partitions(self) -> list[Place]:
        group = self.group()
        names = {name for old in self.living_old for name in old.topics}
        if group is not None:
            wanted = "Stable" if group.members else "Empty"
            must(group.state.value == wanted, f"group is {group.state} after healing")
            names = set(group.topics_after(None, None, group.resolved))
        known = self.h.topics.topics
        return [
            (known[name][0], index)
            for name in names
            if name in known
            for index in range(known[name][1])
        ]
