"""Random simulation of one streams group with many members, failures, and one seed.

Members behave like those of Kafka Streams: they take assigned tasks, revoke tasks, and report what
they own. Responses get lost, appends fail, members die and return, topics and configs change, and
the shard restarts. After every step, `check` verifies the invariants. At the end, `heal` stops all
failures, and every task must be assigned.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from kbroker.coordinator import StreamsGroupSettings
from kbroker.coordinator.common.modern_group import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from kbroker.coordinator.replay import end_transaction, replay
from kbroker.coordinator.state import ShardState
from kbroker.coordinator.streams.group import StreamsGroup, StreamsMemberState
from kbroker.protocol.errors import ErrorCode

from ..consumer.simulation import BAD_NEWS, FENCED, must
from ..harness import Harness, topology, unlimited
from ..harness import subtopology as part

Task = tuple[str, int]
TOPOLOGY = topology(
    part("0", "orders", sinks=["between"]),
    part("1", "audit", changelogs=["audit-log"]),
    part("2", repartition={"between": 0}, changelogs=["log"]),
)
PROCESSES = ("p", "q", "r", "s")
INSTANCES = {"i", "j"}


@dataclass
class Worker:
    """A member that knows only what responses contain."""

    member_id: str
    process_id: str
    instance_id: str | None = None
    epoch: int = 0
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)
    assigned: tuple[set[Task], set[Task]] = (frozenset(), frozenset())  # type: ignore[assignment]
    alive: bool = True

    def forget(self) -> None:
        self.epoch = 0
        self.active, self.standby = set(), set()
        self.assigned = set(), set()

    def apply(self) -> None:
        """Revoke and take tasks as the last response says."""
        self.active, self.standby = map(set, self.assigned)


class StreamsSimulation:
    """One run. `work` counts the events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.work: Counter[str] = Counter()
        settings = StreamsGroupSettings(
            initial_rebalance_delay_ms=self.rng.choice((0, 3_000)),
            assignment_interval_ms=self.rng.choice((0, 1_000)),
            standby_replicas=self.rng.choice((0, 1)),
        )
        self.h = Harness(streams=settings)
        self.workers: list[Worker] = []
        self._numbers = itertools.count()
        self._epoch = 0
        self._epochs: dict[str, int] = {}
        self._checks = 0

    # -- events of members

    def run(self, steps: int) -> None:
        moves = {
            self.join: 3,
            self.beat: 30,
            self.leave: 1,
            self.leave_temporarily: 1,
            self.come_back: 2,
            self.die: 1,
            self.change_topics: 1,
            self.change_settings: 1,
            self.commit: 5,
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
    def living(self) -> list[Worker]:
        return [each for each in self.workers if each.alive]

    def _random_member(self) -> Worker | None:
        return self.rng.choice(self.living) if self.living else None

    def join(self) -> None:
        if len(self.living) < 6:
            name = f"member-{next(self._numbers)}"
            taken = {each.instance_id for each in self.living}
            instance_id = self.rng.choice((None, *sorted(INSTANCES - taken)))
            worker = Worker(name, self.rng.choice(PROCESSES), instance_id)
            self.workers.append(worker)
            self._beat(worker)

    def beat(self) -> None:
        worker = self._random_member()
        if worker is not None:
            if self.rng.random() < 0.7:
                worker.apply()
            self._beat(worker)

    def _beat(self, worker: Worker) -> None:
        fields: dict[str, Any] = {"instance_id": worker.instance_id}
        if worker.epoch == 0:
            fields |= {"topology": TOPOLOGY, "process_id": worker.process_id}
        elif self.rng.random() < 0.8:
            fields |= {"owned": _rows(worker.active), "standby": _rows(worker.standby)}
        response = self.h.streams_beat(worker.member_id, worker.epoch, **fields)
        self.work[ErrorCode(response.error_code).name] += 1
        if self.h.missing and self.rng.random() < 0.8:
            self.h.make_missing()
            self.work["made"] += 1
        if self.rng.random() < 0.1:
            # The response is lost. The member no longer takes tasks of earlier responses.
            worker.assigned = set(worker.active), set(worker.standby)
            self.work["lost"] += 1
            return
        if response.error_code in (*FENCED, ErrorCode.INVALID_REQUEST):
            worker.forget()  # invalid request: it contains tasks that no longer exist
        elif response.error_code:
            must(response.error_code in BAD_NEWS, f"{response}")
        else:
            must(response.member_epoch > 0, "member epoch is 0")
            worker.epoch = response.member_epoch
            if response.active_tasks is not None:
                worker.assigned = (
                    _tasks(response.active_tasks),
                    _tasks(response.standby_tasks or []),
                )

    def leave(self) -> None:
        worker = self._random_member()
        if worker is not None:
            worker.alive = False
            self.h.streams_beat(worker.member_id, -1)
            worker.forget()
            self.work["left"] += 1

    def leave_temporarily(self) -> None:
        worker = self._random_member()
        if worker is not None and worker.instance_id is not None:
            self.h.streams_beat(worker.member_id, -2, instance_id=worker.instance_id)
            worker.alive = False
            worker.forget()
            self.work["left temporarily"] += 1

    def come_back(self) -> None:
        """Replace a static member that has left or died, mostly in the same process."""
        gone = [each for each in self.workers if not each.alive and each.instance_id is not None]
        if gone and len(self.living) < 6:
            before = self.rng.choice(gone)
            if before.instance_id in {each.instance_id for each in self.living}:
                return
            name = self.rng.choice((before.member_id, f"member-{next(self._numbers)}"))
            process_id = self.rng.choice((before.process_id, before.process_id, "s"))
            worker = Worker(name, process_id, before.instance_id)
            self.workers = [each for each in self.workers if each.member_id != name]
            self.workers.append(worker)
            self._beat(worker)
            self.work["came back"] += 1

    def die(self) -> None:
        worker = self._random_member()
        if worker is not None:
            worker.alive = False
            self.work["died"] += 1

    def change_topics(self) -> None:
        name = self.rng.choice(("orders", "audit"))
        known = self.h.topics.topics.get(name)
        if known is None:
            self.h.create_topic(name, self.rng.randint(1, 6))
        elif self.rng.random() < 0.5:
            for each in (name, "between", "log", "audit-log"):
                if each in self.h.topics.topics:
                    self.h.delete_topic(each)
        else:
            for each in (name, "between", "log") if name == "orders" else (name, "audit-log"):
                if each in self.h.topics.topics:
                    self.h.create_topic(each, self.h.topics.topics[each][1] + 1)
        self.work["topics"] += 1

    def change_settings(self) -> None:
        standbys = self.rng.choice((0, 1, 2))
        self.h.streams = replace(self.h.streams, standby_replicas=standbys)
        self.work["settings"] += 1

    def commit(self) -> None:
        """Commit for an assigned task; this must succeed even if the member's epoch is outdated."""
        worker = self._random_member()
        if worker is None or not worker.active & worker.assigned[0] or not self._is_member(worker):
            return
        subtopology, partition = self.rng.choice(sorted(worker.active & worker.assigned[0]))
        name = {"0": "orders", "1": "audit", "2": "between"}[subtopology]
        if not self.h.topics.exists(name, partition) or not worker.epoch:
            return
        (code,) = self.h.commit({(name, partition): 1}, worker.member_id, worker.epoch)
        allowed = (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        must(code in allowed, f"{worker} may not commit {name}-{partition}: {code}")
        self.work["committed"] += 1

    def wait(self) -> None:
        """Let all living members send heartbeats while time passes."""
        for _ in range(self.rng.choice((1, 1, 1, 5, 12))):
            self.h.sleep(self.rng.choice((500, 5_000)))
            for worker in self.living:
                if self.rng.random() < 0.95:
                    self._beat(worker)

    def restart(self) -> None:
        self.h = self.h.restarted()
        self.work["restarted"] += 1

    # -- invariants

    def group(self) -> StreamsGroup | None:
        return self.h.coordinator._state.find_group("g", StreamsGroup)

    def _is_member(self, worker: Worker) -> bool:
        group = self.group()
        return group is not None and worker.member_id in group.members

    def check(self) -> None:
        group = self.group()
        if group is None:
            must(not self._epochs, "the group was deleted")
            return
        must(group.epoch >= self._epoch, "the group epoch decreased")
        must(group.assignment_epoch <= group.epoch, "assignment epoch is greater than group epoch")
        self._epoch = group.epoch
        holders: dict[Task, str] = {}
        for member in group.members.values():
            before = self._epochs.get(member.id, 0)
            is_away = member.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
            must(is_away or member.epoch >= before, f"the epoch of {member.id} decreased")
            must(member.epoch <= group.epoch, f"{member.id} has an epoch greater than its group")
            self._epochs[member.id] = member.epoch
            for held in (member.assigned, member.revoking):
                for subtopology, tasks in held.active.items():
                    for partition in tasks:
                        task = (subtopology, partition)
                        must(task not in holders, f"{task} has two members")
                        holders[task] = member.id
                        found = group.task_process_ids.active(*task)
                        must(found == member.process_id, "process of a task is wrong")
            must(
                member.revoking.is_empty or member.state is StreamsMemberState.UNREVOKED,
                f"{member.id} has revoking tasks in another state than UNREVOKED",
            )
        for worker in self.living:
            if self._is_member(worker):
                for task in worker.active:
                    owner = holders.get(task, worker.member_id)
                    must(owner == worker.member_id, f"{task} is active on two members")
        self._checks += 1
        if self._checks % 20 == 0:
            must(picture(group) == picture(self._replayed()), "replayed state differs")

    def _replayed(self) -> StreamsGroup:
        state = ShardState(unlimited())
        for entry in self.h.entries:
            entry.load(
                lambda *record: replay(state, *record),
                lambda producer, commit: end_transaction(state, producer, commit=commit),
            )
        live = self.h.coordinator._state.memory.limits
        must(state.memory.limits.members.used == live.members.used, "sum of memory is wrong")
        group = state.find_group("g", StreamsGroup)
        assert group is not None
        return group

    def heal(self) -> None:
        """Stop all failures, and check that every task is active and has its standbys."""
        self.rng = random.Random(0)
        self.rng.random = lambda: 0.5  # type: ignore[method-assign]
        for name in ("orders", "audit"):
            if name not in self.h.topics.topics:
                self.h.create_topic(name, 2)
        for name in ("between", "log", "audit-log"):
            if name in self.h.topics.topics:
                self.h.delete_topic(name)
        for _ in range(40):
            self.h.sleep(5_000)
            for worker in self.living:
                self._beat(worker)
                worker.apply()
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
        worked: Counter[Task] = Counter()
        kept: Counter[Task] = Counter()
        for worker in self.living:
            worked.update(worker.active)
            kept.update(worker.standby)
        sizes = {
            n: self.h.topics.topics[t][1] for n, t in zip("01", ("orders", "audit"), strict=True)
        }
        sizes["2"] = sizes["0"]
        wanted = Counter((name, index) for name, size in sizes.items() for index in range(size))
        must(worked == wanted, f"active tasks {worked}, expected {wanted}")
        processes = len({each.process_id for each in self.living})
        copies = min(self.h.streams.standby_replicas, processes - 1)
        for name, index in wanted:
            must(kept[name, index] == (copies if name != "0" else 0), f"standbys of {name}_{index}")


def _rows(tasks: set[Task]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for subtopology, partition in tasks:
        rows.setdefault(subtopology, []).append(partition)
    return rows


def _tasks(rows: list[Any]) -> set[Task]:
    return {(row.subtopology_id, partition) for row in rows for partition in row.partitions}


def picture(group: StreamsGroup) -> tuple[Any, ...]:
    """Return the stored state of a group, and the aggregates over its members."""
    return (
        group.epoch,
        group.assignment_epoch,
        group.metadata_hash,
        group.validated_epoch,
        group.assignment_configs,
        group.members,
        group.targets,
        group.topology,
        group.task_process_ids,
        group.static_ids,
        group.unreconciled,
    )
