"""Conversion of groups from the classic protocol to the consumer protocol (KIP-848), and back.

A group without members is replaced by a new group of the other type, and its offsets remain. A
group with members is converted in one step. One batch deletes the records of the old type and
writes those of the new type, and the assignments do not change. The members change their protocol
one by one, as they are restarted. Until then, classic members belong to the consumer group and have
classic metadata (`classic_members`).
"""

from __future__ import annotations

from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.group_metadata import (
    GroupMetadataValue,
    read_assignment,
    read_member_subscription,
    write_assignment,
)

from ..classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupMember
from ..classic.group_state import EMPTY
from ..classic.rebalance import Rebalances
from ..classic.records import group_record
from ..common.events import printable
from ..common.modern_group import NOTHING, Assigned, Target
from ..common.records import group_tombstone
from ..common.result import Event, Now, Pieces, R, Result
from ..common.settings import ConsumerGroupSettings, GroupSettings
from ..common.topics import KnownTopics
from ..state import ShardState
from .group import ClassicMemberMetadata, ConsumerGroup, ConsumerGroupMember, ConsumerGroupState
from .records import group_tombstones, whole_group


class Conversion:
    """Converts groups of one shard to the other type."""

    def __init__(
        self,
        state: ShardState,
        rebalances: Rebalances,
        settings: GroupSettings,
        topics: KnownTopics,
    ) -> None:
        self._state = state
        self._rebalances = rebalances
        self._settings = settings
        self._topics = topics

    # -- from classic

    def to_consumer_group(
        self, classic: ClassicGroup, settings: ConsumerGroupSettings, now: Now, result: Result[R]
    ) -> ConsumerGroup:
        """Convert a classic group to a consumer group, adding the records to `result`.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, if the group may not or cannot be converted.
        """
        group = ConsumerGroup(classic.id)
        if classic.state is EMPTY:
            result.records.append(group_tombstone(classic.id))
            return group
        _check_upgrade(classic, settings)
        group.epoch = group.assignment_epoch = max(classic.generation, 1)
        for member in classic.members.values():
            converted = self._converted(classic, member, group.epoch)
            group.put(converted)
            group.targets[member.id] = {
                topic_id: frozenset(partitions)
                for topic_id, partitions in converted.assigned.items()
            }
        group.set_assignment_epoch(group.epoch, 0)
        group.metadata_hash = self._topics.hash_of(group.topics.keys())
        result.records.append(group_tombstone(classic.id))
        result.records += whole_group(group, 0)
        result.work = self._fail_pending_requests(classic)
        cause = "converted to a consumer group for a member that uses the consumer protocol"
        state = ConsumerGroupState.RECONCILING.value
        result.events.append(Event(now.log_ms, classic.id, cause, group.epoch, state))
        return group

    def _converted(
        self, classic: ClassicGroup, member: ClassicGroupMember, epoch: int
    ) -> ConsumerGroupMember:
        subscription = read_member_subscription(member.metadata(classic.protocol_name))
        if subscription is None and member.protocols:
            subscription = read_member_subscription(member.protocols[0][1])
        assignment = read_assignment(member.assignment) if member.assignment else None
        if subscription is None or (member.assignment and assignment is None):
            _reject(classic.id, "the subscription or the assignment of a member cannot be parsed")
        assert subscription is not None  # otherwise the conversion was rejected above
        assigned: dict[UUID, dict[int, int]] = {}
        for row in assignment.assigned_partitions if assignment else ():
            topic_id = next(iter(self._topics.ids_of({row.topic})), None)
            if topic_id is not None and row.partitions:
                assigned[topic_id] = dict.fromkeys(row.partitions, epoch)
        if assignment is not None and assignment.user_data:
            _reject(
                classic.id,
                "its assignor stores user data, which the conversion would lose; change to one of the "
                "built-in client assignors first",
            )
        return ConsumerGroupMember(
            id=member.id,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
            epoch=epoch,
            previous_epoch=epoch,
            assigned=assigned or NOTHING,
        )

    def _fail_pending_requests(self, classic: ClassicGroup) -> Pieces:
        """Fail pending requests of the classic group, so that members rejoin the consumer group."""
        result: Result[None] = Result()
        for member in classic.members.values():
            self._rebalances.forget_session(classic.id, member.id)
            self._rebalances.fail_pending_requests(
                classic, member, ErrorCode.REBALANCE_IN_PROGRESS, member.id, result
            )
        yield result

    # -- to classic

    def fits_classic_size(self, size: int) -> bool:
        """Return True if a classic group may have this number of members."""
        return size <= self._settings.group_size_max

    def to_classic_group(
        self,
        group: ConsumerGroup,
        members: list[ConsumerGroupMember],
        generation: int,
        cause: str | None,
        now: Now,
        result: Result[R],
    ) -> None:
        """Convert a consumer group to a classic group, adding the records to `result`.

        Args:
            group: The consumer group.
            members: Members of the classic group. All have classic metadata; the first one is the
                leader.
            generation: First generation of the classic group.
            cause: Why the members have to rejoin, or None if they need not.
            now: Current time.
            result: Result of the operation.
        """
        protocol = _common_protocol(members)
        value = GroupMetadataValue(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            generation=generation,
            protocol=protocol,
            leader=members[0].id,
            current_state_timestamp=now.log_ms,
            members=[self._row(group, member, protocol) for member in members],
        )
        result.records += group_tombstones(group)
        result.records.append(group_record(group.id, value))
        result.work = self._resume(group.id, members, cause, now)
        text = "converted to a classic group: all remaining members use the classic protocol"
        if cause is not None:
            text = f"{cause}; {text}"
        result.events.append(Event(now.log_ms, group.id, printable(text), generation, "Stable"))

    def _row(
        self, group: ConsumerGroup, member: ConsumerGroupMember, protocol: str
    ) -> GroupMetadataValue.Member:
        assert member.classic is not None
        subscription = dict(member.classic.protocols)[protocol]
        return GroupMetadataValue.Member(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.classic.session_timeout_ms,
            subscription=subscription,
            assignment=self.assignment_of(group.target_of(member), subscription),
        )

    def assignment_of(self, assigned: Assigned | Target, subscription: bytes) -> bytes:
        """Encode an assignment for a member of the classic protocol.

        Args:
            assigned: Partitions by topic ID.
            subscription: The member's metadata for one of its protocols.
        """
        rows = []
        for topic_id, partitions in assigned.items():
            name = self._topics.name_of(topic_id)
            if name is not None:
                rows += [(name, partition) for partition in sorted(partitions)]
        return write_assignment(rows, subscription)

    def _resume(
        self, group_id: str, members: list[ConsumerGroupMember], cause: str | None, now: Now
    ) -> Pieces:
        """Start the sessions of the classic group, and a rebalance if there is a cause."""
        group = self._state.find_group(group_id, ClassicGroup)
        if group is None:
            return
        offered = {each.id: each.classic.protocols for each in members if each.classic is not None}
        for member in group.members.values():
            group.set_protocols(member, offered.get(member.id, member.protocols))
            self._rebalances.keep_alive(group, member, now)
        if cause is not None:
            result: Result[None] = Result()
            self._rebalances.begin(group, cause, now, result)
            yield result


def _check_upgrade(classic: ClassicGroup, settings: ConsumerGroupSettings) -> None:
    if not settings.migration.upgrades:
        _reject(
            classic.id,
            "it has classic members, and group.consumer.migration.policy is "
            f"{settings.migration.value}",
        )
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        _reject(classic.id, "its protocol type is not 'consumer'")
    if len(classic.members) > settings.size_max:
        _reject(classic.id, "it has more members than group.consumer.max.size")


def _reject(group_id: str, why: str) -> None:
    raise KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group_id} is a classic group and cannot become a consumer group: {why}.",
    )


def _common_protocol(members: list[ConsumerGroupMember]) -> str:
    """Return a protocol that all members support. JoinGroup rejects members that support none."""
    offers = [
        [name for name, _ in each.classic.protocols] for each in members if each.classic is not None
    ]
    return next(name for name in offers[0] if all(name in offered for offered in offers))
