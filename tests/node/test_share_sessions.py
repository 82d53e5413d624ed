"""Tests of share sessions: epochs, removal, and limits."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from kbroker.node import share_sessions
from kbroker.node.share_sessions import EPOCH_MAX, ShareSession, ShareSessions, ShareTarget
from kbroker.protocol.errors import ErrorCode, KafkaError

TOPIC = UUID(int=1)
LIMIT = ErrorCode.SHARE_SESSION_LIMIT_REACHED


class Client:
    """A replacement of a connection that calls its close callbacks."""

    def __init__(self) -> None:
        self.close_callbacks: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self.close_callbacks.append(callback)

    def close(self) -> None:
        for callback in self.close_callbacks:
            callback()


class SessionRecorder:
    """Share sessions that record which sessions ended and which groups became empty."""

    def __init__(self, sessions_max: int = 10) -> None:
        self.ended: list[str] = []
        self.empty: list[str] = []
        self.sessions = ShareSessions(sessions_max, self._ended, self.empty.append)

    def _ended(self, session: ShareSession) -> None:
        assert self.sessions.is_current(session)
        self.ended.append(session.member_id)

    def open(self, member: str, user: Client, count: int = 1, *, group: str = "g") -> ShareSession:
        return self.sessions.open(group, member, targets(count), user)


def targets(count: int, first: int = 0) -> list[ShareTarget]:
    return [ShareTarget((TOPIC, first + number), is_known=True) for number in range(count)]


def error_of(callback: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        callback()
    return raised.value.code


def test_session_epoch_increases_per_request() -> None:
    recorder = SessionRecorder()
    session = recorder.open("a", Client())
    assert session.epoch == 1
    assert recorder.sessions.advance("g", "a", 1) is session
    assert session.epoch == 2
    wrong = error_of(lambda: recorder.sessions.advance("g", "a", 1))
    assert wrong == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session.epoch = EPOCH_MAX
    recorder.sessions.advance("g", "a", EPOCH_MAX)
    assert session.epoch == 1


def test_closed_connection_ends_its_sessions() -> None:
    recorder, client, other = SessionRecorder(), Client(), Client()
    recorder.open("a", client)
    recorder.open("b", other)
    client.close()
    assert (recorder.ended, recorder.empty) == (["a"], [])
    other.close()
    assert (recorder.ended, recorder.empty) == (["a", "b"], ["g"])
    assert recorder.sessions.partitions == 0


def test_replaced_session_reports_no_end() -> None:
    recorder, client, other = SessionRecorder(), Client(), Client()
    before = recorder.open("a", client)
    recorder.open("a", other)
    client.close()
    assert not recorder.sessions.is_current(before)
    assert (recorder.ended, recorder.empty) == ([], [])
    assert len(recorder.sessions) == 1


def test_empty_group_is_reported_when_connection_closes() -> None:
    recorder, client = SessionRecorder(), Client()
    recorder.sessions.end(recorder.open("a", client))
    assert recorder.empty == []
    client.close()
    assert (recorder.ended, recorder.empty) == ([], ["g"])


def test_empty_groups_per_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "GROUPS_MAX", 2)
    recorder, client = SessionRecorder(), Client()
    for group in "xyz":
        recorder.sessions.end(recorder.open("a", client, group=group))
    assert recorder.empty == ["z"]
    client.close()
    assert recorder.empty == ["z", "x", "y"]


def test_sessions_above_limit_are_rejected() -> None:
    recorder, client = SessionRecorder(1), Client()
    recorder.open("a", client)
    assert error_of(lambda: recorder.open("b", client)) == LIMIT
    recorder.open("a", client)
    assert len(recorder.sessions) == 1


def test_partitions_above_limit_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_PER_SLOT", 5)
    recorder, client = SessionRecorder(2), Client()
    recorder.open("a", client, 6)
    assert error_of(lambda: recorder.open("b", client, 5)) == LIMIT
    assert len(recorder.sessions) == 1
    assert error_of(lambda: recorder.sessions.advance("g", "a", 1, targets(5, 6))) == LIMIT
    forgotten = [(TOPIC, number) for number in range(3)]
    recorder.sessions.advance("g", "a", 1, [], forgotten)
    assert recorder.sessions.partitions == 3
    recorder.open("b", client, 5)
