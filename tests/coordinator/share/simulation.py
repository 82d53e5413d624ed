"""Random simulation of one share group with many members, failures, and one seed.

Responses get lost, appends fail, members die and return, and topics change. Share coordinators are
late, fail or never respond, operators alter offsets, and the shard restarts. After every step,
`check` verifies the invariants. At the end, `heal` stops all failures, and every member must get an
assignment.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kbroker.coordinator import Result, ShareGroupSettings
from kbroker.coordinator.replay import end_transaction, replay
from kbroker.coordinator.share.group import SharedTopic, ShareGroup
from kbroker.coordinator.share.offsets import ShareStateRequests
from kbroker.coordinator.state import ShardState
from kbroker.protocol.errors import ErrorCode

from ..consumer.simulation import NAMES, Violation, must
from ..harness import FakeTopics, Harness, unlimited

Place = tuple[UUID, int]
BAD_NEWS = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
SIZE_MAX = 7


@dataclass
class Reader:
    """A member that knows only what responses contain."""

    member_id: str
    topics: list[str]
    epoch: int = 0
    alive: bool = True
    must_send_all: bool = True


class ShareSimulation:
    """One run. `work` counts the events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.work: Counter[str] = Counter()
        settings = ShareGroupSettings(
            assignment_interval_ms=self.rng.choice((0, 1_000)), size_max=SIZE_MAX
        )
        self.h = Harness(topics=FakeTopics(), share=settings)
        self.readers: list[Reader] = []
        self._numbers = itertools.count()
        self._epoch = 0
        self._epochs: dict[str, int] = {}
        self._checks = 0

    def run(self, steps: int) -> None:
        moves = {
            self.join: 4,
            self.beat: 30,
            self.leave: 1,
            self.leave_all: 1,
            self.die: 1,
            self.subscribe: 2,
            self.change_topics: 2,
            self.answer: 8,
            self.operate: 1,
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
    def living(self) -> list[Reader]:
        return [each for each in self.readers if each.alive]

    def _random_member(self) -> Reader | None:
        return self.rng.choice(self.living) if self.living else None

    def _topics(self) -> list[str]:
        return self.rng.sample(NAMES, self.rng.choice((1, 1, 2, 3)))

    # -- events of members

    def join(self) -> None:
        if len(self.living) < SIZE_MAX:
            reader = Reader(f"member-{next(self._numbers)}", self._topics())
            self.readers.append(reader)
            self._beat(reader)

    def beat(self) -> None:
        reader = self._random_member()
        if reader is not None:
            self._beat(reader)

    def _beat(self, reader: Reader) -> None:
        topics = reader.topics if reader.must_send_all else None
        response = self.h.share_beat(reader.member_id, reader.epoch, topics)
        self.work[ErrorCode(response.error_code).name] += 1
        if self.rng.random() < 0.1:
            self.work["lost"] += 1
            reader.must_send_all = True
        elif response.error_code in FENCED:
            reader.epoch, reader.must_send_all = 0, True
        elif not response.error_code:
            reader.epoch, reader.must_send_all = response.member_epoch, False
            must(response.member_epoch > 0, "member epoch is 0")
        else:
            allowed = (*BAD_NEWS, ErrorCode.GROUP_MAX_SIZE_REACHED)
            must(response.error_code in allowed, f"{response}")
            reader.must_send_all = True

    def leave(self) -> None:
        reader = self._random_member()
        if reader is not None:
            reader.alive = False
            self.h.share_beat(reader.member_id, -1)
            self.work["left"] += 1

    def leave_all(self) -> None:
        while self.living:
            self.leave()

    def die(self) -> None:
        reader = self._random_member()
        if reader is not None:
            reader.alive = False
            self.work["died"] += 1

    def subscribe(self) -> None:
        reader = self._random_member()
        if reader is not None:
            reader.topics, reader.must_send_all = self._topics(), True
            self._beat(reader)

    def wait(self) -> None:
        """Let all living members send heartbeats while time passes."""
        for _ in range(self.rng.choice((1, 1, 1, 5, 12))):
            self.h.sleep(self.rng.choice((500, 5_000)))
            for reader in self.living:
                if self.rng.random() < 0.95:
                    self._beat(reader)

    # -- other events

    def change_topics(self) -> None:
        name = self.rng.choice(NAMES)
        known = self.h.topics.topics.get(name)
        if known is None:
            self.h.create_topic(name, self.rng.randint(1, 6))
        elif self.rng.random() < 0.3:
            self.h.delete_topic(name)
            self.h.forget(self.h.coordinator.share_offsets.forget_topics([known[0]]))
            # A deletion that could not be stored is repeated when the shard is loaded.
            self.h.forget(self.h.coordinator.forget_missing_topics())
        else:
            self.h.create_topic(name, known[1] + 1)
        self.work["topics"] += 1

    def answer(self) -> None:
        """Let share coordinators respond, or drop the request."""
        if not self.h.to_make:
            return
        luck = self.rng.random()
        if luck < 0.2:
            self.h.to_make.pop()
            self.work["never made"] += 1
        else:
            self.h.make_states(succeeded=luck > 0.4)
            self.work["made" if luck > 0.4 else "not made"] += 1

    def operate(self) -> None:
        """Alter or delete offsets of the group, as an operator does."""
        name = self.rng.choice(NAMES)
        known = self.h.topics.topics.get(name)
        if known is None:
            return
        coordinator = self.h.coordinator
        if self.rng.random() < 0.5:
            topics = {known[0]: SharedTopic(name, frozenset({0}))}
            result = coordinator.share_offsets.alter("g", topics, self.h.now)
            self.h.settle(result)
            if self.rng.random() < 0.8:
                partitions = state_requests_of(result).partitions
                self.h.settle(
                    coordinator.share_states.record_outcome("g", partitions, succeeded=True)
                )
        else:
            result = coordinator.share_offsets.delete("g", {known[0]: name})
            self.h.settle(result)
            if self.rng.random() < 0.8:
                self.h.settle(coordinator.share_offsets.record_deletion("g", [known[0]]))
        self.work["refused" if state_requests_of(result).error_code else "operated"] += 1

    def restart(self) -> None:
        self.h = self.h.restarted()
        self.h.forget(self.h.coordinator.forget_missing_topics())
        self.work["restarted"] += 1

    # -- invariants

    def group(self) -> ShareGroup | None:
        return self.h.coordinator._state.find_group("g", ShareGroup)

    def check(self) -> None:
        group = self.group()
        if group is None:
            must(not self._epochs, "the group was deleted")
            return
        must(group.epoch >= self._epoch, "the group epoch decreased")
        must(group.assignment_epoch <= group.epoch, "assignment epoch is greater than group epoch")
        must(len(group.members) <= SIZE_MAX, "too many members")
        self._epoch = group.epoch
        held: Counter[Place] = Counter()
        for member in group.members.values():
            before = self._epochs.get(member.id, 0)
            must(member.epoch < 1 or member.epoch >= before, f"the epoch of {member.id} decreased")
            self._epochs[member.id] = member.epoch
        for target in group.targets.values():
            for topic_id, partitions in target.items():
                held.update((topic_id, each) for each in partitions)
                if self.h.topics.name_of(topic_id) is not None:
                    known = group.shared.initialized.get(topic_id)
                    must(
                        known is not None and partitions <= known.partitions,
                        f"{topic_id} is assigned without a state",
                    )
        counted = {(t, p): n for t, parts in group.held.items() for p, n in parts.items()}
        must(held == Counter(counted), "holder counts are wrong")
        self._checks += 1
        if self._checks % 20 == 0:
            must(picture(group) == picture(self._replayed()), "replayed state differs")

    def _replayed(self) -> ShareGroup:
        state = ShardState(unlimited())
        for entry in self.h.entries:
            entry.load(
                lambda *record: replay(state, *record),
                lambda producer, commit: end_transaction(state, producer, commit=commit),
            )
        live = self.h.coordinator._state.memory.limits
        must(state.memory.limits.members.used == live.members.used, "sum of memory is wrong")
        group = state.find_group("g", ShareGroup)
        assert group is not None
        return group

    def heal(self) -> None:
        """Stop all failures, and check that every member and every partition is assigned."""
        self.rng = random.Random(0)
        self.rng.random = lambda: 0.5  # type: ignore[method-assign]
        for _ in range(40):
            self.h.sleep(5_000)
            for reader in self.living:
                self._beat(reader)
            self.h.make_states()
            self.check()
        group = self.group()
        if group is None:
            return
        must(
            {*group.members} == {each.member_id for each in self.living},
            "members differ from living clients",
        )
        must(
            group.epoch == group.assignment_epoch or not group.members,
            "target assignment is missing after healing",
        )
        self._check_shares(group)

    def _check_shares(self, group: ShareGroup) -> None:
        topics = self.h.topics.topics
        wanted = {
            (topics[name][0], index)
            for name in group.topics
            if name in topics
            for index in range(topics[name][1])
        }
        has = {
            member.id: {(t, p) for t, parts in member.assigned.items() for p in parts}
            for member in group.members.values()
        }
        must(set().union(*has.values()) == wanted if has else True, f"{has}, wanted {wanted}")
        for member in group.members.values():
            must(member.is_reconciled_to(group.epoch), f"{member} is not reconciled after healing")
            may = {topics[name][0] for name in member.topics if name in topics}
            must(
                {topic_id for topic_id, _ in has[member.id]} <= may,
                "a topic is assigned without subscription",
            )
            must(bool(has[member.id]) or not may, f"{member} has no partitions")
        if len({member.topics for member in group.members.values()}) == 1:
            counts = [len(some) for some in has.values()]
            must(max(counts) - min(counts) <= 1, f"out of balance: {counts}")


def state_requests_of(result: Result[ShareStateRequests]) -> ShareStateRequests:
    """Return the requests for the share coordinators."""
    assert isinstance(result.response, ShareStateRequests)
    return result.response


def picture(group: ShareGroup) -> tuple[Any, ...]:
    """Return the stored state of a group, and the aggregates over its members."""
    return (
        group.epoch,
        group.assignment_epoch,
        group.metadata_hash,
        group.members,
        {each: dict(target) for each, target in group.targets.items()},
        group.shared,
        group.topics,
        group.held,
    )


__all__ = ["ShareSimulation", "Violation"]
