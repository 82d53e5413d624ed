"""Random histories of streams groups from a seed: members, static members, offsets and admins.

No result depends on time, and none on Kafka's hash order: the names of members are in the order of
their hashes, and so are those of two processes. (Names of three processes cannot be: two of them
share a bucket of a table for two members.) Sessions and rebalances outlast a history.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from .admin_calls import of, request
from .group_histories import LONG_MS
from .twins import SETTLE_SECONDS, Differs, Twins

BEAT, DESCRIBE, COMMIT, FETCH = (
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
)
# Settings of both brokers. A long heartbeat interval prevents kbroker from repeating assignments.
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "group.coordinator.append.linger.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.max.session.timeout.ms": str(LONG_MS),
    "group.streams.session.timeout.ms": str(LONG_MS),
    "group.streams.max.heartbeat.interval.ms": str(LONG_MS // 2),
    "group.streams.heartbeat.interval.ms": str(LONG_MS // 2),
    "group.streams.max.size": "5",
}
# Partition counts of the topics. `log` is the changelog of the stateful subtopology "0".
TOPICS = {"in": 4, "log": 4, "more": 2}
NAMES = "pqrstuvwxyz"
PROCESSES = "pq"
INSTANCES = ("i", "j", "k")
# Standby replicas by group.
GROUPS = {"none": "0", "one": "1", "two": "2"}
STATES = ("Stable", "Empty", "Reconciling", "Assigning", "not_ready", "nonsense")
Tasks = dict[str, set[int]]


@dataclass
class Member:
    """A member as its client sees it. The roles are active, standby and warm-up."""

    id: str
    group: str
    process: str
    instance: str | None = None
    epoch: int = 0
    assigned: tuple[Tasks, Tasks, Tasks] = field(default_factory=lambda: ({}, {}, {}))
    owned: tuple[Tasks, Tasks, Tasks] = field(default_factory=lambda: ({}, {}, {}))
    endpoint_epoch: int = -1
    is_away: bool = False


class StreamsHistory:
    """One history. `run` makes a number of calls to both brokers, and raises Differs."""

    def __init__(self, seed: int, twins: Twins) -> None:
        self.rng = random.Random(seed)
        self.twins = twins
        self.seed = seed
        self.members: list[Member] = []

    def run(self, calls: int) -> None:
        self.twins.group_prefix = self._own("")
        self._prepare()
        moves: dict[Callable[[], None], int] = {
            self.join: 8,
            self.beat: 50,
            self.change: 8,
            self.err: 10,
            self.leave: 4,
            self.leave_temporarily: 4,
            self.come_back: 6,
            self.report_offsets: 4,
            self.commit: 10,
            self.fetch: 5,
            self.describe: 14,
            self.list_groups: 3,
            self.delete_group: 2,
        }
        until = self.twins.calls + calls
        while self.twins.calls < until:
            self.rng.choices(list(moves), list(moves.values()))[0]()

    def _prepare(self) -> None:
        """Create topics, and set the group configs, before the coordinators need them."""
        create, alter = ApiKey.CREATE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS
        rows = [
            of(create, "Topic", name=self._own(name), num_partitions=count, replication_factor=1)
            for name, count in TOPICS.items()
        ]
        groups = [
            of(alter, "Resource", resource_type=32, resource_name=self._own(name), configs=[config])
            for name, count in GROUPS.items()
            for config in [of(alter, "Config", name="streams.num.standby.replicas", value=count)]
        ]
        find = ApiKey.FIND_COORDINATOR
        for twin in (self.twins.ours, self.twins.theirs):
            twin.ask(create, 7, request(create, topics=rows, timeout_ms=30_000))
            twin.ask(alter, 1, request(alter, resources=groups))
            deadline = time.monotonic() + 3 * SETTLE_SECONDS
            message = request(find, key_type=0, coordinator_keys=["any"])
            while twin.ask(find, 4, message).coordinators[0].error_code:
                if time.monotonic() > deadline:
                    raise Differs(f"{twin.address} has no group coordinator")
                time.sleep(0.05)
        time.sleep(1.0)

    # -- chances

    def _own(self, name: str) -> str:
        """Return the name of a topic or group of this history."""
        return f"s{self.seed}-{name}"

    def _chance(self, of_one: float) -> bool:
        return self.rng.random() < of_one

    def _version(self, key: ApiKey, least: int = 0) -> int:
        return self.rng.choice([each for each in self.twins.versions[key] if each >= least])

    def _member(self) -> Member | None:
        present = [each for each in self.members if not each.is_away]
        return self.rng.choice(present) if present else None

    # -- members

    def join(self) -> None:
        group = self.rng.choice(list(GROUPS))
        known = {each.id for each in self.members if each.group == group}
        free = [name for name in NAMES if name not in known]
        member = Member(self.rng.choice(free), group, self.rng.choice(PROCESSES))
        taken = {each.instance for each in self.members if each.group == group}
        instance = self.rng.choice((None, *INSTANCES))
        if instance not in taken:
            member.instance = instance
        self._join(member)

    def _join(self, member: Member) -> None:
        member.epoch, member.is_away = 0, False
        values = {
            "rebalance_timeout_ms": LONG_MS,
            "process_id": member.process,
            "topology": self._topology(),
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
            **self._metadata(member),
        }
        self.members = [each for each in self.members if not _is_replaced(each, member)]
        self._beat(member, **values)

    def beat(self) -> None:
        member = self._member()
        if member is None:
            return
        values: dict[str, Any] = {}
        if self._chance(0.6):
            member.owned = member.assigned
            values = _rows(member.owned)
        elif self._chance(0.3):
            values = _rows(member.owned)
        elif self._chance(0.2):
            values = _rows(({}, {}, {}))
        self._beat(member, **values)

    def change(self) -> None:
        member = self._member()
        if member is not None and member.instance is None and self._chance(0.2):
            self._join(member)
        elif member is not None:
            self._beat(member, **self._metadata(member), **self._timeout())

    def _timeout(self) -> dict[str, Any]:
        return (
            {"rebalance_timeout_ms": LONG_MS - self.rng.randrange(2)} if self._chance(0.3) else {}
        )

    def _metadata(self, member: Member) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._chance(0.3):
            found["rack_id"] = self.rng.choice(("r", "s"))
        if self._chance(0.3):
            host = self.rng.choice(("one", "two"))
            found["user_endpoint"] = of(BEAT, "Endpoint", host=f"{member.id}-{host}", port=9)
        if self._chance(0.3):
            tag = of(BEAT, "KeyValue", key="zone", value=self.rng.choice("xy"))
            found["client_tags"] = self.rng.choice(([], [tag]))
        return found

    def err(self) -> None:
        """Send a heartbeat with wrong values."""
        member = self._member()
        if member is None:
            return
        wrong: dict[str, Any] = self.rng.choice(
            (
                {"member_epoch": member.epoch + self.rng.choice((-2, -1, 1, 2))},
                {"member_id": self.rng.choice(NAMES)},
                {"instance_id": self.rng.choice((*INSTANCES, "l", "", None))},
                {"instance_id": member.instance or "l", "member_epoch": -2, "member_id": "nobody"},
                {"member_epoch": -3},
                {"member_epoch": -2, "instance_id": None},
                {"group_id": self._own("missing")},
                {"topology": self._topology()},
                {"active_tasks": []},
                {**_rows(({"0": {9}}, {}, {}))},
                {**_rows(({"7": {0}}, {}, {}))},
                {"rack_id": ""},
            )
        )
        values = {
            "group_id": self._own(member.group),
            "member_id": member.id,
            "member_epoch": member.epoch,
            "instance_id": member.instance,
            **wrong,
        }
        if values["member_epoch"] in (0, -1):
            return
        if values["member_epoch"] == -2 and values["member_id"] == member.id:
            values["instance_id"] = None
        same = (values["group_id"], values["member_id"], values["instance_id"])
        for other in self.members:
            if same == (self._own(other.group), other.id, other.instance) and other is not member:
                return
        self._ask(member, values)

    def leave(self) -> None:
        if self.members:
            member = self.rng.choice(self.members)
            names_instance = member.is_away or self._chance(0.7)
            instance = member.instance if names_instance else None
            values = {"member_epoch": -1, "instance_id": instance, **self._shutdown()}
            self._ask(member, self._ids(member) | values)
            self.members.remove(member)

    def _shutdown(self) -> dict[str, Any]:
        return {"shutdown_application": True} if self._chance(0.1) else {}

    def leave_temporarily(self) -> None:
        member = self._member()
        if member is not None and member.instance is not None:
            self._ask(member, self._ids(member) | {"member_epoch": -2})
            member.is_away, member.epoch = True, -2

    def come_back(self) -> None:
        """Join with the instance ID of a member, which has mostly left temporarily."""
        static = [each for each in self.members if each.instance is not None]
        away = [each for each in static if each.is_away]
        if not static or (not away and self._chance(0.7)):
            return
        before = self.rng.choice(away or static)
        known = {each.id for each in self.members if each.group == before.group}
        free = [name for name in NAMES if name not in known]
        name = self.rng.choice((before.id, self.rng.choice(free)))
        process = before.process if self._chance(0.7) else self.rng.choice(PROCESSES)
        member = Member(name, before.group, process, before.instance)
        if before.is_away:
            self._join(member)
        else:
            values = {
                "rebalance_timeout_ms": LONG_MS,
                "process_id": process,
                "topology": self._topology(),
                **_rows(({}, {}, {})),
            }
            self._ask(member, self._ids(member) | {"member_epoch": 0} | values)

    def report_offsets(self) -> None:
        member = self._member()
        if member is None:
            return
        rows = [
            of(BEAT, "TaskOffset", subtopology_id="0", partition=n, offset=self.rng.randrange(20))
            for n in range(4)
            if self._chance(0.5)
        ]
        names = self.rng.choice((("task_offsets",), ("task_end_offsets",)))
        self._beat(member, **dict.fromkeys(names, rows))

    def _ids(self, member: Member) -> dict[str, Any]:
        return {
            "group_id": self._own(member.group),
            "member_id": member.id,
            "member_epoch": member.epoch,
            "instance_id": member.instance,
        }

    def _beat(self, member: Member, **values: Any) -> None:
        """Send a valid heartbeat and learn from the response."""
        ids = self._ids(member)
        if member.epoch > 0 and self._chance(0.1):
            ids["instance_id"] = None
        joins = member.epoch == 0
        epoch = self.rng.choice((member.endpoint_epoch, member.endpoint_epoch, 0, -1))
        fields = {"endpoint_information_epoch": epoch, **self._shutdown_rarely(), **values}
        answer = self._ask(member, ids | fields)
        if answer.error_code:
            if member in self.members and answer.error_code != ErrorCode.INVALID_REQUEST:
                self.members.remove(member)
            return
        if joins:
            self.members.append(member)
        member.epoch = answer.member_epoch
        member.endpoint_epoch = answer.endpoint_information_epoch
        if answer.active_tasks is not None:
            roles = (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks)
            active, standby, warmup = (
                {row.subtopology_id: set(row.partitions) for row in rows} for rows in roles
            )
            member.assigned = active, standby, warmup
        if joins:
            member.owned = ({}, {}, {})

    def _shutdown_rarely(self) -> dict[str, Any]:
        return {"shutdown_application": True} if self._chance(0.01) else {}

    def _ask(self, member: Member, values: dict[str, Any]) -> Any:
        version = self._version(BEAT)
        return self.twins.ask(BEAT, version, request(BEAT, **values))

    def _topology(self) -> Any:
        source, log, more = map(self._own, TOPICS)
        config = of(BEAT, "KeyValue", key="cleanup.policy", value="compact")
        changelog = of(BEAT, "TopicInfo", name=log, topic_configs=[config])
        rows = [
            of(
                BEAT,
                "Subtopology",
                subtopology_id="0",
                source_topics=[source],
                state_changelog_topics=[changelog],
            ),
            of(BEAT, "Subtopology", subtopology_id="1", source_topics=[more]),
        ]
        return of(BEAT, "Topology", epoch=0, subtopologies=rows)

    # -- offsets

    def _committer(self) -> tuple[str, str, int]:
        """Return the group, member ID and epoch of a random or unknown member."""
        member = self.rng.choice(self.members) if self.members else None
        if member is None or self._chance(0.1):
            group = self._own(self.rng.choice(list(GROUPS)))
            return group, self.rng.choice(("", "nobody")), self.rng.choice((-1, 0, 7))
        return (
            self._own(member.group),
            member.id,
            member.epoch + self.rng.choice((0, 0, 0, -1, -2, 1)),
        )

    def commit(self) -> None:
        group, member_id, epoch = self._committer()
        name = self._own(self.rng.choice(("in", "more")))
        row = of(
            COMMIT,
            "Partition",
            partition_index=self.rng.randrange(4),
            committed_offset=self.rng.randrange(100),
        )
        topics = [of(COMMIT, "Topic", name=name, partitions=[row])]
        ids = {"group_id": group, "member_id": member_id, "generation_id_or_member_epoch": epoch}
        version = self.rng.choice((8, 9, 9, 9))
        self.twins.ask(COMMIT, version, request(COMMIT, topics=topics, **ids))

    def fetch(self) -> None:
        group, member_id, epoch = self._committer()
        row = of(FETCH, "Group", group_id=group, topics=None)
        if self._chance(0.7):
            row.member_id, row.member_epoch = member_id, epoch
        self.twins.ask(FETCH, 9, request(FETCH, groups=[row]), again=True)

    # -- admins

    def describe(self) -> None:
        version = self._version(DESCRIBE)
        names = [self._own(name) for name in (*GROUPS, "missing") if self._chance(0.5)]
        values = {"include_authorized_operations": self._chance(0.3)}
        if version:
            values["include_topology_description"] = self._chance(0.3)
        message = request(DESCRIBE, group_ids=names, **values)
        self.twins.ask(DESCRIBE, version, message, again=True)

    def list_groups(self) -> None:
        key = ApiKey.LIST_GROUPS
        states = self.rng.sample(STATES, self.rng.choice((0, 1, 2)))
        types = self.rng.choice(([], ["streams"], ["Streams"]))
        message = request(key, states_filter=states, types_filter=types)
        self.twins.ask(key, 5, message, again=True)

    def delete_group(self) -> None:
        key = ApiKey.DELETE_GROUPS
        name = self._own(self.rng.choice(list(GROUPS)))
        self.twins.ask(key, self._version(key), request(key, groups_names=[name]))


def _is_replaced(member: Member, by: Member) -> bool:
    """Return True if a member that joins takes the place of another one."""
    has_same_instance = member.instance is not None and member.instance == by.instance
    return member.group == by.group and (member.id == by.id or has_same_instance)


def _rows(roles: tuple[Tasks, Tasks, Tasks]) -> dict[str, Any]:
    """Return the fields of a heartbeat that report tasks."""
    names = ("active_tasks", "standby_tasks", "warmup_tasks")
    return {
        name: [
            of(BEAT, "TaskIds", subtopology_id=each, partitions=sorted(tasks[each]))
            for each in sorted(tasks)
        ]
        for name, tasks in zip(names, roles, strict=True)
    }
