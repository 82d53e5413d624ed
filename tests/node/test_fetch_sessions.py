"""Tests of fetch sessions (KIP-227)."""

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


def sessions_of(sessions_max: int = 1000, existing_partitions: int = 1_000_000) -> FetchSessions:
    return FetchSessions(sessions_max, lambda: existing_partitions)


def plan_fetch(
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


def open_session(
    sessions: FetchSessions,
    count: int = 2,
    now_ms: int = 0,
    *,
    of_follower: bool = False,
    user: Peer | None = None,
) -> int:
    targets = map(target, range(count))
    plan = plan_fetch(sessions, 0, 0, targets, of_follower=of_follower, user=user, now_ms=now_ms)
    assert not plan.incremental
    return plan.session_id


def plan_error(
    sessions: FetchSessions, session_id: int, epoch: int, by_id: bool = False
) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        plan_fetch(sessions, session_id, epoch, by_topic_id=by_id)
    return raised.value.code


def test_epoch_minus_one_creates_no_session() -> None:
    sessions = sessions_of()
    plan = plan_fetch(sessions, 0, -1, [target(0)])
    assert plan.session_id == 0
    assert len(sessions) == 0


def test_incremental_fetch_includes_all_session_partitions() -> None:
    sessions = sessions_of()
    session_id = open_session(sessions)
    plan = plan_fetch(sessions, session_id, 1, [target(1, 7)])
    assert plan.incremental
    assert [(t.key[1], t.fetch_offset) for t in plan.targets] == [(0, 0), (1, 7)]
    plan = plan_fetch(sessions, session_id, 2, [], [("t", 0)])
    assert [t.key[1] for t in plan.targets] == [1]


def test_incremental_fetch_updates_partition_parameters() -> None:
    sessions = sessions_of()
    session_id = open_session(sessions)
    newer = Target(("t", 1), 7, 2000, 3, 2, 5, 6)
    _, found = plan_fetch(sessions, session_id, 1, [newer]).targets
    for name in Target.__slots__:
        if name != "key" and not name.startswith(("_", "sent_", "topic_")):
            assert getattr(found, name) == getattr(newer, name), name


def test_invalid_session_requests_get_specific_errors() -> None:
    sessions = sessions_of()
    session_id = open_session(sessions)
    assert plan_error(sessions, session_id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plan_error(sessions, session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert plan_error(sessions, session_id, 1, True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert plan_error(sessions, session_id, 2, True) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    # A wrong epoch does not end the session.
    assert plan_fetch(sessions, session_id, 1).incremental


def test_epoch_zero_replaces_and_epoch_minus_one_closes_session() -> None:
    sessions = sessions_of()
    first = open_session(sessions)
    plan = plan_fetch(sessions, first, 0, [target(5)])
    assert plan.session_id not in (0, first)
    assert len(sessions) == 1
    plan_fetch(sessions, plan.session_id, -1)
    assert len(sessions) == 0


def test_session_epoch_wraps_to_one() -> None:
    sessions = sessions_of()
    session_id = open_session(sessions)
    plan = plan_fetch(sessions, session_id, 1)
    assert plan.session is not None
    plan.session.epoch = EPOCH_MAX
    plan_fetch(sessions, session_id, EPOCH_MAX)
    assert plan_fetch(sessions, session_id, 1).incremental


def test_full_cache_creates_sessions_only_by_evicting_old_ones() -> None:
    sessions = sessions_of(1)
    first = open_session(sessions)
    assert open_session(sessions, now_ms=EVICT_AFTER_MS - 1) == 0
    assert open_session(sessions, now_ms=EVICT_AFTER_MS) not in (0, first)
    assert len(sessions) == 1


def test_only_changed_partitions_are_included() -> None:
    one = target(0)
    assert one.must_include(0, 0, 10, 0)
    assert not one.must_include(0, 0, 10, 0)
    assert one.must_include(0, 0, 11, 0)
    assert one.must_include(0, 0, 11, 3)
    assert one.must_include(0, 500, 11, 3)
    assert not one.must_include(0, 0, 11, 3)


def test_offsets_of_ignored_response_are_sent_again_to_follower() -> None:
    """A follower ignores a response that arrives after a change of its leader epoch."""
    sessions = sessions_of()
    session_id = open_session(sessions, 1, of_follower=True)
    [known] = plan_fetch(sessions, session_id, 1, of_follower=True).targets
    assert known.must_include(0, 0, 5, 2)
    assert not known.must_include(0, 0, 5, 2)
    follower_row = Target(("t", 0), 5, 1000, 2, 1, log_start_offset=0, high_watermark=0)
    plan_fetch(sessions, session_id, 2, [follower_row], of_follower=True)
    assert (known.sent_high_watermark, known.sent_log_start_offset) == (0, 0)
    assert known.must_include(0, 0, 5, 2)
    client_id = open_session(sessions, 1)
    [known] = plan_fetch(sessions, client_id, 1).targets
    assert known.must_include(0, 0, 5, 2)
    plan_fetch(sessions, client_id, 2, [target(0, 5)])
    assert not known.must_include(0, 0, 5, 2)


def test_partition_errors_are_included_until_they_end() -> None:
    one = target(0)
    one.must_include(0, 0, 10, 0)
    assert one.must_include(3, 0, -1, -1)
    assert one.must_include(3, 0, -1, -1)
    assert one.must_include(0, 0, 10, 0)
    assert not one.must_include(0, 0, 10, 0)


def test_partition_that_returned_records_moves_to_the_end() -> None:
    sessions = sessions_of()
    session_id = open_session(sessions, 3)
    plan = plan_fetch(sessions, session_id, 1)
    assert plan.session is not None
    plan.session.move_back(("t", 0))
    plan = plan_fetch(sessions, session_id, 2)
    assert [t.key[1] for t in plan.targets] == [1, 2, 0]


def test_zero_slots_disable_sessions() -> None:
    sessions = sessions_of(0)
    assert open_session(sessions) == 0
    assert len(sessions) == 0


# -- capacity


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = sessions_of(3)
    assert open_session(sessions, 2 * PARTITIONS_PER_SLOT)
    assert open_session(sessions, PARTITIONS_PER_SLOT + 1) == 0
    assert sessions.partitions == 2 * PARTITIONS_PER_SLOT
    assert open_session(sessions, PARTITIONS_PER_SLOT)
    assert open_session(sessions, 1) == 0


def test_forgotten_partitions_free_session_slots() -> None:
    sessions = sessions_of(2)
    first = open_session(sessions, PARTITIONS_PER_SLOT)
    second = open_session(sessions, PARTITIONS_PER_SLOT)
    forgotten = [("t", index) for index in range(10)]
    plan_fetch(sessions, first, 1, [target(0), target(1)], forgotten)
    assert sessions.partitions == 2 * PARTITIONS_PER_SLOT - 10
    plan_fetch(sessions, second, -1)
    assert sessions.partitions == PARTITIONS_PER_SLOT - 10
    plan_fetch(sessions, first, 2, [], [("t", index) for index in range(PARTITIONS_PER_SLOT)])
    assert (sessions.partitions, len(sessions)) == (0, 0)


def test_session_that_outgrows_cache_is_removed() -> None:
    sessions = sessions_of(2)
    session_id = open_session(sessions, PARTITIONS_PER_SLOT)
    with pytest.raises(KafkaError) as raised:
        plan_fetch(sessions, session_id, 1, map(target, range(2 * PARTITIONS_PER_SLOT + 1)))
    assert raised.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (sessions.partitions, len(sessions)) == (0, 0)


def test_session_with_too_many_unknown_partitions_is_not_cached() -> None:
    sessions = sessions_of(existing_partitions=10)
    assert open_session(sessions, 11 + UNKNOWN_MAX) == 0
    session_id = open_session(sessions, 10 + UNKNOWN_MAX)
    assert session_id
    with pytest.raises(KafkaError):
        plan_fetch(sessions, session_id, 1, [target(10 + UNKNOWN_MAX)])
    assert len(sessions) == 0


def test_session_survives_deletion_of_its_topics() -> None:
    existing = [1000]
    sessions = FetchSessions(1000, lambda: existing[0])
    session_id = open_session(sessions, 1000)
    existing[0] = 0
    assert plan_fetch(sessions, session_id, 1, [target(0, 7)]).incremental


def test_sessions_of_closed_connections_are_evicted_first() -> None:
    sessions = sessions_of(3)
    closed_client = client()
    old, left, used = (
        open_session(sessions),
        open_session(sessions, user=closed_client),
        open_session(sessions),
    )
    closed_client.is_closed = True
    plan_fetch(sessions, used, 1, now_ms=EVICT_AFTER_MS)
    assert open_session(sessions, now_ms=EVICT_AFTER_MS)
    assert plan_error(sessions, left, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert open_session(sessions, now_ms=EVICT_AFTER_MS)
    assert plan_error(sessions, old, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert open_session(sessions, now_ms=EVICT_AFTER_MS) == 0


def test_session_belongs_to_its_most_recent_connection() -> None:
    sessions = sessions_of(1)
    first = client()
    session_id = open_session(sessions, user=first)
    plan_fetch(sessions, session_id, 1)
    first.is_closed = True
    assert open_session(sessions) == 0


def test_follower_session_evicts_client_session_but_not_vice_versa() -> None:
    sessions = sessions_of(2)
    assert open_session(sessions, of_follower=True)
    theirs = open_session(sessions, now_ms=1)
    assert open_session(sessions, now_ms=2) == 0
    assert open_session(sessions, now_ms=3, of_follower=True)
    assert plan_error(sessions, theirs, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert open_session(sessions, now_ms=4, of_follower=True) == 0


def test_no_session_is_evicted_if_that_frees_too_little() -> None:
    sessions = sessions_of(2)
    closed_client = client()
    left = open_session(sessions, 10, user=closed_client)
    closed_client.is_closed = True
    open_session(sessions, 100)
    assert open_session(sessions, 2 * PARTITIONS_PER_SLOT - 50) == 0
    assert plan_fetch(sessions, left, 1).incremental
