"""A classic group and its members: the data, and the questions that it can answer about itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import TypeAlias

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import read_subscription
from kbroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

from ..common.memory import EXPECTED_BYTES, MEMBER_BYTES, PROTOCOL_BYTES, ShardMemory
from ..common.result import PendingResponse
from .group_state import FOLLOWS, ClassicGroupState

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""What a member offers, best first: (name, metadata)."""

CONSUMER_PROTOCOL_TYPE = "consumer"
FIRST_VERSION_WITH_KNOWN_ID = 4
"""Of JoinGroup: who joins has to come again with the id that it is given (KIP-394)."""


class ClassicGroupMember:
    """One member of a classic group.

    A member waits in at most one slot: for its join or for its sync. `is_new` holds until its first
    join is answered; `is_anonymous` while nobody outside has been told its id.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "heard_ms",
        "id",
        "instance_id",
        "is_anonymous",
        "is_new",
        "join_slot",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_slot",
    )

    def __init__(
        self, member_id: str, instance_id: str | None, client_id: str, client_host: str
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = 0
        self.heard_ms = 0
        """When it was last heard of, in coordinator time."""
        self.rebalance_timeout_ms = 0
        self.protocols: Protocols = ()
        self.assignment = b""
        self.is_new = False
        self.is_anonymous = False
        self.join_slot: PendingResponse[JoinGroupResponse] | None = None
        self.sync_slot: PendingResponse[SyncGroupResponse] | None = None

    @property
    def is_waiting(self) -> bool:
        return self.join_slot is not None or self.sync_slot is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said for a protocol; empty when it does not offer it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


class ClassicGroup:
    """One classic group.

    Members keep the order in which they came. `stored` says that the log knows the group. The
    number of parked joins and the number of members per protocol are kept up to date, because a
    join asks for them each time and groups can be large.
    """

    __slots__ = (
        "_memory",
        "_subscriptions",
        "_topics_read",
        "generation",
        "id",
        "initial_delay_left_ms",
        "is_initial",
        "joined",
        "leader_id",
        "members",
        "metadata_bytes",
        "newcomer",
        "pending",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_ids",
        "stored",
        "support",
        "unsynced",
    )

    def __init__(self, group_id: str, memory: ShardMemory) -> None:
        self.id = group_id
        self._memory = memory
        self.state = ClassicGroupState.EMPTY
        self.state_since_ms = -1
        """Log time of the stored state, -1 if unknown."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_ids: dict[str, str] = {}
        """Instance id to member id (KIP-345)."""
        self.pending: set[str] = set()
        """Ids given with MEMBER_ID_REQUIRED that have not come back yet (KIP-394)."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self._subscriptions: tuple[bytes, ...] | None = None
        """What the members of this generation said for its protocol, until somebody asks for it."""
        self._topics_read: frozenset[str] | None = None
        """The topics in it; None when they are not known, as before the first generation."""
        self.metadata_bytes = 0
        """Metadata of all members, over all their protocols."""
        self.joined = 0
        self.support: Counter[str] = Counter()
        self.is_initial = False
        """In PreparingRebalance: the members came to an empty group, which may wait for more."""
        self.initial_delay_left_ms = 0
        self.newcomer = False
        self.stored = False

    # -- members

    def add(self, member: ClassicGroupMember, protocol_type: str, protocols: Protocols) -> None:
        """Take in a member; the first one leads and decides the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.id
        self.offer(member, protocols)
        self.pending.discard(member.id)
        if self.leader_id is None:
            self.leader_id = member.id

    def remove(self, member: ClassicGroupMember) -> None:
        """Take out a member. Its slots must have been answered."""
        del self.members[member.id]
        self.offer(member, ())
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        self._memory.drop(self.id, member.id)
        self.unsynced.discard(member.id)
        if self.leader_id == member.id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: ClassicGroupMember, new_id: str) -> None:
        """Give a static member its new id (KIP-345); it keeps its place."""
        old_id, member.id = member.id, new_id
        self._memory.drop(self.id, old_id)
        self._hold(member)
        self.members = {other.id: other for other in self.members.values()}
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        if self.leader_id == old_id:
            self.leader_id = new_id

    def offer(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        """Replace what a member offers."""
        self.metadata_bytes += metadata_size(protocols) - metadata_size(member.protocols)
        support = self.support
        for name, _ in member.protocols:
            support[name] -= 1
            if not support[name]:
                del support[name]
        member.protocols = protocols
        for name, _ in protocols:
            support[name] += 1
        self._hold(member)

    def _hold(self, member: ClassicGroupMember) -> None:
        strings = (self.id, member.id, member.client_id, member.instance_id or "")
        size = member_bytes(member.protocols, *strings)
        self._memory.hold(self.id, member.id, member.client_host, size)

    def expect(self, member_id: str, host: str) -> None:
        """Expect a join with an ID that was given out (KIP-394)."""
        self.pending.add(member_id)
        size = expected_bytes(self.id, member_id)
        self._memory.hold(self.id, member_id, host, size)

    def stop_expecting(self, member_id: str) -> None:
        """Forget an ID that was given out."""
        if member_id in self.pending:
            self.pending.remove(member_id)
            self._memory.drop(self.id, member_id)

    def static_member(self, instance_id: str | None) -> ClassicGroupMember | None:
        member_id = self.static_ids.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members[member_id]

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether the sender of a request is a member, and the one that holds its instance id."""
        if instance_id is not None:
            holder = self.static_ids.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- joins

    def park_join(
        self, member: ClassicGroupMember, slot: PendingResponse[JoinGroupResponse]
    ) -> None:
        if member.join_slot is None:
            self.joined += 1
        member.join_slot = slot

    def take_join(self, member: ClassicGroupMember) -> PendingResponse[JoinGroupResponse] | None:
        """Free the slot of a parked join."""
        slot, member.join_slot = member.join_slot, None
        if slot is not None:
            self.joined -= 1
        return slot

    @property
    def is_empty(self) -> bool:
        """True if the group is in the state EMPTY: it has no members, and none are joining."""
        return self.state is ClassicGroupState.EMPTY

    @property
    def all_joined(self) -> bool:
        """Nobody is missing: neither a member nor an id that was given out."""
        return self.joined == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits: as long as the most patient member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could be part of the group."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        size = len(self.members)
        return any(self.support[name] == size for name, _ in protocols)

    def vote(self) -> str:
        """The protocol of the next generation: all members offer it, most of them like it best."""
        size = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self.support[name] == size)] += 1
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else let the first that has joined lead."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.join_slot is None:
            joined = (member for member in self.members.values() if member.join_slot is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader_id = leader.id
        return True

    # -- state

    def move(self, state: ClassicGroupState) -> None:
        """Go to another state. Raises ValueError for a move that the table does not have."""
        if state not in FOLLOWS[self.state]:
            raise ValueError(f"group {self.id}: {self.state} cannot become {state}")
        self.state = state

    def keep_subscriptions(self) -> None:
        """A generation begins: what it reads stays until the next one, whoever joins meanwhile."""
        self._subscriptions = tuple(m.metadata(self.protocol_name) for m in self.members.values())

    @property
    def is_unused(self) -> bool:
        """Nothing of the group would be missed: it never had a member, and expects none."""
        return self.state is ClassicGroupState.EMPTY and not (self.stored or self.pending)

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic; yes when members of a consumer group do not say."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        if self._subscriptions is not None:
            self._topics_read = _topics_in(self._subscriptions)
            self._subscriptions = None
        return self._topics_read is None or topic in self._topics_read


def _topics_in(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """What the members of a consumer group read together; None when one does not say."""
    said = [read_subscription(metadata) for metadata in subscriptions]
    topics = [one.topics for one in said if one is not None]
    return frozenset(chain.from_iterable(topics)) if len(topics) == len(said) else None


def metadata_size(protocols: Protocols) -> int:
    """Return the bytes that a member's offers hold."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def member_bytes(protocols: Protocols, *strings: str) -> int:
    """Return the bytes in memory of a member with these protocols and names."""
    size = MEMBER_BYTES + PROTOCOL_BYTES * len(protocols) + metadata_size(protocols)
    return size + sum(map(len, strings))


def expected_bytes(group_id: str, member_id: str) -> int:
    """Return the bytes in memory of a member ID that was given out."""
    return EXPECTED_BYTES + len(group_id) + len(member_id)


def protocols_of(pairs: Iterable[tuple[str, bytes]]) -> Protocols:
    """What a member offers, from its request; of a name that comes twice the first counts."""
    offered: dict[str, bytes] = {}
    for name, metadata in pairs:
        offered.setdefault(name, metadata)
    return tuple(offered.items())
