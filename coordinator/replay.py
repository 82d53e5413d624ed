"""Record to state: the only writer of what is persisted.

The same path serves start-up, running and fail-over. While running, a record meets the group whose
operation made it: members that stay keep what no record says (all the protocols that they offer,
their timers). At start-up there is nothing to keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_metadata,
    decode_key,
    decode_offset_commit,
)
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .consumer_replay import replay_consumer_group
from .group import Group, Member
from .group_state import EMPTY, STABLE
from .pending import Ended, Place
from .share_replay import replay_share_group
from .state import OFFSETS_AT_ONCE, ShardState
from .streams_replay import replay_streams_group


def replay(
    state: ShardState, key: Buffer, value: Buffer | None, producer_id: int = NO_PRODUCER_ID
) -> None:
    """Apply one record; a kind of record that is not known is passed over.

    Raises DecodeError for bytes that are no record of `__consumer_offsets`.
    """
    entry = decode_key(key)
    if isinstance(entry, OffsetCommitKey):
        offset = None if value is None else decode_offset_commit(value)
        replay_offset(state, entry, offset, producer_id)
    elif isinstance(entry, GroupMetadataKey):
        replay_group(state, entry.group, None if value is None else decode_group_metadata(value))
    elif not replay_consumer_group(state, key, value) and not replay_streams_group(
        state, key, value
    ):
        replay_share_group(state, key, value)


def replay_offset(
    state: ShardState, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
) -> None:
    """A committed offset, or None: it is gone. In a transaction it is pending until that ends."""
    group_id, place = key.group, (key.topic, key.partition)
    if value is None:
        state.pending_offsets.drop(group_id, place)
        _forget(state, group_id, place)
    elif producer_id == NO_PRODUCER_ID:
        state.pending_offsets.overtake(group_id, place)
        _commit(state, group_id, place, value)
        state.deleted_topics.spare(group_id, place)
    else:
        _finish_end(state, producer_id)
        state.pending_offsets.add(producer_id, group_id, place, value)
        state.begin_simple_group(group_id)


def end_transaction(state: ShardState, producer_id: int, *, commit: bool) -> Iterator[int]:
    """A marker: the pending offsets of a producer count from now on, or vanish.

    Yields behind each piece how many were looked at; until the last one, readers would see a half.
    """
    _finish_end(state, producer_id)
    ended = state.pending_offsets.end(producer_id, commit=commit)
    pieces = state.ending[producer_id] = _pieces(state, producer_id, ended)
    return pieces


def _pieces(state: ShardState, producer_id: int, ended: Iterator[Ended | None]) -> Iterator[int]:
    while some := list(islice(ended, OFFSETS_AT_ONCE)):
        for each in filter(None, some):
            _commit(state, each.group_id, each.place, each.value)
        yield len(some)
    del state.ending[producer_id]


def _finish_end(state: ShardState, producer_id: int) -> None:
    """What a producer writes next must not be taken for what it wrote before its marker."""
    for _ in state.ending.get(producer_id, ()):
        pass


def _commit(state: ShardState, group_id: str, place: Place, value: OffsetCommitValue) -> None:
    state.offsets.setdefault(group_id, {})[place] = value
    state.begin_simple_group(group_id)


def _forget(state: ShardState, group_id: str, place: Place) -> None:
    offsets = state.offsets.get(group_id)
    if offsets is not None:
        offsets.pop(place, None)
        if not offsets:
            del state.offsets[group_id]


def replay_group(state: ShardState, group_id: str, value: GroupMetadataValue | None) -> None:
    """A group as it stood after a rebalance, or None: it is gone."""
    if value is None:
        state.groups.pop(group_id, None)
        return
    group = _known_group(state, group_id)
    group.stored = True
    group.state = STABLE if value.members else EMPTY
    group.state_since_ms = value.current_state_timestamp
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.is_initial = False
    _replay_members(group, value)
    group.leader_id = value.leader


def _replay_members(group: Group, value: GroupMetadataValue) -> None:
    before = dict(group.members)
    # A static member may come with a new id: it is the same member.
    members = [_known_member(group, row, before) for row in value.members]
    for gone in before.values():
        group.take_join(gone)
        group.remove(gone)
    for member, row in zip(members, value.members, strict=True):
        offered = ((value.protocol or "", bytes(row.subscription)),)
        if member.id not in group.members:
            group.add(member, value.protocol_type, offered)
        elif member.id != row.member_id:
            group.rename(member, row.member_id)
        member.client_id = row.client_id
        member.client_host = row.client_host
        member.session_timeout_ms = row.session_timeout
        member.rebalance_timeout_ms = (
            row.session_timeout if row.rebalance_timeout < 0 else row.rebalance_timeout
        )
        member.assignment = bytes(row.assignment)
        if offered[0] not in member.protocols:
            group.offer(member, offered)
    group.members = {member.id: member for member in members}  # in the order of the record
    group.keep_subscriptions()


def _known_member(
    group: Group, row: GroupMetadataValue.Member, before: dict[str, Member]
) -> Member:
    """The member of a row, taken out of `before` if it was there; else a new one."""
    member_id: str | None = row.member_id
    if member_id not in before and row.group_instance_id is not None:
        member_id = group.static_ids.get(row.group_instance_id)
    if member_id in before:
        return before.pop(member_id)
    return Member(row.member_id, row.group_instance_id, row.client_id, row.client_host)


def _known_group(state: ShardState, group_id: str) -> Group:
    group = state.groups.get(group_id)
    if group is None:
        group = state.groups[group_id] = Group(group_id)
    return group
