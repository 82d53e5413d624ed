"""Share sessions: epochs, what ends them, and how much they remember."""

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
    """A connection."""

    def __init__(self) -> None:
        self.farewells: list[Callable[[], None]] = []

    def on_close(self, do: Callable[[], None]) -> None:
        self.farewells.append(do)

    def leave(self) -> None:
        for do in self.farewells:
            do()


class Heard:
    """Sessions, and what was heard of their ends."""

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


def refused(do: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        do()
    return refusal.value.code


def test_epochs_go_up() -> None:
    heard = Heard()
    session = heard.open("a", Client())
    assert session.epoch == 1
    assert heard.sessions.advance("g", "a", 1) is session
    assert session.epoch == 2
    wrong = refused(lambda: heard.sessions.advance("g", "a", 1))
    assert wrong == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session.epoch = EPOCH_MAX
    heard.sessions.advance("g", "a", EPOCH_MAX)
    assert session.epoch == 1


def test_a_connection_ends_its_sessions() -> None:
    heard, client, other = Heard(), Client(), Client()
    heard.open("a", client)
    heard.open("b", other)
    client.leave()
    assert (heard.ended, heard.empty) == (["a"], [])
    other.leave()
    assert (heard.ended, heard.empty) == (["a", "b"], ["g"])
    assert heard.sessions.partitions == 0


def test_a_session_that_was_replaced_has_no_end() -> None:
    heard, client, other = Heard(), Client(), Client()
    before = heard.open("a", client)
    heard.open("a", other)
    client.leave()
    assert not heard.sessions.is_current(before)
    assert (heard.ended, heard.empty) == ([], [])
    assert len(heard.sessions) == 1


def test_a_group_is_forgotten_with_the_connection_of_its_last_session() -> None:
    heard, client = Heard(), Client()
    heard.sessions.end(heard.open("a", client))
    assert heard.empty == []
    client.leave()
    assert (heard.ended, heard.empty) == ([], ["g"])


def test_not_of_any_number_of_groups_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "GROUPS_MAX", 2)
    heard, client = Heard(), Client()
    for group in "xyz":
        heard.sessions.end(heard.open("a", client, group=group))
    assert heard.empty == ["z"]
    client.leave()
    assert heard.empty == ["z", "x", "y"]


def test_only_so_many_sessions() -> None:
    heard, client = Heard(1), Client()
    heard.open("a", client)
    assert refused(lambda: heard.open("b", client)) == LIMIT
    heard.open("a", client)
    assert len(heard.sessions) == 1


def test_only_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_PER_SLOT", 5)
    heard, client = Heard(2), Client()
    heard.open("a", client, 6)
    assert refused(lambda: heard.open("b", client, 5)) == LIMIT
    assert len(heard.sessions) == 1
    assert refused(lambda: heard.sessions.advance("g", "a", 1, targets(5, 6))) == LIMIT
    gone = [(TOPIC, number) for number in range(3)]
    heard.sessions.advance("g", "a", 1, [], gone)
    assert heard.sessions.partitions == 3
    heard.open("b", client, 5)
