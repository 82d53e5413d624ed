"""Share sessions (KIP-932): which partitions a member of a share group fetches from this node.

A member names its partitions once, then only changes. Its records are released when its session ends,
also with its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError

PARTITIONS_PER_SLOT = 200
"""How many partitions the sessions remember together, for each session that there may be."""

GROUPS_MAX = 100
"""Groups in which one connection had sessions, that are remembered until it ends."""

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

TargetKey: TypeAlias = tuple[UUID, int]
"""A partition: the id of its topic, and its index."""


class User(Protocol):
    """Who fetches in a session: a connection."""

    def on_close(self, do: Callable[[], None]) -> None: ...


class ShareTarget:
    """One partition that a member fetches. `is_known` says that there was such a topic when it was
    named; `must_tell` that the next answer has it whatever there is to say."""

    __slots__ = ("is_known", "key", "must_tell")

    def __init__(self, key: TargetKey, *, is_known: bool) -> None:
        self.key = key
        self.is_known = is_known
        self.must_tell = False


class ShareSession:
    """What one member fetches, in the order in which it is served next. `epoch` is what its next
    request has to name."""

    __slots__ = ("epoch", "group_id", "member_id", "targets", "user")

    def __init__(self, group_id: str, member_id: str, user: User) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.user = user
        self.epoch = INITIAL_EPOCH + 1
        self.targets: dict[TargetKey, ShareTarget] = {}

    def move_back(self, target: ShareTarget) -> None:
        """Serve this partition after the others next time: it just got records."""
        if self.targets.pop(target.key, None) is not None:
            self.targets[target.key] = target

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class ShareSessions:
    """All share sessions of one node, bounded in number and in what they remember together.

    Parameters: `sessions_max` is how many there may be. `when_ended` is told of each session that
    ended with its connection, `when_empty` of a group that has none any more.
    """

    def __init__(
        self,
        sessions_max: int,
        when_ended: Callable[[ShareSession], None],
        when_empty: Callable[[str], None],
    ) -> None:
        self.partitions = 0
        """How many partitions the sessions remember."""
        self._sessions_max = sessions_max
        self._partitions_max = sessions_max * PARTITIONS_PER_SLOT
        self._when_ended = when_ended
        self._when_empty = when_empty
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._members: dict[str, int] = {}
        """How many members of a group have a session."""
        self._of_users: dict[User, dict[ShareSession, None]] = {}
        self._left: dict[User, dict[str, None]] = {}
        """Groups in which a user has ended sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group_id: str, member_id: str, targets: Sequence[ShareTarget], user: User
    ) -> ShareSession:
        """Begin a session, in the place of the one that the member had.

        Raises KafkaError SHARE_SESSION_LIMIT_REACHED.
        """
        before = self._sessions.get((group_id, member_id))
        if before is not None:
            self._remove(before)
        session = ShareSession(group_id, member_id, user)
        if len(self._sessions) >= self._sessions_max:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self._sessions[group_id, member_id] = session
        self._members[group_id] = self._members.get(group_id, 0) + 1
        if user not in self._of_users:
            self._of_users[user] = {}
            user.on_close(lambda: self._user_gone(user))
        self._of_users[user][session] = None
        try:
            self._update(session, targets, ())
        except KafkaError:
            self.end(session)
            raise
        return session

    def find(self, group_id: str, member_id: str) -> ShareSession:
        """The session of a member. Raises KafkaError SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def go_on(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        targets: Sequence[ShareTarget] = (),
        forgotten: Iterable[TargetKey] = (),
    ) -> ShareSession:
        """The session of a member, one request further.

        Raises KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, and
        SHARE_SESSION_LIMIT_REACHED where it names more than there is room for.
        """
        session = self.find(group_id, member_id)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        self._update(session, targets, forgotten)
        session.next_epoch()
        return session

    def is_current(self, session: ShareSession) -> bool:
        """Whether a session has not ended."""
        return self._sessions.get((session.group_id, session.member_id)) is session

    def end(self, session: ShareSession) -> None:
        """A session is over. What its group has is forgotten with the connection only: the member
        may begin another session."""
        if not self.is_current(session):
            return
        self._remove(session)
        left = self._left.setdefault(session.user, {})
        if len(left) < GROUPS_MAX:
            left[session.group_id] = None
        elif session.group_id not in left:
            self._tell_if_empty(session.group_id)

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.group_id, session.member_id]
        self.partitions -= len(session.targets)
        self._members[session.group_id] -= 1
        if not self._members[session.group_id]:
            del self._members[session.group_id]
        self._of_users[session.user].pop(session, None)

    def _tell_if_empty(self, group_id: str) -> None:
        if group_id not in self._members:
            self._when_empty(group_id)

    def _update(
        self,
        session: ShareSession,
        targets: Sequence[ShareTarget],
        forgotten: Iterable[TargetKey],
    ) -> None:
        before = len(session.targets)
        new = [target for target in targets if target.key not in session.targets]
        if new and self.partitions + len(new) > self._partitions_max:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session.targets.update((target.key, target) for target in new)
        for key in forgotten:
            session.targets.pop(key, None)
        self.partitions += len(session.targets) - before

    def _user_gone(self, user: User) -> None:
        sessions = tuple(self._of_users[user])
        for session in sessions:
            self._when_ended(session)
            self._remove(session)
        del self._of_users[user]
        groups = dict.fromkeys(session.group_id for session in sessions)
        for group_id in groups | self._left.pop(user, {}):
            self._tell_if_empty(group_id)
