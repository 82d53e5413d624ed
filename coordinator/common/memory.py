"""Memory that group members and committed offsets hold on one node, and its limits.

Each shard counts what its own state holds; the node has one limit for the members of all its groups and
one for all its committed offsets. Sizes are estimates of what the state takes in memory: the bytes that
clients sent, and a fixed number for the objects around them.

A client address may hold as many bytes of members as are left to the others after that. So one address
gets at most half of the limit, and another one always finds some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from kbroker.protocol import consumer_group_metadata as consumer
from kbroker.protocol import share_group_metadata as share
from kbroker.protocol import streams_group_metadata as streams
from kbroker.protocol.group_metadata import GroupMetadataKey, OffsetCommitValue

from .record import OFFSETS_SERDE, CoordinatorRecord

GROUP_BYTES: Final = 2048  # of one group without members
MEMBER_BYTES: Final = 2048  # of one member with its timers, without what its client sent
EXPECTED_BYTES: Final = 512  # of a member ID that was given out (KIP-394)
PROTOCOL_BYTES: Final = 160  # of one protocol that a classic member offers
TOPIC_BYTES: Final = 200  # of one topic that a member subscribes to
OFFSET_BYTES: Final = 400  # of one committed offset, without its strings
TRANSACTIONAL_ID_BYTES: Final = 1024  # of one transactional ID, without its name
TOPOLOGY_FACTOR: Final = 4  # bytes in memory for each byte of a stored topology
SHARED_FACTOR: Final = 16  # bytes in memory for each stored byte about partitions of a share group
UNLIMITED: Final = 2**63

RECORD, TOPOLOGY, SHARED = 0, 1, 2
Item: TypeAlias = str | int
"""A part of a group: a member by its ID, the `RECORD` of the group itself, its `TOPOLOGY`, or the
partitions that a share group has `SHARED`."""


_GROUP_KEYS = (
    consumer.ConsumerGroupMetadataKey,
    share.ShareGroupMetadataKey,
    streams.StreamsGroupMetadataKey,
)
_MEMBER_VALUES = (
    consumer.ConsumerGroupMemberMetadataValue,
    share.ShareGroupMemberMetadataValue,
    streams.StreamsGroupMemberMetadataValue,
)
_COUNTED = (
    GroupMetadataKey,
    *_GROUP_KEYS,
    consumer.ConsumerGroupMemberMetadataKey,
    share.ShareGroupMemberMetadataKey,
    share.ShareGroupStatePartitionMetadataKey,
    streams.StreamsGroupMemberMetadataKey,
    streams.StreamsGroupTopologyKey,
)
"""Keys of what clients make large or many."""


class MemoryLimit:
    """Bytes of one kind that all coordinators of a node hold, against a limit.

    Args:
        limit: The maximum in bytes.
        on_refusal: Called each time that there is no room.
    """

    __slots__ = ("_of_host", "_on_refusal", "limit", "used")

    def __init__(
        self, limit: int = UNLIMITED, on_refusal: Callable[[], None] = lambda: None
    ) -> None:
        self.limit = limit
        self.used = 0
        self._of_host: Counter[str] = Counter()
        self._on_refusal = on_refusal

    def has_room(self, growth: int, host: str | None = None) -> bool:
        """Return True if there is room for more bytes. What does not grow always has room.

        Args:
            growth: How many bytes more there would be.
            host: The address of the client that holds them; None for what no address holds.
        """
        if growth <= 0:
            return True
        free = self.limit - self.used - growth
        if free >= 0 and (host is None or self._of_host[host] + growth <= free):
            return True
        self._on_refusal()
        return False

    def change(self, by: int, host: str | None = None) -> None:
        """Count bytes more, or less."""
        self.used += by
        if host is not None:
            self._of_host[host] += by
            if not self._of_host[host]:
                del self._of_host[host]


class GroupMemory(NamedTuple):
    """The limits of one node."""

    members: MemoryLimit
    offsets: MemoryLimit


class Held(NamedTuple):
    """Bytes of one item of a group. The `host` is that of the client, None if the record has none."""

    group_id: str
    item: Item
    host: str | None
    size: int


class ShardMemory:
    """What the state of one shard holds of the limits of its node."""

    __slots__ = ("_groups", "_is_closed", "_offsets", "limits")

    def __init__(self, limits: GroupMemory) -> None:
        self.limits = limits
        self._groups: dict[str, dict[Item, Held]] = {}
        self._offsets = 0
        self._is_closed = False

    # -- members

    def size_of(self, group_id: str, item: Item) -> int:
        """Return the bytes that an item holds, 0 if it is not there."""
        held = self._groups.get(group_id, {}).get(item)
        return 0 if held is None else held.size

    def hold(self, group_id: str, item: Item, host: str | None, size: int) -> None:
        """An item holds so many bytes from now on.

        Without a `host`, its bytes count for the client of another item of the group.
        """
        if self._is_closed:
            return
        items = self._groups.setdefault(group_id, {})
        if host is None:
            host = next((each.host for each in items.values()), "")
        self._forget(items.get(item))
        items[item] = Held(group_id, item, host, size)
        self.limits.members.change(size, host)

    def drop(self, group_id: str, item: Item) -> None:
        """An item of a group is no longer there."""
        items = self._groups.get(group_id)
        if items is not None:
            self._forget(items.pop(item, None))
            if not items:
                del self._groups[group_id]

    def drop_group(self, group_id: str) -> None:
        """A group is no longer there."""
        for held in self._groups.pop(group_id, {}).values():
            self._forget(held)

    def _forget(self, held: Held | None) -> None:
        if held is not None:
            self.limits.members.change(-held.size, held.host)

    # -- records

    def replay(self, record: CoordinatorRecord) -> None:
        """Count what a record about a group changes."""
        held = held_by(record)
        if held is not None:
            if record.value is None:
                self.drop(held.group_id, held.item)
            else:
                self.hold(held.group_id, held.item, held.host, held.size)

    def growth(self, records: Iterable[CoordinatorRecord]) -> int:
        """Return by how many bytes members would grow by records that are not stored yet."""
        held = map(held_by, records)
        return sum(
            each.size - self.size_of(each.group_id, each.item) for each in held if each is not None
        )

    # -- offsets

    def change_offsets(self, by: int) -> None:
        """Count bytes of committed offsets more, or less."""
        if not self._is_closed:
            self._offsets += by
            self.limits.offsets.change(by)

    def close(self) -> None:
        """The shard is unloaded: it holds nothing any more."""
        for group_id in tuple(self._groups):
            self.drop_group(group_id)
        self.change_offsets(-self._offsets)
        self._is_closed = True


def group_bytes(group_id: str) -> int:
    """Return the bytes in memory of a group that has offsets, without them."""
    return GROUP_BYTES + len(group_id)


def offset_bytes(topic: str, value: OffsetCommitValue) -> int:
    """Return the bytes that a committed offset holds."""
    return OFFSET_BYTES + len(topic) + len(value.metadata)


def held_by(record: CoordinatorRecord) -> Held | None:
    """Return what a record of `__consumer_offsets` holds.

    Returns:
        None for records that are small or not sent by clients.
    """
    key, said = record.key, record.value
    if not isinstance(key, _COUNTED):
        return None
    stored_key, stored_value = OFFSETS_SERDE.encode(record)
    size = 0 if stored_value is None else len(stored_value)
    if isinstance(key, GroupMetadataKey):
        return Held(key.group, RECORD, None, size and GROUP_BYTES + len(stored_key) + size)
    if isinstance(key, streams.StreamsGroupTopologyKey):
        return Held(key.group_id, TOPOLOGY, None, TOPOLOGY_FACTOR * size)
    if isinstance(key, share.ShareGroupStatePartitionMetadataKey):
        return Held(key.group_id, SHARED, None, SHARED_FACTOR * size)
    if isinstance(key, _GROUP_KEYS):
        return Held(key.group_id, RECORD, None, size and GROUP_BYTES + len(stored_key))
    if said is None:
        return Held(key.group_id, key.member_id, None, 0)
    assert isinstance(said, _MEMBER_VALUES)
    topics = 0
    if not isinstance(said, streams.StreamsGroupMemberMetadataValue):
        topics = len(said.subscribed_topic_names)
    size += MEMBER_BYTES + len(stored_key) + TOPIC_BYTES * topics
    return Held(key.group_id, key.member_id, said.client_host, size)
