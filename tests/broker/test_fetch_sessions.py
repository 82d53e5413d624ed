"""Fetch sessions (KIP-227)."""

import pytest

from kbroker.fetch_sessions import EPOCH_MAX, EVICT_AFTER_MS, FetchSessions, Target
from kbroker.protocol.errors import ErrorCode, KafkaError


def target(index: int, offset: int = 0) -> Target:
    return Target(("t", index), offset, 1000, -1, -1)


def opened(sessions: FetchSessions, count: int = 2, now_ms: int = 0) -> int:
    targets = [target(i) for i in range(count)]
    plan = sessions.plan(0, 0, targets, (), by_topic_id=False, now_ms=now_ms)
    assert not plan.incremental
    return plan.session_id


def refused(sessions: FetchSessions, session_id: int, epoch: int, by_id: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        sessions.plan(session_id, epoch, [], (), by_topic_id=by_id, now_ms=0)
    return raised.value.code


def test_epoch_minus_one_has_no_session() -> None:
    sessions = FetchSessions()
    plan = sessions.plan(0, -1, [target(0)], (), by_topic_id=False, now_ms=0)
    assert plan.session_id == 0
    assert len(sessions) == 0


def test_an_incremental_request_fetches_all_that_the_session_knows() -> None:
    sessions = FetchSessions()
    session_id = opened(sessions)
    plan = sessions.plan(session_id, 1, [target(1, 7)], (), by_topic_id=False, now_ms=0)
    assert plan.incremental
    assert [(t.key[1], t.fetch_offset) for t in plan.targets] == [(0, 0), (1, 7)]
    plan = sessions.plan(session_id, 2, [], [("t", 0)], by_topic_id=False, now_ms=0)
    assert [t.key[1] for t in plan.targets] == [1]


def test_wrong_id_wrong_epoch_and_mixed_names_each_have_their_code() -> None:
    sessions = FetchSessions()
    session_id = opened(sessions)
    assert refused(sessions, session_id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refused(sessions, session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refused(sessions, session_id, 1, True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    # After a wrong epoch the session still works at the right one.
    assert sessions.plan(session_id, 1, [], (), by_topic_id=False, now_ms=0).incremental


def test_epoch_zero_with_an_id_replaces_the_session_and_minus_one_closes_it() -> None:
    sessions = FetchSessions()
    first = opened(sessions)
    plan = sessions.plan(first, 0, [target(5)], (), by_topic_id=False, now_ms=0)
    assert plan.session_id not in (0, first)
    assert len(sessions) == 1
    sessions.plan(plan.session_id, -1, [], (), by_topic_id=False, now_ms=0)
    assert len(sessions) == 0


def test_epochs_wrap_to_one() -> None:
    sessions = FetchSessions()
    session_id = opened(sessions)
    plan = sessions.plan(session_id, 1, [], (), by_topic_id=False, now_ms=0)
    assert plan.session is not None
    plan.session.epoch = EPOCH_MAX
    sessions.plan(session_id, EPOCH_MAX, [], (), by_topic_id=False, now_ms=0)
    assert sessions.plan(session_id, 1, [], (), by_topic_id=False, now_ms=0).incremental


def test_a_full_cache_gives_no_session_until_one_is_old() -> None:
    sessions = FetchSessions(sessions_max=1)
    first = opened(sessions)
    assert opened(sessions, now_ms=EVICT_AFTER_MS - 1) == 0
    assert opened(sessions, now_ms=EVICT_AFTER_MS) not in (0, first)
    assert len(sessions) == 1


def test_only_what_changed_is_told() -> None:
    one = target(0)
    assert one.must_tell(0, 0, 10, 0)
    assert not one.must_tell(0, 0, 10, 0)
    assert one.must_tell(0, 0, 11, 0)
    assert one.must_tell(0, 0, 11, 3)
    assert one.must_tell(0, 500, 11, 3)
    assert not one.must_tell(0, 0, 11, 3)


def test_an_error_is_told_each_time_and_its_end_too() -> None:
    one = target(0)
    one.must_tell(0, 0, 10, 0)
    assert one.must_tell(3, 0, -1, -1)
    assert one.must_tell(3, 0, -1, -1)
    assert one.must_tell(0, 0, 10, 0)
    assert not one.must_tell(0, 0, 10, 0)


def test_a_partition_that_got_records_is_served_last_next_time() -> None:
    sessions = FetchSessions()
    session_id = opened(sessions, 3)
    plan = sessions.plan(session_id, 1, [], (), by_topic_id=False, now_ms=0)
    assert plan.session is not None
    plan.session.move_back(("t", 0))
    plan = sessions.plan(session_id, 2, [], (), by_topic_id=False, now_ms=0)
    assert [t.key[1] for t in plan.targets] == [1, 2, 0]


def test_no_sessions_at_all() -> None:
    sessions = FetchSessions(sessions_max=0)
    assert opened(sessions) == 0
    assert len(sessions) == 0
