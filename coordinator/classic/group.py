"""A classic group and its members: their data and queries on it."""

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
from .group_state import VALID_TRANSITIONS, ClassicGroupState

# Supported protocols of a member in order of preference: (name, metadata).
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]

CONSUMER_PROTOCOL_TYPE = "consumer"
# First JoinGroup version that requires a member ID (KIP-394).
FIRST_VERSION_REQUIRING_MEMBER_ID = 4


class ClassicGroupMember:
    """A member of a classic group.

    A member has at most one pending request: its JoinGroup or its SyncGroup.

    Attributes:
        last_heartbeat_ms: Time of the last heartbeat or other sign of life, in ms of the monotonic
            clock.
        is_new: True until the first JoinGroup of the member is answered.
        is_anonymous: True until the member ID was sent to the client.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_anonymous",
        "is_new",
        "last_heartbeat_ms",
        "pending_join",
        "pending_sync",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self, member_id: str, instance_id: str | None, client_id: str, client_host: str
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = 0
        self.last_heartbeat_ms = 0
        self.rebalance_timeout_ms = 0
        self.protocols: Protocols = ()
        self.assignment = b""
        self.is_new = False
        self.is_anonymous = False
        self.pending_join: PendingResponse[JoinGroupResponse] | None = None
        self.pending_sync: PendingResponse[SyncGroupResponse] | None = None

    @property
    def is_waiting(self) -> bool:
        return self.pending_join is not None or self.pending_sync is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol, or b"" if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


class ClassicGroup:
    """A classic group.

    Members are ordered by the time when they joined. The number of pending joins and the number of
    members per protocol are maintained incrementally, because each JoinGroup reads them and groups
    can be large.

    Attributes:
        stored: True if the log contains the group.
    """

    __slots__ = (
        "_memory",
        "_subscriptions",
        "_topics_read",
        "generation",
        "has_new_member",
        "id",
        "initial_delay_left_ms",
        "is_initial",
        "joined",
        "leader_id",
        "members",
        "metadata_bytes",
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
        # Time of the stored state in ms since 1970, or -1 if unknown.
        self.state_since_ms = -1
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        # Member IDs by instance ID (KIP-345).
        self.static_ids: dict[str, str] = {}
        # Member IDs returned with MEMBER_ID_REQUIRED that have not rejoined yet (KIP-394).
        self.pending: set[str] = set()
        # Members of this generation that have not sent SyncGroup.
        self.unsynced: set[str] = set()
        # Subscriptions of this generation's members that have not been parsed yet.
        self._subscriptions: tuple[bytes, ...] | None = None
        # Topics of the parsed subscriptions; None if they are unknown, as before the first
        # generation.
        self._topics_read: frozenset[str] | None = None
        # Size in bytes of the metadata of all members, over all their protocols.
        self.metadata_bytes = 0
        self.joined = 0
        self.support: Counter[str] = Counter()
        # True in PreparingRebalance if the group was empty before, so that it may wait for more
        # members.
        self.is_initial = False
        self.initial_delay_left_ms = 0
        self.has_new_member = False
        self.stored = False

    # -- members

    def add(self, member: ClassicGroupMember, protocol_type: str, protocols: Protocols) -> None:
        """Add a member. The first member becomes the leader and determines the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.id
        self.set_protocols(member, protocols)
        self.pending.discard(member.id)
        if self.leader_id is None:
            self.leader_id = member.id

    def remove(self, member: ClassicGroupMember) -> None:
        """Remove a member. Its pending requests must have been answered."""
        del self.members[member.id]
        self.set_protocols(member, ())
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        self._memory.drop(self.id, member.id)
        self.unsynced.discard(member.id)
        if self.leader_id == member.id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: ClassicGroupMember, new_id: str) -> None:
        """Give a static member its new member ID (KIP-345). It keeps its position."""
        old_id, member.id = member.id, new_id
        self._memory.drop(self.id, old_id)
        self._update_memory(member)
        self.members = {other.id: other for other in self.members.values()}
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        if self.leader_id == old_id:
            self.leader_id = new_id

    def set_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        """Replace the supported protocols of a member."""
        self.metadata_bytes += metadata_size(protocols) - metadata_size(member.protocols)
        support = self.support
        for name, _ in member.protocols:
            support[name] -= 1
            if not support[name]:
                del support[name]
        member.protocols = protocols
        for name, _ in protocols:
            support[name] += 1
        self._update_memory(member)

    def _update_memory(self, member: ClassicGroupMember) -> None:
        strings = (self.id, member.id, member.client_id, member.instance_id or "")
        size = member_bytes(member.protocols, *strings)
        self._memory.hold(self.id, member.id, member.client_host, size)

    def expect(self, member_id: str, host: str) -> None:
        """Expect a JoinGroup with a member ID that was returned to a client (KIP-394)."""
        self.pending.add(member_id)
        size = expected_bytes(self.id, member_id)
        self._memory.hold(self.id, member_id, host, size)

    def stop_expecting(self, member_id: str) -> None:
        """Forget a member ID that was returned to a client."""
        if member_id in self.pending:
            self.pending.remove(member_id)
            self._memory.drop(self.id, member_id)

    def static_member(self, instance_id: str | None) -> ClassicGroupMember | None:
        member_id = self.static_ids.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members[member_id]

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error for a request of this member ID and instance ID."""
        if instance_id is not None:
            holder = self.static_ids.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- joins

    def add_pending_join(
        self, member: ClassicGroupMember, slot: PendingResponse[JoinGroupResponse]
    ) -> None:
        if member.pending_join is None:
            self.joined += 1
        member.pending_join = slot

    def remove_pending_join(
        self, member: ClassicGroupMember
    ) -> PendingResponse[JoinGroupResponse] | None:
        """Remove and return the pending JoinGroup of a member."""
        slot, member.pending_join = member.pending_join, None
        if slot is not None:
            self.joined -= 1
        return slot

    @property
    def is_empty(self) -> bool:
        """True if the group is in the state EMPTY: it has no members, and none are joining."""
        return self.state is ClassicGroupState.EMPTY

    @property
    def all_joined(self) -> bool:
        """True if all members have joined, and all returned member IDs were used."""
        return self.joined == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """Rebalance timeout of the group in ms: the maximum over its members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return True if a member with these protocols can join the group."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        size = len(self.members)
        return any(self.support[name] == size for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among the protocols that all members support."""
        size = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self.support[name] == size)] += 1
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else elect the first member that has joined.

        Returns:
            False if no member has joined.
        """
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.pending_join is None:
            joined = (member for member in self.members.values() if member.pending_join is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader_id = leader.id
        return True

    # -- state

    def move(self, state: ClassicGroupState) -> None:
        """Change the state of the group.

        Raises:
            ValueError: The transition is not valid.
        """
        if state not in VALID_TRANSITIONS[self.state]:
            raise ValueError(f"group {self.id}: {self.state} cannot become {state}")
        self.state = state

    def keep_subscriptions(self) -> None:
        """Save the subscriptions of the new generation, which later joins do not change."""
        self._subscriptions = tuple(m.metadata(self.protocol_name) for m in self.members.values())

    @property
    def is_unused(self) -> bool:
        """True if the group can be dropped: it never had a member and no join is expected."""
        return self.state is ClassicGroupState.EMPTY and not (self.stored or self.pending)

    def subscribes(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic, or if its topics are unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        if self._subscriptions is not None:
            self._topics_read = _topics_in(self._subscriptions)
            self._subscriptions = None
        return self._topics_read is None or topic in self._topics_read


def _topics_in(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions, or None if one of them cannot be parsed."""
    parsed = [read_subscription(metadata) for metadata in subscriptions]
    topics = [one.topics for one in parsed if one is not None]
    return frozenset(chain.from_iterable(topics)) if len(topics) == len(parsed) else None


def metadata_size(protocols: Protocols) -> int:
    """Return the size of a member's supported protocols in bytes."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def member_bytes(protocols: Protocols, *strings: str) -> int:
    """Return the bytes in memory of a member with these protocols and strings."""
    size = MEMBER_BYTES + PROTOCOL_BYTES * len(protocols) + metadata_size(protocols)
    return size + sum(map(len, strings))


def expected_bytes(group_id: str, member_id: str) -> int:
    """Return the bytes in memory of a member ID that was returned to a client."""
    return EXPECTED_BYTES + len(group_id) + len(member_id)


def protocols_of(pairs: Iterable[tuple[str, bytes]]) -> Protocols:
    """Return a member's protocols from its request. The first of several equal names counts."""
    offered: dict[str, bytes] = {}
    for name, metadata in pairs:
        offered.setdefault(name, metadata)
    return tuple(offered.items())
