"""Sessions of the members of consumer groups, share groups and streams groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from .result import Now, Result
from .timers import Timers


class SessionSettings(Protocol):
    """Settings of a group that sessions depend on."""

    @property
    def session_timeout_ms(self) -> int: ...

    @property
    def heartbeat_interval_ms(self) -> int: ...


class SessionMember(Protocol):
    """A member that has a session."""

    @property
    def id(self) -> str: ...


M = TypeVar("M", bound=SessionMember)
MemberT_co = TypeVar("MemberT_co", bound=SessionMember, covariant=True)


class SessionGroup(Protocol[MemberT_co]):
    """A group whose members have sessions.

    Attributes:
        last_heartbeat_ms: Time of the last heartbeat of each member in ms of the monotonic clock, by
            member ID.
    """

    @property
    def id(self) -> str: ...

    @property
    def members(self) -> Mapping[str, MemberT_co]: ...

    @property
    def last_heartbeat_ms(self) -> dict[str, int]: ...


class MemberSessions(Generic[M]):
    """Sessions of the members of all groups of one type.

    The timer of a session has the key (kind, group ID, member ID).

    Args:
        kind: First element of the timer keys.
        timers: Timers of the shard.
        settings: Returns the current settings of a group, by group ID.
    """

    def __init__(
        self,
        kind: str,
        timers: Timers[tuple[str, str, str]],
        settings: Callable[[str], SessionSettings],
    ) -> None:
        self._kind = kind
        self._timers = timers
        self._settings = settings

    def timeout_ms(self, member: M, settings: SessionSettings) -> int:
        """Return the session timeout of a member."""
        return settings.session_timeout_ms

    def keep_alive(
        self, group: SessionGroup[M], member: M, now: Now, settings: SessionSettings
    ) -> None:
        """Restart the session of a member that has sent a heartbeat."""
        group.last_heartbeat_ms[member.id] = now.coordinator_ms
        at_ms = now.coordinator_ms + self.timeout_ms(member, settings)
        self._timers.schedule((self._kind, group.id, member.id), at_ms)

    def restart(self, group: SessionGroup[M], now: Now) -> None:
        """Restart the sessions of all members of a group."""
        settings = self._settings(group.id)
        for member in group.members.values():
            self.keep_alive(group, member, now, settings)

    def end(self, group_id: str, member_id: str, now: Now) -> None:
        """Expire the session of a member now."""
        self._timers.schedule((self._kind, group_id, member_id), now.coordinator_ms)

    def retry(self, key: tuple[str, str, str], now: Now) -> Result[None]:
        """Reschedule a timer after its records could not be stored.

        Without the timer, the member would stay in the group forever.
        """
        interval_ms = self._settings(key[1]).heartbeat_interval_ms
        self._timers.schedule(key, now.coordinator_ms + interval_ms)
        return Result()
