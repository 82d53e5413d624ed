"""Groups that go from the classic protocol to that of KIP-848, and back.

A group without members is simply begun anew as one of the other kind; its offsets stay. A group with
members goes in one step: the records of the one kind are taken away and those of the other written in
the same batch, and nobody gets other partitions by it. Its members follow one by one, as they are
restarted. Until then those of the classic protocol are members of the consumer group with a classic
side (`classic_members`).
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
    """Turns groups of one shard into groups of the other kind."""

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
        """A classic group as a consumer group; the records that make it one are in `result`.

        Raises KafkaError GROUP_ID_NOT_FOUND when it may not, or cannot, become one.
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
        result.work = self._let_go(classic)
        cause = "a member came that uses the consumer protocol: the group is a consumer group now"
        state = ConsumerGroupState.RECONCILING.value
        result.events.append(Event(now.log_ms, classic.id, cause, group.epoch, state))
        return group

    def _converted(
        self, classic: ClassicGroup, member: ClassicGroupMember, epoch: int
    ) -> ConsumerGroupMember:
        said = read_member_subscription(member.metadata(classic.protocol_name))
        if said is None and member.protocols:
            said = read_member_subscription(member.protocols[0][1])
        assignment = read_assignment(member.assignment) if member.assignment else None
        if said is None or (member.assignment and assignment is None):
            _refuse(classic.id, "what its members say of themselves cannot be read")
        assert said is not None  # or else it was refused
        assigned: dict[UUID, dict[int, int]] = {}
        for row in assignment.assigned_partitions if assignment else ():
            topic_id = next(iter(self._topics.ids_of({row.topic})), None)
            if topic_id is not None and row.partitions:
                assigned[topic_id] = dict.fromkeys(row.partitions, epoch)
        if assignment is not None and assignment.user_data:
            _refuse(
                classic.id,
                "its assignor keeps data of its own, which would be lost; change to one of the "
                "clients' own assignors first",
            )
        return ConsumerGroupMember(
            id=member.id,
            instance_id=member.instance_id,
            rack_id=said.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=frozenset(said.topics),
            classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
            epoch=epoch,
            previous_epoch=epoch,
            assigned=assigned or NOTHING,
        )

    def _let_go(self, classic: ClassicGroup) -> Pieces:
        """Those who wait in the classic group join again; sessions go on in the consumer group."""
        result: Result[None] = Result()
        for member in classic.members.values():
            self._rebalances.forget_session(classic.id, member.id)
            self._rebalances.fail_slots(
                classic, member, ErrorCode.REBALANCE_IN_PROGRESS, member.id, result
            )
        yield result

    # -- to classic

    def fits_classic_group(self, size: int) -> bool:
        """Whether a classic group may have so many members."""
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
        """A consumer group becomes a classic one.

        Parameters:
          group: As it is.
          members: Those of the classic group; all have a classic side, and the first one leads.
          generation: The one with which the classic group begins.
          cause: Why its members have to join again; None when they need not.
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
        result.work = self._go_on(group.id, members, cause, now)
        text = "only members of the classic protocol are left: the group is a classic group now"
        if cause is not None:
            text = f"{cause}; {text}"
        result.events.append(Event(now.log_ms, group.id, printable(text), generation, "Stable"))

    def _row(
        self, group: ConsumerGroup, member: ConsumerGroupMember, protocol: str
    ) -> GroupMetadataValue.Member:
        assert member.classic is not None
        said = dict(member.classic.protocols)[protocol]
        return GroupMetadataValue.Member(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.classic.session_timeout_ms,
            subscription=said,
            assignment=self.assignment_of(group.target_of(member), said),
        )

    def assignment_of(self, assigned: Assigned | Target, said: bytes) -> bytes:
        """Partitions in the form in which a consumer of the classic protocol reads them.

        Parameters: `said` is what the member says of itself in a protocol that it offers.
        """
        rows = []
        for topic_id, partitions in assigned.items():
            name = self._topics.name_of(topic_id)
            if name is not None:
                rows += [(name, partition) for partition in sorted(partitions)]
        return write_assignment(rows, said)

    def _go_on(
        self, group_id: str, members: list[ConsumerGroupMember], cause: str | None, now: Now
    ) -> Pieces:
        """Sessions of the classic group begin, and if need be a rebalance."""
        group = self._state.classic_group(group_id)
        if group is None:
            return
        offered = {each.id: each.classic.protocols for each in members if each.classic is not None}
        for member in group.members.values():
            group.offer(member, offered.get(member.id, member.protocols))
            self._rebalances.keep_alive(group, member, now)
        if cause is not None:
            result: Result[None] = Result()
            self._rebalances.begin(group, cause, now, result)
            yield result


def _check_upgrade(classic: ClassicGroup, settings: ConsumerGroupSettings) -> None:
    if not settings.migration.upgrades:
        _refuse(
            classic.id,
            "it has members of the classic protocol, and group.consumer.migration.policy is "
            f"{settings.migration.value}",
        )
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        _refuse(classic.id, "it is no group of consumers")
    if len(classic.members) > settings.size_max:
        _refuse(classic.id, "it has more members than group.consumer.max.size")


def _refuse(group_id: str, why: str) -> None:
    raise KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group_id} is a classic group and cannot become a consumer group: {why}.",
    )


def _common_protocol(members: list[ConsumerGroupMember]) -> str:
    """A protocol that all members offer: members which do not are not let in."""
    offers = [
        [name for name, _ in each.classic.protocols] for each in members if each.classic is not None
    ]
    return next(name for name in offers[0] if all(name in offer for offer in offers))
