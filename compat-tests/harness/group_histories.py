"""Random histories of groups: members of both protocols, offsets, operators and topics, from one seed.

Nothing hangs on time or on hashes, so two brokers can be asked in step: sessions and rebalances last
longer than a history, targets may follow each other at once, members share by `range` (`uniform`
serves members that are alone), and news of topics is waited for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import MemberSubscription, TopicPartitions, write_assignment
from kbroker.protocol.versioned import encode_versioned

from .admin_calls import of, request
from .twins import SETTLE_SECONDS, Differs, Twin, Twins

LONG_MS = 600_000
BEAT, JOIN, SYNC, OLD_BEAT, LEAVE = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
)
PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "group.coordinator.append.linger.ms": "0",
    "group.consumer.assignors": "range,uniform",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.size": "6",
    "group.max.size": "6",
}
"""Of both brokers; with few members a group is full now and then."""
FIXED = {"fixed-a": 3, "fixed-b": 2}
"""Topics that stay as they are: those that regular expressions fit."""
PIN = "fixed-b"
"""The topic of offsets that nobody deletes."""
CHANGING = ("moving-a", "moving-b", "moving-c")
PATTERNS = ("fixed-.*", "fixed-a", "fixed-[ab]", "nothing-.*")
BAD_PATTERNS = ("(", "[", "a{2,1}", "a**", "\\")
STATES = (
    "Stable",
    "Empty",
    "Reconciling",
    "Assigning",
    "PreparingRebalance",
    "CompletingRebalance",
    "Dead",
    "nonsense",
)
TYPES = ("consumer", "classic", "Consumer", "share", "nonsense")
GONE = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


@dataclass
class Newer:
    """A member of the protocol of KIP-848, as it knows itself."""

    id: str
    group: str
    instance: str | None = None
    epoch: int = 0
    told: dict[UUID, list[int]] = field(default_factory=dict)
    owned: dict[UUID, list[int]] = field(default_factory=dict)
    is_in: bool = False
    is_blurred: bool = False
    """Its last epoch came with topics that fit a pattern: on each broker after another one."""


@dataclass
class Older:
    """A member of the classic protocol, with the name of its connection."""

    line: str
    group: str
    topics: list[str]
    protocols: tuple[str, ...]
    instance: str | None = None
    id: str = ""
    generation: int = -1
    leads: list[str] | None = None
    """The members of its generation, if it leads."""
    protocol: str | None = None
    wants: str = "join"

    @property
    def is_expected(self) -> bool:
        """It was given an id, and has not come with it yet."""
        return bool(self.id) and self.generation < 0

    @property
    def must_stay(self) -> bool:
        """Kafka makes everybody join again when an id goes that never joined, and never answers the
        SyncGroup of a member that goes meanwhile."""
        return self.is_expected or self.wants == "sync"


class History:
    """One history; `run` makes so many calls on both brokers. Raises Differs."""

    def __init__(self, seed: int, twins: Twins) -> None:
        self.rng = random.Random(seed)
        self.twins = twins
        self.seed = seed
        self.groups = [f"s{seed}-{name}" for name in ("one", "two", "three", "solo")]
        self.newer: list[Newer] = []
        self.older: list[Older] = []
        self.topics: dict[str, tuple[UUID, int]] = {}
        self._pinned: set[str] = set()
        self._patterns: dict[str, str] = {}
        self._parted: set[str] = set()
        """Classic groups with another leader on each broker."""
        self._numbers = 0

    def run(self, calls: int) -> None:
        self.twins.scope = self._own("")
        self._canary = Canary(
            self.twins, f"s{self.seed}-canary", [*map(self._own, (*FIXED, *CHANGING))]
        )
        self._canary.find()
        for name, partitions in FIXED.items():
            self._make(self._own(name), partitions)
        self._make(self._own(CHANGING[0]), 4)
        moves: dict[Callable[[], None], int] = {
            self.newer_joins: 6,
            self.newer_beats: 40,
            self.newer_errs: 8,
            self.newer_changes: 6,
            self.newer_leaves: 4,
            self.older_joins: 5,
            self.older_goes_on: 40,
            self.older_errs: 5,
            self.older_leaves: 3,
            self.operator_removes: 2,
            self.commit: 12,
            self.fetch: 8,
            self.delete_offsets: 3,
            self.delete_group: 2,
            self.look: 14,
            self.list: 5,
            self.change_topics: 2,
        }
        until = self.twins.calls + calls
        while self.twins.calls < until:
            self.rng.choices(list(moves), list(moves.values()))[0]()
            self._empty_parted_groups()
        self.end()

    def end(self) -> None:
        """Everybody goes, so that the next history finds nobody waiting.

        Some are held back by both brokers until sessions end that are longer than a history: of who was
        given an id and never joined. They must be in the same state then.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.newer or self.older:
            for member in list(self.newer):
                self._leave(member, -1)
            for old in list(self.older):
                if old.line not in self.twins.parked:
                    self._old_leave(old)
            self.twins.hear()
            if time.monotonic() > deadline:
                self._ask(ApiKey.DESCRIBE_GROUPS, groups=self.groups)
                self.twins.hang_up()
                return

    # -- chances

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _chance(self, of_one: float) -> bool:
        return self.rng.random() < of_one

    def _version(self, key: ApiKey, least: int = 0) -> int:
        known = [each for each in self.twins.versions[key] if each >= least]
        return self.rng.choice([*known, known[-1], known[-1]])

    def _names(self, *, some: bool = False) -> list[str]:
        """Topics to read; `some` where a member joins: one that reads nothing gets Kafka's `range` to
        give nothing to the others either."""
        every = [*FIXED, *CHANGING, "never"]
        count = self.rng.choice((int(some), 1, 1, 1, 2, 2, 3))
        return list(map(self._own, self.rng.sample(every, count)))

    def _own(self, name: str) -> str:
        """A topic or a pattern of this history."""
        return f"s{self.seed}-{name}"

    def _topic_id(self, name: str) -> UUID:
        return self.topics[name][0] if name in self.topics else UUID(int=999_999)

    # -- members of the newer protocol

    def newer_joins(self) -> None:
        group = self.rng.choice(self.groups)
        if group.endswith("solo") and self._has_members(group):
            return
        number = self._number()
        member = Newer(f"new-{number:04}", group)
        if self._chance(0.4):
            member.instance = f"instance-{self.rng.randrange(3)}"
        self.newer.append(member)
        self._join(member)

    def _join(self, member: Newer) -> None:
        version = self._version(BEAT)
        values: dict[str, Any] = {
            "member_id": member.id,
            "instance_id": member.instance,
            "rebalance_timeout_ms": LONG_MS,
            "topic_partitions": [],
            "rack_id": self.rng.choice((None, None, "rack-1")),
        }
        values |= self._subscription(0 if member.instance is not None else version, member.group)
        if version == 0 and member.instance is not None and self._chance(0.5):
            values["member_id"] = ""
        if member.group.endswith("solo"):
            values["server_assignor"] = self.rng.choice(("uniform", None, "range"))
        self._beat(member, version, 0, values)

    def _subscription(self, version: int, group: str) -> dict[str, Any]:
        names = self._names(some=True)
        if version < 1 or self._chance(0.7):
            return {"subscribed_topic_names": names}
        # Kafka holds patterns of one group against the topics every ten seconds at most: so there is
        # one for each group. It does so later, and raises the epoch once more: so nothing else is
        # new with it.
        pattern = self._patterns.setdefault(group, self._own(self.rng.choice(PATTERNS)))
        return {
            "subscribed_topic_regex": self.rng.choice((pattern, pattern, pattern, *BAD_PATTERNS))
        }

    def _see_topics(self, group: str) -> bool:
        """Let a group have the news of its topics; whether it has them."""
        for member in self.newer:
            if member.group == group and member.is_in:
                values = {"member_id": member.id, "instance_id": member.instance}
                self._beat(member, self._version(BEAT), member.epoch, values)
                if member.is_in:
                    return True
        return not self._has_members(group)

    def newer_beats(self) -> None:
        if not self.newer:
            return
        member = self.rng.choice(self.newer)
        if not member.is_in:
            if member.instance is not None or self._chance(0.5):
                self.newer.remove(member)
            else:
                self._join(member)
            return
        values: dict[str, Any] = {"member_id": member.id, "instance_id": member.instance}
        if self._chance(0.6):
            member.owned = dict(member.told)
            values["topic_partitions"] = self._rows(member.owned)
        elif self._chance(0.3):
            values["topic_partitions"] = self._rows(member.owned)
        self._beat(member, self._version(BEAT), member.epoch, values)

    def newer_changes(self) -> None:
        member = self._living_newer()
        if member is None:
            return
        version = self._version(BEAT)
        values: dict[str, Any] = {"member_id": member.id, "instance_id": member.instance}
        what = self.rng.randrange(4)
        if what == 0:
            values |= self._subscription(version, member.group)
        elif what == 1:
            values["subscribed_topic_names"] = self._names()
            if version > 0 and self._chance(0.2):
                values = {**values, "subscribed_topic_names": None, "subscribed_topic_regex": ""}
        elif what == 2:
            values["rack_id"] = self.rng.choice(("rack-1", "rack-2"))
        elif member.group.endswith("solo"):
            values["server_assignor"] = self.rng.choice(("uniform", "range"))
        if self._chance(0.5):
            member.owned = dict(member.told)
            values["topic_partitions"] = self._rows(member.owned)
        self._beat(member, version, member.epoch, values)

    def newer_errs(self) -> None:
        """Heartbeats as they ought not to be."""
        member = self._living_newer() or Newer("nobody", self.rng.choice(self.groups))
        values: dict[str, Any] = {"member_id": member.id, "instance_id": member.instance}
        epoch = member.epoch
        what = self.rng.randrange(16)
        if what == 0:
            epoch += self.rng.choice((-1, 1, 5, -2))
        elif what == 1 and not member.is_blurred:
            epoch -= 1
            values["topic_partitions"] = self._rows(self.rng.choice((member.told, member.owned)))
        elif what == 2:
            epoch = self.rng.choice((-3, -100))
        elif what == 3:
            values["member_id"] = self.rng.choice(("nobody", ""))
        elif what == 4:
            values["instance_id"] = self.rng.choice(("instance-0", "instance-1", "", "other"))
        elif what == 5:
            values["rack_id"] = ""
        elif what == 6:
            values["server_assignor"] = self.rng.choice(("nonsense", ""))
        elif what == 7:
            values["topic_partitions"] = self._rows({UUID(int=999_999): [0], **member.told})
        elif what == 8:
            epoch, values["member_id"] = 0, "nobody"
        elif what == 9:
            epoch, values["member_id"] = 0, "nobody"
            values |= {"rebalance_timeout_ms": 1000, "topic_partitions": []}
        elif what == 10:
            epoch, values["member_id"] = 0, "nobody"
            values |= {
                "rebalance_timeout_ms": 1000,
                "subscribed_topic_names": [self._own("fixed-a")],
            }
            values["topic_partitions"] = self._rows({UUID(int=999_999): [0]})
        elif what == 11:
            epoch, values["subscribed_topic_names"] = 0, [self._own("fixed-a")]
            values |= {"member_id": f"twin-{self._number()}", "topic_partitions": []}
            values["rebalance_timeout_ms"] = LONG_MS
            if member.instance is None or not member.is_in:
                return
        elif what == 12:
            self._ask(
                BEAT, group_id=self.rng.choice(("", "unheard-of")), member_epoch=epoch, **values
            )
            return
        elif what == 13:
            values["rebalance_timeout_ms"] = self.rng.choice((0, 5000))
            values["subscribed_topic_names"] = None
        elif what == 14:
            epoch = self.rng.choice((-1, -2))
            values["member_id"] = self.rng.choice(("nobody", ""))
        else:
            values["subscribed_topic_regex"] = self.rng.choice(BAD_PATTERNS)
        self._beat(member, self._version(BEAT), epoch, values)

    def newer_leaves(self) -> None:
        member = self._living_newer()
        if member is None:
            return
        epoch = -2 if member.instance is not None and self._chance(0.6) else -1
        self._leave(member, epoch)
        if epoch == -2 and self._chance(0.8):
            back = Newer(member.id, member.group, member.instance)
            if self._chance(0.5):
                back.id = f"new-{self._number():04}"
            if self._chance(0.5):
                self.look()
            self.newer.append(back)
            self._join(back)

    def _leave(self, member: Newer, epoch: int) -> None:
        values = {"member_id": member.id, "instance_id": member.instance}
        self._ask(BEAT, group_id=member.group, member_epoch=epoch, **values)
        self.newer.remove(member)

    def _living_newer(self) -> Newer | None:
        living = [each for each in self.newer if each.is_in]
        return self.rng.choice(living) if living else None

    def _beat(self, member: Newer, version: int, epoch: int, values: dict[str, Any]) -> None:
        if version < 1:
            values.pop("subscribed_topic_regex", None)
        if epoch >= 0 and values.get("subscribed_topic_regex"):
            before = member.epoch
            if not self._see_topics(member.group) or (before and not member.is_in):
                return
            epoch += member.epoch - before
        message = request(BEAT, group_id=member.group, member_epoch=epoch, **values)
        if epoch >= 0 and values.get("subscribed_topic_regex"):
            answer = self.twins.ask_slow(
                BEAT, version, message, lambda each: self._all(member, values, each)
            )
        else:
            answer = self.twins.ask(BEAT, version, message)
        is_own = values["member_id"] in (member.id, "") and values["instance_id"] == member.instance
        if not is_own or answer is None or epoch < 0:
            return
        if answer.error_code:
            if answer.error_code in GONE or not member.is_in:
                member.is_in, member.epoch, member.told, member.owned = False, 0, {}, {}
            return
        if answer.member_epoch != member.epoch:
            member.is_blurred = bool(values.get("subscribed_topic_regex"))
        member.is_in, member.id, member.epoch = True, answer.member_id, answer.member_epoch
        if epoch == 0:
            member.owned = {}
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            member.told = {row.topic_id: row.partitions for row in rows}

    def _all(self, member: Newer, values: dict[str, Any], answer: Any) -> Any:
        """A heartbeat that says everything and owns nothing, after an answer to the same member."""
        said = {"subscribed_topic_regex": values["subscribed_topic_regex"], "topic_partitions": []}
        return request(
            BEAT,
            group_id=member.group,
            member_id=answer.member_id,
            instance_id=member.instance,
            member_epoch=answer.member_epoch,
            rebalance_timeout_ms=LONG_MS,
            **said,
        )

    def _rows(self, partitions: dict[UUID, list[int]]) -> list[Any]:
        return [
            of(BEAT, "Topic", topic_id=key, partitions=list(value))
            for key, value in partitions.items()
        ]

    # -- members of the classic protocol

    def older_joins(self) -> None:
        group = self.rng.choice(self.groups[:3])
        kind = self.rng.choice(
            (
                ("range",),
                ("range", "cooperative-sticky"),
                ("cooperative-sticky",),
                ("range",),
                ("odd",),
            )
        )
        number = self._number()
        member = Older(f"old-{number:04}", group, self._names(some=True), kind)
        if self._chance(0.35):
            member.instance = f"instance-{self.rng.randrange(3)}"
        self.older.append(member)
        self._pin(group)
        self._old_join(member)

    def _pin(self, group: str) -> None:
        """Let a group have an offset: one that nothing is kept of kbroker forgets at once, and Kafka
        minutes later."""
        if group in self._pinned:
            return
        key, name = ApiKey.OFFSET_COMMIT, self._own(PIN)
        row = of(key, "Partition", partition_index=0, committed_offset=7)
        topic = of(key, "Topic", name=name, topic_id=self._topic_id(name), partitions=[row])
        answer = self.twins.ask(
            key, self._version(key, 1), request(key, group_id=group, topics=[topic])
        )
        if not answer.topics[0].partitions[0].error_code:
            self._pinned.add(group)

    def _newer_group(self, group: str) -> Any:
        """What both brokers say of it as a consumer group; an error if it is none."""
        key = ApiKey.CONSUMER_GROUP_DESCRIBE
        return self.twins.ask(key, 1, request(key, group_ids=[group]), again=True).groups[0]

    def _has_members(self, group: str) -> bool:
        return bool(self._newer_group(group).members)

    def _is_empty_newer(self, group: str) -> bool:
        found = self._newer_group(group)
        return not (found.error_code or found.members)

    def _old_join(self, member: Older) -> None:
        if member.id and self._is_empty_newer(member.group):
            member.id, member.generation = (
                "",
                -1,
            )  # it would let Kafka forget the group, without a record
        if not member.id and member.instance is None and self._has_members(member.group):
            # The id that it would be given has another place in the order of members.
            member.instance = f"instance-{self.rng.randrange(3)}"
        version = self._version(JOIN, 5 if member.instance is not None else 0)
        said = [
            of(JOIN, "Protocol", name=name, metadata=self._said(member))
            for name in member.protocols
        ]
        message = request(
            JOIN,
            group_id=member.group,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            member_id=member.id,
            group_instance_id=member.instance,
            protocol_type="consumer",
            protocols=said,
        )

        def joined(answer: Any) -> None:
            member.leads = None
            if self.twins.has_other_leader:
                self._parted.add(member.group)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                member.id = answer.member_id
            elif answer.error_code:
                self._old_gone(member, answer.error_code)
            else:
                member.id, member.generation = answer.member_id, answer.generation_id
                member.protocol, member.wants = answer.protocol_name, "sync"
                if answer.leader == answer.member_id:
                    member.leads = [row.member_id for row in answer.members]

        # The id that it is given begins with its client id: so ids have the same order everywhere.
        # A static member's begins with its instance id; Kafka keeps the client id of who was replaced.
        client = member.instance or f"{member.line}.{self._number():05}"
        self._put(member, client, JOIN, version, message, joined)

    def _said(self, member: Older) -> bytes:
        owned = (
            [TopicPartitions(topic=self._own("fixed-a"), partitions=[0])]
            if self._chance(0.2)
            else []
        )
        said = MemberSubscription(
            topics=member.topics,
            user_data=None,
            owned_partitions=owned,
            generation_id=member.generation,
            rack_id=self.rng.choice((None, "rack-1")),
        )
        return encode_versioned(said, self.rng.choice((0, 1, 2, 3)))

    def older_goes_on(self) -> None:
        free = [each for each in self.older if each.line not in self.twins.parked]
        if not free:
            return
        member = self.rng.choice(free)
        if member.wants == "join":
            self._old_join(member)
        elif member.wants == "sync":
            self._old_sync(member)
        else:
            self._old_beat(member)

    def _old_sync(self, member: Older) -> None:
        parts = []
        for position, each in enumerate(member.leads or ()):
            value = write_assignment(
                [(self._own("fixed-a"), position % 3)] if self._chance(0.9) else []
            )
            parts.append(of(SYNC, "Assignment", member_id=each, assignment=value))
        message = request(
            SYNC,
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.id,
            group_instance_id=member.instance,
            protocol_type="consumer",
            protocol_name=member.protocol,
            assignments=parts,
        )

        def synced(answer: Any) -> None:
            if answer.error_code:
                self._old_gone(member, answer.error_code)
            else:
                member.wants = "beat"

        version = self._version(SYNC, 3 if member.instance is not None else 0)
        self._put(member, member.instance or member.line, SYNC, version, message, synced)

    def _old_beat(self, member: Older) -> None:
        message = request(
            OLD_BEAT,
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.id,
            group_instance_id=member.instance,
        )
        least = 3 if member.instance is not None else 0
        answer = self.twins.ask(OLD_BEAT, self._version(OLD_BEAT, least), message)
        if answer.error_code:
            self._old_gone(member, answer.error_code)
        elif self._chance(0.1):
            member.wants = "join"
            if self._chance(0.5):
                member.topics = self._names()

    def _old_gone(self, member: Older, code: int) -> None:
        member.wants, member.leads = "join", None
        if code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            return
        if code == ErrorCode.UNKNOWN_MEMBER_ID and self._chance(0.5):
            member.id, member.generation = "", -1
        elif member in self.older:
            self.older.remove(member)

    def older_errs(self) -> None:
        free = [each for each in self.older if each.line not in self.twins.parked]
        member = (
            self.rng.choice(free)
            if free
            else Older("x", self.rng.choice(self.groups), [], ("range",))
        )
        generation = member.generation + self.rng.choice((-1, 1, 0, 0))
        name = self.rng.choice(("nobody", member.id, member.id, ""))
        instance = self.rng.choice((member.instance, member.instance, "instance-1", "other"))
        least = 3 if instance is not None else 0
        common = {
            "group_id": member.group, "member_id": name, "generation_id": generation,
            "group_instance_id": instance,
        }  # fmt: skip
        is_right = (generation, name, instance) == (member.generation, member.id, member.instance)
        if self._chance(0.5):
            self.twins.ask(OLD_BEAT, self._version(OLD_BEAT, least), request(OLD_BEAT, **common))
        elif not is_right and instance == member.instance and name == "nobody":
            message = request(SYNC, protocol_type="consumer", protocol_name="range", **common)
            self.twins.ask(SYNC, self._version(SYNC, least), message)
        else:
            row = of(JOIN, "Protocol", name="range", metadata=b"") if self._chance(0.5) else None
            # An empty consumer group Kafka forgets by it, without a record.
            has_members = any(each.group == member.group and each.is_in for each in self.newer)
            message = request(
                JOIN,
                group_id=member.group if has_members else "unheard-of",
                session_timeout_ms=self.rng.choice((1, LONG_MS, LONG_MS + 1)),
                rebalance_timeout_ms=LONG_MS,
                member_id="nobody",
                protocol_type=self.rng.choice(("consumer", "connect", "")),
                protocols=[row] if row else [],
            )
            self.twins.ask(JOIN, self._version(JOIN), message)

    def older_leaves(self) -> None:
        free = [each for each in self.older if each.line not in self.twins.parked]
        if free:
            self._old_leave(self.rng.choice(free))

    def _old_leave(self, member: Older) -> None:
        if member.is_expected:
            # In Kafka an id that was given, and has not joined yet, makes all join again when it goes.
            self._old_join(member)
            return
        row = of(LEAVE, "Member", member_id=member.id, group_instance_id=member.instance)
        version = self._version(LEAVE, 3 if member.instance is not None else 0)
        message = request(LEAVE, group_id=member.group, member_id=member.id, members=[row])
        self.twins.ask(LEAVE, version, message)
        self.older.remove(member)
        self._let_it_empty(member.group)

    def _let_it_empty(self, group: str) -> None:
        """Wait while a group without members ends its rebalance, which takes both brokers a timer of 0 ms.

        Who joins before it has come is in the generation that it would end, and else in the next one. When
        a rebalance was on already, and an id is missing in it, it goes on for longer than a history.
        """
        key = ApiKey.DESCRIBE_GROUPS
        for _ in range(20):
            message = request(key, groups=[group])
            row = self.twins.ask(key, self._version(key), message, again=True).groups[0]
            if row.members or row.group_state != "PreparingRebalance":
                break
            time.sleep(0.01)

    def _empty_parted_groups(self) -> None:
        """Where each broker has another leader, they would wait for different members."""
        for member in [each for each in self.older if each.group in self._parted]:
            if member.is_expected or member.line in self.twins.parked:
                continue
            if member.id:
                row = of(LEAVE, "Member", member_id=member.id, group_instance_id=member.instance)
                self._ask(LEAVE, 3, group_id=member.group, members=[row])
                self._let_it_empty(member.group)
            self.older.remove(member)
        waiting = {each.group for each in self.older if each.line in self.twins.parked}
        self._parted &= waiting

    def operator_removes(self) -> None:
        """As `kafka-consumer-groups` and Java's admin client do: by member id, or by instance id."""
        group = self.rng.choice(self.groups)
        rows = []
        for _ in range(self.rng.choice((1, 2))):
            new = [each for each in self.newer if each.group == group and each.is_in]
            old = [each for each in self.older if each.group == group and not each.must_stay]
            some = self.rng.choice([*new, *old, Newer("nobody", group)])
            member_id = some.id if self._chance(0.6) or some.instance is None else ""
            rows.append(of(LEAVE, "Member", member_id=member_id, group_instance_id=some.instance))
        self._ask(LEAVE, 3, group_id=group, members=rows)
        self._let_it_empty(group)

    def _put(
        self,
        member: Older,
        client: str,
        key: ApiKey,
        version: int,
        message: Any,
        learn: Callable[[Any], None],
    ) -> None:
        def stands() -> None:
            asked = request(ApiKey.DESCRIBE_GROUPS, groups=[member.group])
            self.twins.ask(
                ApiKey.DESCRIBE_GROUPS,
                self.twins.versions[ApiKey.DESCRIBE_GROUPS][-1],
                asked,
                again=True,
            )

        self.twins.put(member.line, client, key, version, message, learn, stands)

    # -- offsets

    def commit(self) -> None:
        key = ApiKey.OFFSET_COMMIT
        version = self._version(key)
        group, member_id, epoch, instance = self._somebody()
        self._pin(group)
        topics = []
        for name in self.rng.sample([*self.topics, "never"], self.rng.choice((1, 2))):
            rows = [
                of(
                    key,
                    "Partition",
                    partition_index=self.rng.choice((0, 0, 1, 2, 99)),
                    committed_offset=self.rng.randrange(1000),
                    committed_leader_epoch=self.rng.choice((-1, 0, 5)),
                    committed_metadata=self.rng.choice((None, "", "x", "m" * 5000)),
                )
            ]
            topics.append(
                of(key, "Topic", name=name, topic_id=self._topic_id(name), partitions=rows)
            )
        values = {"group_id": group, "member_id": member_id, "generation_id_or_member_epoch": epoch}
        if version >= 7:
            values["group_instance_id"] = instance
        self.twins.ask(key, version, request(key, topics=topics, **values))

    def _somebody(self) -> tuple[str, str, int, str | None]:
        """Group, member, epoch, instance id: of a member, of one that lags, or of nobody."""
        new = self._living_newer()
        if new is not None and self._chance(0.5):
            epoch = new.epoch + self.rng.choice((0, 0, 0, -1, -2, 1))
            return new.group, new.id, epoch, self.rng.choice((new.instance, None))
        if self.older and self._chance(0.5):
            old = self.rng.choice(self.older)
            return old.group, old.id, old.generation + self.rng.choice((0, 0, -1, 1)), old.instance
        group = self.rng.choice([*self.groups, f"s{self.seed}-simple"])
        return group, self.rng.choice(("", "nobody")), self.rng.choice((-1, -1, 0, 7)), None

    def fetch(self) -> None:
        key = ApiKey.OFFSET_FETCH
        version = self._version(key)
        group, member_id, epoch, _ = self._somebody()
        topics = [
            of(key, "Topic", name=name, topic_id=self._topic_id(name), partition_indexes=[0, 1, 99])
            for name in [*self.topics, "never"]
        ]
        some = topics if version < 2 or self._chance(0.5) else None
        if version < 8:
            message = request(key, group_id=group, topics=some)
        else:
            row = of(key, "Group", group_id=group, topics=some)
            if version >= 9 and self._chance(0.6):
                row.member_id, row.member_epoch = member_id, epoch
            message = request(key, groups=[row])
        self.twins.ask(key, version, message, again=True)

    def delete_offsets(self) -> None:
        key = ApiKey.OFFSET_DELETE
        rows = [of(key, "Partition", partition_index=each) for each in (0, 1, 99)]
        names = [name for name in self._names() if name != self._own(PIN)]
        topics = [of(key, "Topic", name=name, partitions=rows) for name in names]
        self._ask(key, group_id=self.rng.choice([*self.groups, "unheard-of"]), topics=topics)

    # -- operators

    def delete_group(self) -> None:
        names = self.rng.sample([*self.groups, f"s{self.seed}-simple", "unheard-of"], 2)
        self._ask(ApiKey.DELETE_GROUPS, groups_names=names)
        self._pinned -= set(names)

    def look(self) -> None:
        names = self.rng.sample([*self.groups, "unheard-of"], self.rng.choice((1, 5)))
        wants = self._chance(0.3)
        if self._chance(0.6):
            key = ApiKey.CONSUMER_GROUP_DESCRIBE
            message = request(key, group_ids=names, include_authorized_operations=wants)
        else:
            key = ApiKey.DESCRIBE_GROUPS
            message = request(key, groups=names, include_authorized_operations=wants)
        self.twins.ask(key, self._version(key), message, again=True)

    def list(self) -> None:
        key = ApiKey.LIST_GROUPS
        states = self.rng.sample(STATES, self.rng.choice((0, 0, 1, 2)))
        types = self.rng.sample(TYPES, self.rng.choice((0, 0, 1, 2)))
        message = request(key, states_filter=states, types_filter=types)
        self.twins.ask(key, self._version(key), message, again=True)

    def _ask(self, key: ApiKey, least: int = 0, /, **values: Any) -> None:
        self.twins.ask(key, self._version(key, least), request(key, **values))

    # -- topics

    def change_topics(self) -> None:
        name = self._own(self.rng.choice(CHANGING))
        if name not in self.topics:
            self._make(name, self.rng.randint(1, 5))
        elif self._chance(0.4):
            self._canary.delete(name)
            del self.topics[name]
        else:
            topic_id, partitions = self.topics[name]
            self.topics[name] = (topic_id, partitions + 1)
            self._canary.grow(name, partitions + 1)

    def _make(self, name: str, partitions: int) -> None:
        self.topics[name] = (self._canary.make(name, partitions), partitions)


class Canary:
    """A member that reads all topics: what it is given shows that a coordinator has the news.

    All groups are in one shard, so they have it then, too.
    """

    def __init__(self, twins: Twins, group: str, topics: list[str]) -> None:
        self._twins = twins
        self._group = group
        self._topics = topics
        self._partitions: dict[str, int] = {}
        self._epochs: dict[str, int] = {}

    def find(self) -> None:
        """The first question for a coordinator makes the topic in which groups are kept."""
        key = ApiKey.FIND_COORDINATOR
        message = request(key, key_type=0, coordinator_keys=[self._group])
        for twin in self._sides():
            deadline = time.monotonic() + SETTLE_SECONDS * 3
            while twin.ask(key, 4, message).coordinators[0].error_code:
                if time.monotonic() > deadline:
                    raise Differs(f"{twin.address} has no coordinator of groups")
                time.sleep(0.05)

    def make(self, name: str, partitions: int) -> UUID:
        """Make a topic, or find it as it is; returns the name of its id in the history."""
        for twin in self._sides():
            row = of(
                ApiKey.CREATE_TOPICS,
                "Topic",
                name=name,
                num_partitions=partitions,
                replication_factor=1,
            )
            twin.ask(
                ApiKey.CREATE_TOPICS,
                7,
                request(ApiKey.CREATE_TOPICS, topics=[row], timeout_ms=30_000),
            )
        self._partitions[name] = partitions
        self._twins.note(f"{name} has {partitions} partitions")
        self._wait()
        return self._learn(name)

    def grow(self, name: str, partitions: int) -> None:
        for twin in self._sides():
            row = of(ApiKey.CREATE_PARTITIONS, "Topic", name=name, count=partitions)
            message = request(ApiKey.CREATE_PARTITIONS, topics=[row], timeout_ms=30_000)
            twin.ask(ApiKey.CREATE_PARTITIONS, 3, message)
        self._partitions[name] = partitions
        self._twins.note(f"{name} has {partitions} partitions")
        self._wait()

    def delete(self, name: str) -> None:
        for twin in self._sides():
            row = of(ApiKey.DELETE_TOPICS, "Topic", name=name)
            message = request(ApiKey.DELETE_TOPICS, topics=[row], timeout_ms=30_000)
            twin.ask(ApiKey.DELETE_TOPICS, 6, message)
        del self._partitions[name]
        self._twins.note(f"{name} is deleted")
        self._wait()

    def _sides(self) -> tuple[Twin, Twin]:
        return self._twins.ours, self._twins.theirs

    def _wait(self) -> None:
        wanted = sorted(self._partitions.values())
        for twin in self._sides():
            deadline = time.monotonic() + SETTLE_SECONDS * 3
            while self._counts(twin) != wanted:
                if time.monotonic() > deadline:
                    raise Differs(
                        f"{twin.address} does not see its topics: {self._counts(twin)}, not {wanted}"
                    )
                time.sleep(0.01)

    def _counts(self, twin: Twin) -> list[int]:
        message = request(
            BEAT,
            group_id=self._group,
            member_id="canary",
            member_epoch=self._epochs.get(twin.address, 0),
            rebalance_timeout_ms=LONG_MS,
            subscribed_topic_names=self._topics,
            topic_partitions=[],
        )
        answer = twin.ask(BEAT, 1, message)
        if answer.error_code:
            self._epochs[twin.address] = 0
            return []
        self._epochs[twin.address] = answer.member_epoch
        return sorted(len(row.partitions) for row in answer.assignment.topic_partitions)

    def _learn(self, name: str) -> UUID:
        common = UUID(int=1000 + self._twins.calls * 10 + len(self._twins.ours.ids))
        for twin in self._sides():
            row = of(ApiKey.METADATA, "Topic", name=name)
            answer = twin.ask(ApiKey.METADATA, 12, request(ApiKey.METADATA, topics=[row]))
            twin.ids[common] = answer.topics[0].topic_id
        return common
