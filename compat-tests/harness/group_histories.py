"""Random histories of groups from a seed: members of both protocols, offsets, admins and topics.

No result depends on time or on hash order, so that two brokers can be compared call by call.
Sessions and rebalances outlast a history, assignments are computed without delay, members use
`range` (`uniform` in groups with one member), and topic changes are awaited.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import MemberSubscription, TopicPartitions, write_assignment
from kbroker.protocol.versioned import encode_versioned

from .admin_calls import of, request
from .brokers import Broker
from .twins import SETTLE_SECONDS, Differs, Twin, Twins

LONG_MS = 600_000
# Common ID of the transactional producer.
PRODUCER_ID = 1
# First version of TxnOffsetCommit that adds the group to the transaction (KIP-890).
FIRST_IMPLICIT_COMMIT = 5
# Last version of OffsetFetch for one group; it has `require_stable`.
REQUIRE_STABLE = 7
BEAT, JOIN, SYNC, CLASSIC_BEAT, LEAVE = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
)
# Settings of both brokers. The low size limits make some groups full.
PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.coordinator.append.linger.ms": "0",
    "group.consumer.assignors": "range,uniform",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.size": "6",
    "group.max.size": "6",
}
# Topics that never change. Patterns match only these.
FIXED = {"fixed-a": 3, "fixed-b": 2}
# Topic whose committed offsets are never deleted.
PIN = "fixed-b"
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
class ConsumerMember:
    """State of a member of the consumer protocol (KIP-848), as the client sees it.

    Attributes:
        epoch_may_differ: True if its epoch may differ by one between the brokers, because it was
            returned with the topics that match a pattern.
    """

    id: str
    group: str
    instance: str | None = None
    epoch: int = 0
    assigned: dict[UUID, list[int]] = field(default_factory=dict)
    owned: dict[UUID, list[int]] = field(default_factory=dict)
    is_in: bool = False
    epoch_may_differ: bool = False


@dataclass
class ClassicMember:
    """A member of the classic protocol.

    Attributes:
        connection: Name of its connection.
        leads: Members of its generation, if it is the leader.
        wants: Its next request: "join", "sync" or "beat".
    """

    connection: str
    group: str
    topics: list[str]
    protocols: tuple[str, ...]
    instance: str | None = None
    id: str = ""
    generation: int = -1
    leads: list[str] | None = None
    protocol: str | None = None
    wants: str = "join"

    @property
    def is_expected(self) -> bool:
        """True if it got a member ID, but has not joined with it yet."""
        return bool(self.id) and self.generation < 0

    @property
    def cannot_be_removed(self) -> bool:
        """True if the member must not be removed now.

        If a member ID that never joined is removed, Kafka starts another rebalance. If a member is
        removed during its SyncGroup, Kafka never responds to that.
        """
        return self.is_expected or self.wants == "sync"


class History:
    """One history. `run` makes a number of calls to both brokers, and raises Differs."""

    def __init__(self, seed: int, twins: Twins, restarted: Sequence[Broker] = ()) -> None:
        self.rng = random.Random(seed)
        self.twins = twins
        self.seed = seed
        self._restarted = restarted
        self.groups = [f"s{seed}-{name}" for name in ("one", "two", "three", "solo")]
        self.consumer_members: list[ConsumerMember] = []
        self.classic_members: list[ClassicMember] = []
        self.topics: dict[str, tuple[UUID, int]] = {}
        self._pinned: set[str] = set()
        self._patterns: dict[str, str] = {}
        # Classic groups whose leaders differ between the brokers.
        self._diverged: set[str] = set()
        self._numbers = 0
        self._producer_epoch = -1

    def run(self, calls: int) -> None:
        self.twins.group_prefix = self._own("")
        self._canary = Canary(
            self.twins, f"s{self.seed}-canary", [*map(self._own, (*FIXED, *CHANGING))]
        )
        self._canary.find()
        for name, partitions in FIXED.items():
            self._make(self._own(name), partitions)
        self._make(self._own(CHANGING[0]), 4)
        self._initialise_producer()
        moves: dict[Callable[[], None], int] = {
            self.consumer_member_joins: 6,
            self.consumer_member_beats: 40,
            self.consumer_member_errs: 8,
            self.consumer_member_changes: 6,
            self.consumer_member_leaves: 4,
            self.classic_member_joins: 5,
            self.classic_member_continues: 40,
            self.classic_member_errs: 5,
            self.classic_member_leaves: 3,
            self.admin_removes_members: 2,
            self.commit: 12,
            self.fetch: 8,
            self.commit_in_transaction: 8,
            self.end_transaction: 4,
            self.delete_offsets: 3,
            self.delete_group: 2,
            self.describe_groups: 14,
            self.list: 5,
            self.change_topics: 2,
        }
        if self._restarted:
            moves[self.restart] = 1
        until = self.twins.calls + calls
        while self.twins.calls < until:
            self.rng.choices(list(moves), list(moves.values()))[0]()
            self._empty_diverged_groups()
        self.end()

    def end(self) -> None:
        """Remove all members, so that none is pending in the next history.

        Both brokers hold back some responses beyond the end of a history, if a member ID was
        returned and never joined. In that case the groups must be in the same state on both
        brokers.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.consumer_members or self.classic_members:
            for member in list(self.consumer_members):
                self._leave(member, -1)
            for old in list(self.classic_members):
                if old.connection not in self.twins.pending:
                    self._classic_leave(old)
            self.twins.receive_pending()
            if time.monotonic() > deadline:
                self._ask(ApiKey.DESCRIBE_GROUPS, groups=self.groups)
                self.twins.drop_pending()
                return

    def restart(self) -> None:
        """Kill both brokers. Members whose requests were held back send them again."""
        self.twins.restart(self._restarted)

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
        """Return random topics to subscribe to.

        `some` is True for a member that joins: if a member subscribes to nothing, Kafka's `range`
        assigns nothing to the other members either.
        """
        every = [*FIXED, *CHANGING, "never"]
        count = self.rng.choice((int(some), 1, 1, 1, 2, 2, 3))
        return list(map(self._own, self.rng.sample(every, count)))

    def _own(self, name: str) -> str:
        """Return the name of a topic, group or pattern of this history."""
        return f"s{self.seed}-{name}"

    def _topic_id(self, name: str) -> UUID:
        return self.topics[name][0] if name in self.topics else UUID(int=999_999)

    # -- members of the consumer protocol

    def consumer_member_joins(self) -> None:
        group = self.rng.choice(self.groups)
        if group.endswith("solo") and self._has_members(group):
            return
        number = self._number()
        member = ConsumerMember(f"new-{number:04}", group)
        if self._chance(0.4):
            member.instance = f"instance-{self.rng.randrange(3)}"
        self.consumer_members.append(member)
        self._join(member)

    def _join(self, member: ConsumerMember) -> None:
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
        if member.group.endswith("solo") and "subscribed_topic_regex" not in values:
            values["server_assignor"] = self.rng.choice(("uniform", None, "range"))
        self._beat(member, version, 0, values)

    def _subscription(self, version: int, group: str) -> dict[str, Any]:
        names = self._names(some=True)
        if version < 1 or self._chance(0.7):
            return {"subscribed_topic_names": names}
        # Kafka resolves the patterns of a group at most every ten seconds, so each group uses only
        # one. It resolves them asynchronously and then increments the epoch again, so this request
        # changes nothing else.
        pattern = self._patterns.setdefault(group, self._own(self.rng.choice(PATTERNS)))
        return {
            "subscribed_topic_regex": self.rng.choice((pattern, pattern, pattern, *BAD_PATTERNS))
        }

    def _refresh_topics(self, group: str) -> bool:
        """Make the group coordinator process topic changes and return True if that succeeded."""
        for member in self.consumer_members:
            if member.group == group and member.is_in:
                values = {"member_id": member.id, "instance_id": member.instance}
                self._beat(member, self._version(BEAT), member.epoch, values)
                if member.is_in:
                    return True
        return not self._has_members(group)

    def consumer_member_beats(self) -> None:
        if not self.consumer_members:
            return
        member = self.rng.choice(self.consumer_members)
        if not member.is_in:
            if member.instance is not None or self._chance(0.5):
                self.consumer_members.remove(member)
            else:
                self._join(member)
            return
        values: dict[str, Any] = {"member_id": member.id, "instance_id": member.instance}
        if self._chance(0.6):
            member.owned = dict(member.assigned)
            values["topic_partitions"] = self._rows(member.owned)
        elif self._chance(0.3):
            values["topic_partitions"] = self._rows(member.owned)
        self._beat(member, self._version(BEAT), member.epoch, values)

    def consumer_member_changes(self) -> None:
        member = self._joined_consumer_member()
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
            member.owned = dict(member.assigned)
            values["topic_partitions"] = self._rows(member.owned)
        self._beat(member, version, member.epoch, values)

    def consumer_member_errs(self) -> None:
        """Send an invalid heartbeat."""
        member = self._joined_consumer_member() or ConsumerMember(
            "nobody", self.rng.choice(self.groups)
        )
        values: dict[str, Any] = {"member_id": member.id, "instance_id": member.instance}
        epoch = member.epoch
        what = self.rng.randrange(16)
        if what == 0:
            epoch += self.rng.choice((-1, 1, 5, -2))
        elif what == 1 and not member.epoch_may_differ:
            epoch -= 1
            values["topic_partitions"] = self._rows(
                self.rng.choice((member.assigned, member.owned))
            )
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
            values["topic_partitions"] = self._rows({UUID(int=999_999): [0], **member.assigned})
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

    def consumer_member_leaves(self) -> None:
        member = self._joined_consumer_member()
        if member is None:
            return
        epoch = -2 if member.instance is not None and self._chance(0.6) else -1
        self._leave(member, epoch)
        if epoch == -2 and self._chance(0.8):
            back = ConsumerMember(member.id, member.group, member.instance)
            if self._chance(0.5):
                back.id = f"new-{self._number():04}"
            if self._chance(0.5):
                self.describe_groups()
            self.consumer_members.append(back)
            self._join(back)

    def _leave(self, member: ConsumerMember, epoch: int) -> None:
        values = {"member_id": member.id, "instance_id": member.instance}
        self._ask(BEAT, group_id=member.group, member_epoch=epoch, **values)
        self.consumer_members.remove(member)

    def _joined_consumer_member(self) -> ConsumerMember | None:
        living = [each for each in self.consumer_members if each.is_in]
        return self.rng.choice(living) if living else None

    def _beat(
        self, member: ConsumerMember, version: int, epoch: int, values: dict[str, Any]
    ) -> None:
        if version < 1:
            values.pop("subscribed_topic_regex", None)
        if epoch >= 0 and values.get("subscribed_topic_regex"):
            before = member.epoch
            if not self._refresh_topics(member.group) or (before and not member.is_in):
                return
            epoch += member.epoch - before
        message = request(BEAT, group_id=member.group, member_epoch=epoch, **values)
        if epoch >= 0 and values.get("subscribed_topic_regex"):
            answer = self.twins.ask_slow(
                BEAT, version, message, lambda each: self._full_heartbeat(member, values, each)
            )
        else:
            answer = self.twins.ask(BEAT, version, message)
        is_own = values["member_id"] in (member.id, "") and values["instance_id"] == member.instance
        if not is_own or answer is None or epoch < 0:
            return
        if answer.error_code:
            if answer.error_code in GONE or not member.is_in:
                member.is_in, member.epoch, member.assigned, member.owned = False, 0, {}, {}
            return
        if answer.member_epoch != member.epoch:
            member.epoch_may_differ = bool(values.get("subscribed_topic_regex"))
        member.is_in, member.id, member.epoch = True, answer.member_id, answer.member_epoch
        if epoch == 0:
            member.owned = {}
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            member.assigned = {row.topic_id: row.partitions for row in rows}

    def _full_heartbeat(self, member: ConsumerMember, values: dict[str, Any], answer: Any) -> Any:
        """Build a full heartbeat without owned partitions, after a response to the same member."""
        fields = {
            "subscribed_topic_regex": values["subscribed_topic_regex"],
            "topic_partitions": [],
        }
        return request(
            BEAT,
            group_id=member.group,
            member_id=answer.member_id,
            instance_id=member.instance,
            member_epoch=answer.member_epoch,
            rebalance_timeout_ms=LONG_MS,
            **fields,
        )

    def _rows(self, partitions: dict[UUID, list[int]]) -> list[Any]:
        return [
            of(BEAT, "Topic", topic_id=key, partitions=list(value))
            for key, value in partitions.items()
        ]

    # -- members of the classic protocol

    def classic_member_joins(self) -> None:
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
        member = ClassicMember(f"old-{number:04}", group, self._names(some=True), kind)
        if self._chance(0.35):
            member.instance = f"instance-{self.rng.randrange(3)}"
        self.classic_members.append(member)
        self._pin(group)
        self._classic_join(member)

    def _pin(self, group: str) -> None:
        """Commit an offset so that the group is kept.

        kbroker deletes a group without any state at once, and Kafka some minutes later.
        """
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

    def _describe_consumer_group(self, group: str) -> Any:
        """Return the description as a consumer group, or an error for another type."""
        key = ApiKey.CONSUMER_GROUP_DESCRIBE
        return self.twins.ask(key, 1, request(key, group_ids=[group]), again=True).groups[0]

    def _has_members(self, group: str) -> bool:
        return bool(self._describe_consumer_group(group).members)

    def _is_empty_consumer_group(self, group: str) -> bool:
        found = self._describe_consumer_group(group)
        return not (found.error_code or found.members)

    def _classic_join(self, member: ClassicMember) -> None:
        if member.id and self._is_empty_consumer_group(member.group):
            # With its ID, Kafka would delete the group without writing a record.
            member.id, member.generation = "", -1
        if not member.id and member.instance is None and self._has_members(member.group):
            # A generated ID would sort differently among the members on each broker.
            member.instance = f"instance-{self.rng.randrange(3)}"
        version = self._version(JOIN, 5 if member.instance is not None else 0)
        protocols = [
            of(JOIN, "Protocol", name=name, metadata=self._subscription_of(member))
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
            protocols=protocols,
        )

        def joined(answer: Any) -> None:
            member.leads = None
            if self.twins.has_other_leader:
                self._diverged.add(member.group)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                member.id = answer.member_id
            elif answer.error_code:
                self._handle_classic_error(member, answer.error_code)
            else:
                member.id, member.generation = answer.member_id, answer.generation_id
                member.protocol, member.wants = answer.protocol_name, "sync"
                if answer.leader == answer.member_id:
                    member.leads = [row.member_id for row in answer.members]

        # Generated IDs begin with the client ID, so they sort equally on both brokers. That of a
        # static member begins with the instance ID. Kafka keeps the client ID of a replaced member.
        client = member.instance or f"{member.connection}.{self._number():05}"
        self._send(member, client, JOIN, version, message, joined)

    def _subscription_of(self, member: ClassicMember) -> bytes:
        owned = (
            [TopicPartitions(topic=self._own("fixed-a"), partitions=[0])]
            if self._chance(0.2)
            else []
        )
        subscription = MemberSubscription(
            topics=member.topics,
            user_data=None,
            owned_partitions=owned,
            generation_id=member.generation,
            rack_id=self.rng.choice((None, "rack-1")),
        )
        return encode_versioned(subscription, self.rng.choice((0, 1, 2, 3)))

    def classic_member_continues(self) -> None:
        free = [each for each in self.classic_members if each.connection not in self.twins.pending]
        if not free:
            return
        member = self.rng.choice(free)
        if member.wants == "join":
            self._classic_join(member)
        elif member.wants == "sync":
            self._classic_sync(member)
        else:
            self._classic_beat(member)

    def _classic_sync(self, member: ClassicMember) -> None:
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
                self._handle_classic_error(member, answer.error_code)
            else:
                member.wants = "beat"

        version = self._version(SYNC, 3 if member.instance is not None else 0)
        self._send(member, member.instance or member.connection, SYNC, version, message, synced)

    def _classic_beat(self, member: ClassicMember) -> None:
        message = request(
            CLASSIC_BEAT,
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.id,
            group_instance_id=member.instance,
        )
        least = 3 if member.instance is not None else 0
        answer = self.twins.ask(CLASSIC_BEAT, self._version(CLASSIC_BEAT, least), message)
        if answer.error_code:
            self._handle_classic_error(member, answer.error_code)
        elif self._chance(0.1):
            member.wants = "join"
            if self._chance(0.5):
                member.topics = self._names()

    def _handle_classic_error(self, member: ClassicMember, code: int) -> None:
        member.wants, member.leads = "join", None
        if code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            return
        if code == ErrorCode.UNKNOWN_MEMBER_ID and self._chance(0.5):
            member.id, member.generation = "", -1
        elif member in self.classic_members:
            self.classic_members.remove(member)

    def classic_member_errs(self) -> None:
        free = [each for each in self.classic_members if each.connection not in self.twins.pending]
        member = (
            self.rng.choice(free)
            if free
            else ClassicMember("x", self.rng.choice(self.groups), [], ("range",))
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
            self.twins.ask(
                CLASSIC_BEAT, self._version(CLASSIC_BEAT, least), request(CLASSIC_BEAT, **common)
            )
        elif not is_right and instance == member.instance and name == "nobody":
            message = request(SYNC, protocol_type="consumer", protocol_name="range", **common)
            self.twins.ask(SYNC, self._version(SYNC, least), message)
        else:
            row = of(JOIN, "Protocol", name="range", metadata=b"") if self._chance(0.5) else None
            # For an empty consumer group, Kafka would delete the group without writing a record.
            has_members = any(
                each.group == member.group and each.is_in for each in self.consumer_members
            )
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

    def classic_member_leaves(self) -> None:
        free = [each for each in self.classic_members if each.connection not in self.twins.pending]
        if free:
            self._classic_leave(self.rng.choice(free))

    def _classic_leave(self, member: ClassicMember) -> None:
        if member.is_expected:
            # If a member ID that has not joined yet leaves, Kafka starts another rebalance.
            self._classic_join(member)
            return
        row = of(LEAVE, "Member", member_id=member.id, group_instance_id=member.instance)
        version = self._version(LEAVE, 3 if member.instance is not None else 0)
        message = request(LEAVE, group_id=member.group, member_id=member.id, members=[row])
        self.twins.ask(LEAVE, version, message)
        self.classic_members.remove(member)
        self._wait_until_empty(member.group)

    def _wait_until_empty(self, group: str) -> None:
        """Wait until a group without members has ended its rebalance, after a timer of 0 ms.

        A member that joins earlier becomes part of that generation, and otherwise of the next one.
        If a rebalance was already in progress and a member ID is missing, the rebalance outlasts
        the history.
        """
        key = ApiKey.DESCRIBE_GROUPS
        for _ in range(20):
            message = request(key, groups=[group])
            row = self.twins.ask(key, self._version(key), message, again=True).groups[0]
            if row.members or row.group_state != "PreparingRebalance":
                break
            time.sleep(0.01)

    def _empty_diverged_groups(self) -> None:
        """Remove members of groups with different leaders, which would wait for other members."""
        for member in [each for each in self.classic_members if each.group in self._diverged]:
            if member.is_expected or member.connection in self.twins.pending:
                continue
            if member.id:
                row = of(LEAVE, "Member", member_id=member.id, group_instance_id=member.instance)
                self._ask(LEAVE, 3, group_id=member.group, members=[row])
                self._wait_until_empty(member.group)
            self.classic_members.remove(member)
        waiting = {
            each.group for each in self.classic_members if each.connection in self.twins.pending
        }
        self._diverged &= waiting

    def admin_removes_members(self) -> None:
        """Remove members by member ID or by instance ID, like Kafka's admin client."""
        group = self.rng.choice(self.groups)
        rows = []
        for _ in range(self.rng.choice((1, 2))):
            new = [each for each in self.consumer_members if each.group == group and each.is_in]
            old = [
                each
                for each in self.classic_members
                if each.group == group and not each.cannot_be_removed
            ]
            some = self.rng.choice([*new, *old, ConsumerMember("nobody", group)])
            member_id = some.id if self._chance(0.6) or some.instance is None else ""
            rows.append(of(LEAVE, "Member", member_id=member_id, group_instance_id=some.instance))
        self._ask(LEAVE, 3, group_id=group, members=rows)
        self._wait_until_empty(group)

    def _send(
        self,
        member: ClassicMember,
        client: str,
        key: ApiKey,
        version: int,
        message: Any,
        learn: Callable[[Any], None],
    ) -> None:
        def describe_group() -> None:
            message = request(ApiKey.DESCRIBE_GROUPS, groups=[member.group])
            self.twins.ask(
                ApiKey.DESCRIBE_GROUPS,
                self.twins.versions[ApiKey.DESCRIBE_GROUPS][-1],
                message,
                again=True,
            )

        self.twins.send_pending(
            member.connection, client, key, version, message, learn, describe_group
        )

    # -- offsets

    def commit(self) -> None:
        key = ApiKey.OFFSET_COMMIT
        version = self._version(key)
        group, member_id, epoch, instance = self._random_member()
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
                    committed_metadata=self.rng.choice((None, "", "x", "y", "m" * 5000)),
                )
            ]
            topics.append(
                of(key, "Topic", name=name, topic_id=self._topic_id(name), partitions=rows)
            )
        values = {"group_id": group, "member_id": member_id, "generation_id_or_member_epoch": epoch}
        if version >= 7:
            values["group_instance_id"] = instance
        self.twins.ask(key, version, request(key, topics=topics, **values))

    def _random_member(self) -> tuple[str, str, int, str | None]:
        """Return group, member ID, epoch and instance ID of a random (or unknown) member."""
        new = self._joined_consumer_member()
        if new is not None and self._chance(0.5):
            epoch = new.epoch + self.rng.choice((0, 0, 0, -1, -2, 1))
            return new.group, new.id, epoch, self.rng.choice((new.instance, None))
        if self.classic_members and self._chance(0.5):
            old = self.rng.choice(self.classic_members)
            return old.group, old.id, old.generation + self.rng.choice((0, 0, -1, 1)), old.instance
        group = self.rng.choice([*self.groups, f"s{self.seed}-simple"])
        return group, self.rng.choice(("", "nobody")), self.rng.choice((-1, -1, 0, 7)), None

    def _initialise_producer(self) -> None:
        """Initialise the transactional producer. The first FindCoordinator creates its topic."""
        find, key = ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID
        name = self._own("producer")
        message = request(key, transactional_id=name, transaction_timeout_ms=LONG_MS)
        for twin in (self.twins.ours, self.twins.theirs):
            twin.ask(find, 4, request(find, key_type=1, coordinator_keys=[name]))
            deadline = time.monotonic() + SETTLE_SECONDS * 3
            while (answer := twin.ask(key, 4, message)).error_code:
                if time.monotonic() > deadline:
                    raise Differs(f"{twin.address} has no transaction coordinator")
                time.sleep(0.05)
            twin.producers[PRODUCER_ID] = answer.producer_id
        self._producer_epoch = answer.producer_epoch

    def commit_in_transaction(self) -> None:
        key = ApiKey.TXN_OFFSET_COMMIT
        version = self._version(key, FIRST_IMPLICIT_COMMIT)
        group, member_id, epoch, instance = self._random_member()
        self._pin(group)
        name = self.rng.choice([*self.topics, "never"])
        row = of(
            key,
            "Partition",
            partition_index=self.rng.choice((0, 1, 99)),
            committed_offset=self.rng.randrange(1000),
        )
        topic = of(key, "Topic", name=name, topic_id=self._topic_id(name), partitions=[row])
        message = request(
            key,
            transactional_id=self._own("producer"),
            producer_id=PRODUCER_ID,
            producer_epoch=self._producer_epoch + self.rng.choice((0, 0, 0, 0, 0, 0, -1)),
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            group_instance_id=instance,
            topics=[topic],
        )
        self.twins.ask(key, version, message)

    def end_transaction(self) -> None:
        key = ApiKey.END_TXN
        message = request(
            key,
            transactional_id=self._own("producer"),
            producer_id=PRODUCER_ID,
            producer_epoch=self._producer_epoch,
            committed=self._chance(0.6),
        )
        answer = self.twins.ask(key, self.twins.versions[key][-1], message)
        if not answer.error_code:
            self._producer_epoch = answer.producer_epoch
        self._wait_for_markers()

    def _wait_for_markers(self) -> None:
        """Wait until the group coordinators have applied the end of the transaction."""
        key = ApiKey.DESCRIBE_TRANSACTIONS
        message = request(key, transactional_ids=[self._own("producer")])
        for twin in (self.twins.ours, self.twins.theirs):
            deadline = time.monotonic() + SETTLE_SECONDS
            while time.monotonic() < deadline:
                (row,) = twin.ask(key, 0, message).transaction_states
                if not row.transaction_state.startswith("Prepare"):
                    break
                time.sleep(0.01)

    def fetch(self) -> None:
        key = ApiKey.OFFSET_FETCH
        version = self._version(key)
        group, member_id, epoch, _ = self._random_member()
        topics = [
            of(key, "Topic", name=name, topic_id=self._topic_id(name), partition_indexes=[0, 1, 99])
            for name in [*self.topics, "never"]
        ]
        some = topics if version < 2 or self._chance(0.5) else None
        if version < 8:
            stable = version == REQUIRE_STABLE and self._chance(0.5)
            message = request(key, group_id=group, topics=some, require_stable=stable)
        else:
            row = of(key, "Group", group_id=group, topics=some)
            if version >= 9 and self._chance(0.6):
                row.member_id, row.member_epoch = member_id, epoch
            message = request(key, groups=[row], require_stable=self._chance(0.5))
        self.twins.ask(key, version, message, again=True)

    def delete_offsets(self) -> None:
        key = ApiKey.OFFSET_DELETE
        rows = [of(key, "Partition", partition_index=each) for each in (0, 1, 99)]
        names = [name for name in self._names() if name != self._own(PIN)]
        topics = [of(key, "Topic", name=name, partitions=rows) for name in names]
        self._ask(key, group_id=self.rng.choice([*self.groups, "unheard-of"]), topics=topics)

    # -- admins

    def delete_group(self) -> None:
        names = self.rng.sample([*self.groups, f"s{self.seed}-simple", "unheard-of"], 2)
        self._ask(ApiKey.DELETE_GROUPS, groups_names=names)
        self._pinned -= set(names)

    def describe_groups(self) -> None:
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
    """A member that subscribes to all topics, to see when a coordinator has applied a topic change.

    All groups share one shard of the coordinator, so the change is then visible to all of them.
    """

    def __init__(self, twins: Twins, group: str, topics: list[str]) -> None:
        self._twins = twins
        self._group = group
        self._topics = topics
        self._partitions: dict[str, int] = {}
        self._epochs: dict[str, int] = {}

    def find(self) -> None:
        """Find the coordinator. The first FindCoordinator creates `__consumer_offsets`."""
        key = ApiKey.FIND_COORDINATOR
        message = request(key, key_type=0, coordinator_keys=[self._group])
        for twin in self._sides():
            deadline = time.monotonic() + SETTLE_SECONDS * 3
            while twin.ask(key, 4, message).coordinators[0].error_code:
                if time.monotonic() > deadline:
                    raise Differs(f"{twin.address} has no group coordinator")
                time.sleep(0.05)

    def make(self, name: str, partitions: int) -> UUID:
        """Create a topic if it does not exist, and return its common ID in the history."""
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
        self._twins.add_event(f"{name} has {partitions} partitions")
        self._wait()
        return self._learn(name)

    def grow(self, name: str, partitions: int) -> None:
        for twin in self._sides():
            row = of(ApiKey.CREATE_PARTITIONS, "Topic", name=name, count=partitions)
            message = request(ApiKey.CREATE_PARTITIONS, topics=[row], timeout_ms=30_000)
            twin.ask(ApiKey.CREATE_PARTITIONS, 3, message)
        self._partitions[name] = partitions
        self._twins.add_event(f"{name} has {partitions} partitions")
        self._wait()

    def delete(self, name: str) -> None:
        for twin in self._sides():
            row = of(ApiKey.DELETE_TOPICS, "Topic", name=name)
            message = request(ApiKey.DELETE_TOPICS, topics=[row], timeout_ms=30_000)
            twin.ask(ApiKey.DELETE_TOPICS, 6, message)
        del self._partitions[name]
        self._twins.add_event(f"{name} is deleted")
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
