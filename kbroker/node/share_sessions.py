"""Share sessions (KIP-932): the partitions that share group members fetch from this node.

A member names its partitions once, then only changes. The member's acquired records are released
when its session or its connection closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError

# The sessions together store at most this number of partitions for each possible session.
PARTITIONS_PER_SLOT = 200

# Maximum number of groups with closed sessions that are stored per connection.
GROUPS_MAX = 100

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

# A partition: the ID of its topic, and its index.
TargetKey: TypeAlias = tuple[UUID, int]


class User(Protocol):
    """Connection that uses a session."""

    def on_close(self, do: Callable[[], None]) -> None: ...


class ShareTarget:
    """One partition that a member fetches.

    Attributes:
        key: The partition.
        is_known: True if the topic existed when the member named it.
        must_include: True if the next response must list the partition.
    """

    __slots__ = ("is_known", "key", "must_include")

    def __init__(self, key: TargetKey, *, is_known: bool) -> None:
        self.key = key
        self.is_known = is_known
        self.must_include = False


class ShareSession:
    """Partitions that one member fetches, in the order of their next reads.

    Attributes:
        group_id: Group ID.
        member_id: Member ID.
        user: Connection of the member.
        epoch: Session epoch that the next request must have.
        targets: The partitions.
    """

    __slots__ = ("epoch", "group_id", "member_id", "targets", "user")

    def __init__(self, group_id: str, member_id: str, user: User) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.user = user
        self.epoch = INITIAL_EPOCH + 1
        self.targets: dict[TargetKey, ShareTarget] = {}

    def move_back(self, target: ShareTarget) -> None:
        """Move a partition to the end, because the member just got its records."""
        if self.targets.pop(target.key, None) is not None:
            self.targets[target.key] = target

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class ShareSessions:
    """Share sessions of one node, with a bounded number of sessions and partitions.

    Args:
        sessions_max: Maximum number of sessions.
        on_ended: Called with each session that closed with its connection.
        on_empty: Called with the ID of a group that has no session left.
    """

    def __init__(
        self,
        sessions_max: int,
        on_ended: Callable[[ShareSession], None],
        on_empty: Callable[[str], None],
    ) -> None:
        # Number of partitions of all sessions.
        self.partitions = 0
        self._sessions_max = sessions_max
        self._partitions_max = sessions_max * PARTITIONS_PER_SLOT
        self._on_ended = on_ended
        self._on_empty = on_empty
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        # Number of members with a session, by group ID.
        self._members: dict[str, int] = {}
        self._of_users: dict[User, dict[ShareSession, None]] = {}
        # IDs of groups in which a connection closed sessions.
        self._closed_groups: dict[User, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group_id: str, member_id: str, targets: Sequence[ShareTarget], user: User
    ) -> ShareSession:
        """Open a session, replacing the member's previous one.

        Raises:
            KafkaError: SHARE_SESSION_LIMIT_REACHED.
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
            user.on_close(lambda: self._on_connection_closed(user))
        self._of_users[user][session] = None
        try:
            self._update(session, targets, ())
        except KafkaError:
            self.end(session)
            raise
        return session

    def find(self, group_id: str, member_id: str) -> ShareSession:
        """Return the session of a member.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def advance(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        targets: Sequence[ShareTarget] = (),
        forgotten: Iterable[TargetKey] = (),
    ) -> ShareSession:
        """Advance the session of a member by one request, and return it.

        Args:
            group_id: Group ID.
            member_id: Member ID.
            epoch: Session epoch of the request.
            targets: Partitions that the request adds.
            forgotten: Partitions that the request removes.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, or
                SHARE_SESSION_LIMIT_REACHED if the limit of partitions is exceeded.
        """
        session = self.find(group_id, member_id)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        self._update(session, targets, forgotten)
        session.next_epoch()
        return session

    def is_current(self, session: ShareSession) -> bool:
        """Return True if a session is open."""
        return self._sessions.get((session.group_id, session.member_id)) is session

    def end(self, session: ShareSession) -> None:
        """Close a session.

        `on_empty` is called when the connection closes, because the member may open another one.
        """
        if not self.is_current(session):
            return
        self._remove(session)
        groups = self._closed_groups.setdefault(session.user, {})
        if len(groups) < GROUPS_MAX:
            groups[session.group_id] = None
        elif session.group_id not in groups:
            self._notify_if_empty(session.group_id)

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.group_id, session.member_id]
        self.partitions -= len(session.targets)
        self._members[session.group_id] -= 1
        if not self._members[session.group_id]:
            del self._members[session.group_id]
        self._of_users[session.user].pop(session, None)

    def _notify_if_empty(self, group_id: str) -> None:
        if group_id not in self._members:
            self._on_empty(group_id)

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

    def _on_connection_closed(self, user: User) -> None:
        sessions = tuple(self._of_users[user])
        for session in sessions:
            self._on_ended(session)
            self._remove(session)
        del self._of_users[user]
        groups = dict.fromkeys(session.group_id for session in sessions)
        for group_id in groups | self._closed_groups.pop(user, {}):
            self._notify_if_empty(group_id)
