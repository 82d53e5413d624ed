"""Replay of records into the state. This is the only code that changes persistent state.

Loading, normal operation and failover use the same code. In normal operation, a record is replayed
into the group whose operation created it. Members that remain then keep their volatile data, which
no record contains: all supported protocols, and timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from kbroker.protocol import (
    consumer_group_metadata,
    share_group_metadata,
    streams_group_metadata,
)
from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .classic.replay import replay_group
from .common.memory import group_bytes, offset_bytes
from .common.pending import CommittedOffset, TopicPartition
from .common.record import CoordinatorRecord
from .consumer.replay import replay_consumer_group
from .share.replay import replay_share_group
from .state import OFFSETS_AT_ONCE, ShardState
from .streams.replay import replay_streams_group


def replay(state: ShardState, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
    """Apply one record. `producer_id` is the producer of a transactional batch."""
    key, value = record.key, record.value
    if isinstance(key, OffsetCommitKey):
        assert value is None or isinstance(value, OffsetCommitValue)
        replay_offset(state, key, value, producer_id)
    elif isinstance(key, GroupMetadataKey):
        assert value is None or isinstance(value, GroupMetadataValue)
        replay_group(state, key.group, value)
    elif isinstance(key, consumer_group_metadata.Key):
        replay_consumer_group(state, key, value)
    elif isinstance(key, streams_group_metadata.Key):
        replay_streams_group(state, key, value)
    elif isinstance(key, share_group_metadata.Key):
        replay_share_group(state, key, value)
    if not isinstance(key, OffsetCommitKey):
        state.memory.replay(record)


def replay_offset(
    state: ShardState, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
) -> None:
    """Replay an offset commit (value) or deletion (None).

    An offset of a transaction is pending until the transaction ends.
    """
    group_id, topic_partition = key.group, (key.topic, key.partition)
    if value is None:
        state.pending_offsets.drop(group_id, topic_partition)
        _delete_offset(state, group_id, topic_partition)
    elif producer_id == NO_PRODUCER_ID:
        state.pending_offsets.supersede(group_id, topic_partition)
        _commit(state, group_id, topic_partition, value)
        state.deleted_topics.note_commit(group_id, topic_partition)
    else:
        _finish_previous_end(state, producer_id)
        state.pending_offsets.add(producer_id, group_id, topic_partition, value)
        state.ensure_simple_group(group_id)


def end_transaction(state: ShardState, producer_id: int, *, commit: bool) -> Iterator[int]:
    """Apply a transaction marker: a producer's pending offsets become visible or are dropped.

    Readers must not use the groups until the iterator is exhausted: they would see part of the
    offsets.

    Yields:
        The number of offsets processed in each piece.
    """
    _finish_previous_end(state, producer_id)
    ended = state.pending_offsets.end(producer_id, commit=commit)
    pieces = state.ending[producer_id] = _apply_in_pieces(state, producer_id, ended)
    return pieces


def _apply_in_pieces(
    state: ShardState, producer_id: int, ended: Iterator[CommittedOffset | None]
) -> Iterator[int]:
    while piece := list(islice(ended, OFFSETS_AT_ONCE)):
        for each in filter(None, piece):
            _commit(state, each.group_id, each.topic_partition, each.value)
        yield len(piece)
    del state.ending[producer_id]


def _finish_previous_end(state: ShardState, producer_id: int) -> None:
    """Finish the producer's previous marker, so that it does not apply to newer offsets."""
    for _ in state.ending.get(producer_id, ()):
        pass


def _commit(
    state: ShardState, group_id: str, topic_partition: TopicPartition, value: OffsetCommitValue
) -> None:
    offsets = state.offsets.get(group_id)
    if offsets is None:
        offsets = state.offsets[group_id] = {}
        state.memory.change_offsets(group_bytes(group_id))
    before = offsets.get(topic_partition)
    size = offset_bytes(topic_partition[0], value)
    state.memory.change_offsets(
        size if before is None else size - offset_bytes(topic_partition[0], before)
    )
    offsets[topic_partition] = value
    state.ensure_simple_group(group_id)


def _delete_offset(state: ShardState, group_id: str, topic_partition: TopicPartition) -> None:
    offsets = state.offsets.get(group_id)
    if offsets is not None:
        value = offsets.pop(topic_partition, None)
        if value is not None:
            state.memory.change_offsets(-offset_bytes(topic_partition[0], value))
        if not offsets:
            del state.offsets[group_id]
            state.memory.change_offsets(-group_bytes(group_id))
