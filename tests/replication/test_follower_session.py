"""Requests of a follower in a fetch session (KIP-227)."""

import uuid

from kbroker.replication.follower_session import (
    EPOCH_MAX,
    FollowerSession,
    Position,
    forgotten_rows,
    topic_rows,
)

TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
A, B, C = (TOPIC, 0), (TOPIC, 1), (OTHER, 0)


def position_at(offset: int) -> Position:
    return Position(offset, 0, 3, 2, 0)


def opened(session_id: int = 7) -> FollowerSession:
    session = FollowerSession()
    assert session.update({A: position_at(0), B: position_at(0)}, ()) == ([A, B], [])
    session.opened(session_id)
    return session


def test_later_requests_contain_only_changes() -> None:
    session = opened()
    assert (session.id, session.epoch, session.is_new) == (7, 1, False)
    assert session.update({A: position_at(0), B: position_at(4)}, ()) == ([B], [])
    assert session.sent_position(A) == position_at(0)
    assert session.sent_position(B) == position_at(4)
    session.opened(7)
    assert session.epoch == 2
    assert session.update({C: position_at(0)}, [A]) == ([C], [A])
    assert session.sent_position(A) is None


def test_partition_unknown_to_the_leader_is_not_forgotten() -> None:
    assert opened().update({}, [C]) == ([], [])


def test_reset_sends_all_partitions_and_closes_the_session() -> None:
    session = opened()
    session.reset()
    assert (session.id, session.epoch) == (7, 0)
    assert session.sent_position(A) is None
    assert session.update({A: position_at(0), B: position_at(0)}, ()) == ([A, B], [])


def test_requests_without_a_session_contain_all_partitions() -> None:
    session = opened(0)
    assert session.is_new
    assert session.sent_position(A) == position_at(0), "the response to this request is pending"
    assert session.update({A: position_at(0), B: position_at(0)}, ()) == ([A, B], [])


def test_session_epoch_wraps_to_one() -> None:
    session = opened()
    session.epoch = EPOCH_MAX
    session.opened(7)
    assert session.epoch == 1


def test_rows_are_grouped_by_topic() -> None:
    positions = {A: position_at(1), C: position_at(2), B: Position(9, 4, 5, 6, 8)}
    first, second = topic_rows(positions, positions, 1000)
    assert (first.topic_id, [row.partition for row in first.partitions]) == (TOPIC, [0, 1])
    assert (second.topic_id, [row.fetch_offset for row in second.partitions]) == (OTHER, [2])
    row = first.partitions[1]
    assert (row.fetch_offset, row.log_start_offset, row.current_leader_epoch) == (9, 4, 5)
    assert (row.last_fetched_epoch, row.high_watermark, row.partition_max_bytes) == (6, 8, 1000)
    (forgotten,) = forgotten_rows([A, B])
    assert (forgotten.topic_id, forgotten.partitions) == (TOPIC, [0, 1])
