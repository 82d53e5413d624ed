"""Fetch sessions (KIP-227)."""

from collections.abc import Iterable, Sequence

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.handlers.context import Peer
from kbroker.node.fetch_sessions import (
    EPOCH_MAX,
    EVICT_AFTER_MS,
    PARTITIONS_PER_SLOT,
    UNKNOWN_MAX,
    FetchPlan,
    FetchSessions,
    Target,
    TargetKey,
)
from kbroker.protocol.errors import ErrorCode, KafkaError


def client() -> Peer:
    return Peer("127.0.0.1", Endpoint("127.0.0.1", 9092), "PLAINTEXT", None)


def target(index: int, offset: int = 0) -> Target:
    return Target(("t", index), offset, 1000, -1, -1)


def sessions_of(sessions_max: int = 1000, partitions_there: int = 1_000_000) -> FetchSessions:
    return FetchSessions(sessions_max, lambda: partitions_there)


def asked(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    targets: Iterable[Target] = (),
    forgotten: Sequence[TargetKey] = (),
    *,
    by_topic_id: bool = False,
    of_follower: bool = False,
    user: Peer | None = None,
    now_ms: int = 0,
) -> FetchPlan:
    return sessions.plan(
        session_id,
        epoch,
        list(targets),
        forgotten,
        by_topic_id=by_topic_id,
        of_follower=of_follower,
        user=user or client(),
        now_ms=now_ms,
    )


def opened(
    sessions: FetchSessions,
    count: int = 2,
    now_ms: int = 0,
    *,
    of_follower: bool = False,
    user: Peer | None = None,
) -> int:
    targets = map(target, range(count))
    plan = asked(sessions, 0, 0, targets, of_follower=of_follower, user=user, now_ms=now_ms)
    assert not plan.incremental
    return plan.session_id


def refused(sessions: FetchSessions, session_id: int, epoch: int, by_id: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        asked(sessions, session_id, epoch, by_topic_id=by_id)
    return raised.value.code


def test_epoch_minus_one_has_no_session() -> None:
    sessions = sessions_of()
    plan = asked(sessions, 0, -1, [target(0)])
    assert plan.session_id == 0
    assert len(sessions) == 0


def test_an_incremental_request_fetches_all_that_the_session_knows() -> None:
    sessions = sessions_of()
    session_id = opened(sessions)
    plan = asked(sessions, session_id, 1, [target(1, 7)])
    assert plan.incremental
    assert [(t.key[1], t.fetch_offset) for t in plan.targets] == [(0, 0), (1, 7)]
    plan = asked(sessions, session_id, 2, [], [("t", 0)])
    assert [t.key[1] for t in plan.targets] == [1]


def test_a_client_that_asks_for_other_sizes_and_epochs_is_heard() -> None:
    sessions = sessions_of()
    session_id = opened(sessions)
    newer = Target(("t", 1), 7, 2000, 3, 2, 5, 6)
    _, found = asked(sessions, session_id, 1, [newer]).targets
    for name in Target.__slots__:
        if name != "key" and not name.startswith(("_", "told_", "topic_")):
            assert getattr(found, name) == getattr(newer, name), name


def test_wrong_id_wrong_epoch_and_mixed_names_each_have_their_code() -> None:
    sessions = sessions_of()
    session_id = opened(sessions)
    assert refused(sessions, session_id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refused(sessions, session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refused(sessions, session_id, 1, True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    # After a wrong epoch the session still works at the right one.
    assert asked(sessions, session_id, 1).incremental


def test_epoch_zero_with_an_id_replaces_the_session_and_minus_one_closes_it() -> None:
    sessions = sessions_of()
    first = opened(sessions)
    plan = asked(sessions, first, 0, [target(5)])
    assert plan.session_id not in (0, first)
    assert len(sessions) == 1
    asked(sessions, plan.session_id, -1)
    assert len(sessions) == 0


def test_epochs_wrap_to_one() -> None:
    sessions = sessions_of()
    session_id = opened(sessions)
    plan = asked(sessions, session_id, 1)
    assert plan.session is not None
    plan.session.epoch = EPOCH_MAX
    asked(sessions, session_id, EPOCH_MAX)
    assert asked(sessions, session_id, 1).incremental


def test_a_full_cache_gives_no_session_until_one_is_old() -> None:
    sessions = sessions_of(1)
    first = opened(sessions)
    assert opened(sessions, now_ms=EVICT_AFTER_MS - 1) == 0
    assert opened(sessions, now_ms=EVICT_AFTER_MS) not in (0, first)
    assert len(sessions) == 1


def test_only_what_changed_is_told() -> None:
    one = target(0)
    assert one.must_include(0, 0, 10, 0)
    assert not one.must_include(0, 0, 10, 0)
    assert one.must_include(0, 0, 11, 0)
    assert one.must_include(0, 0, 11, 3)
    assert one.must_include(0, 500, 11, 3)
    assert not one.must_include(0, 0, 11, 3)


def test_an_error_is_told_each_time_and_its_end_too() -> None:
    one = target(0)
    one.must_include(0, 0, 10, 0)
    assert one.must_include(3, 0, -1, -1)
    assert one.must_include(3, 0, -1, -1)
    assert one.must_include(0, 0, 10, 0)
    assert not one.must_include(0, 0, 10, 0)


def test_a_partition_that_got_records_is_served_last_next_time() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 3)
    plan = asked(sessions, session_id, 1)
    assert plan.session is not None
    plan.session.move_back(("t", 0))
    plan = asked(sessions, session_id, 2)
    assert [t.key[1] for t in plan.targets] == [1, 2, 0]


def test_no_sessions_at_all() -> None:
    sessions = sessions_of(0)
    assert opened(sessions) == 0
    assert len(sessions) == 0


# -- room


def test_all_sessions_together_are_bounded_in_partitions() -> None:
    sessions = sessions_of(3)
    assert opened(sessions, 2 * PARTITIONS_PER_SLOT)
    assert opened(sessions, PARTITIONS_PER_SLOT + 1) == 0
    assert sessions.partitions == 2 * PARTITIONS_PER_SLOT
    assert opened(sessions, PARTITIONS_PER_SLOT)
    assert opened(sessions, 1) == 0


def test_what_leaves_makes_room() -> None:
    sessions = sessions_of(2)
    first = opened(sessions, PARTITIONS_PER_SLOT)
    second = opened(sessions, PARTITIONS_PER_SLOT)
    gone = [("t", index) for index in range(10)]
    asked(sessions, first, 1, [target(0), target(1)], gone)
    assert sessions.partitions == 2 * PARTITIONS_PER_SLOT - 10
    asked(sessions, second, -1)
    assert sessions.partitions == PARTITIONS_PER_SLOT - 10
    asked(sessions, first, 2, [], [("t", index) for index in range(PARTITIONS_PER_SLOT)])
    assert (sessions.partitions, len(sessions)) == (0, 0)


def test_a_session_that_outgrows_the_room_ends() -> None:
    sessions = sessions_of(2)
    session_id = opened(sessions, PARTITIONS_PER_SLOT)
    with pytest.raises(KafkaError) as raised:
        asked(sessions, session_id, 1, map(target, range(2 * PARTITIONS_PER_SLOT + 1)))
    assert raised.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (sessions.partitions, len(sessions)) == (0, 0)


def test_a_session_of_partitions_that_are_mostly_made_up_is_not_remembered() -> None:
    sessions = sessions_of(partitions_there=10)
    assert opened(sessions, 11 + UNKNOWN_MAX) == 0
    session_id = opened(sessions, 10 + UNKNOWN_MAX)
    assert session_id
    with pytest.raises(KafkaError):
        asked(sessions, session_id, 1, [target(10 + UNKNOWN_MAX)])
    assert len(sessions) == 0


def test_a_session_stays_when_its_topics_are_deleted() -> None:
    there = [1000]
    sessions = FetchSessions(1000, lambda: there[0])
    session_id = opened(sessions, 1000)
    there[0] = 0
    assert asked(sessions, session_id, 1, [target(0, 7)]).incremental


def test_sessions_of_closed_connections_go_first() -> None:
    sessions = sessions_of(3)
    leaver = client()
    old, left, used = opened(sessions), opened(sessions, user=leaver), opened(sessions)
    leaver.is_closed = True
    asked(sessions, used, 1, now_ms=EVICT_AFTER_MS)
    assert opened(sessions, now_ms=EVICT_AFTER_MS)
    assert refused(sessions, left, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(sessions, now_ms=EVICT_AFTER_MS)
    assert refused(sessions, old, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(sessions, now_ms=EVICT_AFTER_MS) == 0


def test_a_session_belongs_to_the_connection_that_used_it_last() -> None:
    sessions = sessions_of(1)
    first = client()
    session_id = opened(sessions, user=first)
    asked(sessions, session_id, 1)
    first.is_closed = True
    assert opened(sessions) == 0


def test_a_client_makes_way_for_a_follower_but_not_the_other_way() -> None:
    sessions = sessions_of(2)
    assert opened(sessions, of_follower=True)
    theirs = opened(sessions, now_ms=1)
    assert opened(sessions, now_ms=2) == 0
    assert opened(sessions, now_ms=3, of_follower=True)
    assert refused(sessions, theirs, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert opened(sessions, now_ms=4, of_follower=True) == 0


def test_nobody_makes_way_where_that_is_not_enough() -> None:
    sessions = sessions_of(2)
    leaver = client()
    left = opened(sessions, 10, user=leaver)
    leaver.is_closed = True
    opened(sessions, 100)
    assert opened(sessions, 2 * PARTITIONS_PER_SLOT - 50) == 0
    assert asked(sessions, left, 1).incremental
