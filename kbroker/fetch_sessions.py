"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

A session remembers what the client fetches and what it was last told, so that a request without
partitions fetches all of them and a response lists only what changed.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable

from kbroker.protocol.errors import ErrorCode, KafkaError

from .replica import Replica

SESSIONS_MAX = 1000
EVICT_AFTER_MS = 120_000
"""A session that was used since then is not evicted for a new one (Kafka's rule)."""

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

TargetKey = tuple[uuid.UUID | str, int]
"""A partition by topic id (Fetch 13+) or topic name, and index."""


class Target:
    """One partition that a client or a follower fetches: from where, and what it was last told.

    `max_bytes` bounds this partition's records; the epochs are -1 where the client knows none.
    `log_start_offset` and `high_watermark` are those of a follower.
    """

    __slots__ = (
        "_read_term",
        "_replica",
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "told_high_watermark",
        "told_log_start_offset",
        "topic_name",
    )

    def __init__(
        self,
        key: TargetKey,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        log_start_offset: int = -1,
        high_watermark: int = -1,
    ) -> None:
        self.key = key
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.told_high_watermark = -1
        self.told_log_start_offset = -1
        self.topic_name: str | None = None
        """The name behind a topic id, once it was found: the id may go, and the name come back."""
        self._replica: Replica | None = None
        self._read_term = -1

    def update(self, newer: Target) -> None:
        """Take over what the client asks for now; keep what it was told."""
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset
        self.high_watermark = newer.high_watermark
        self._replica = None

    def was_read(self, replica: Replica | None) -> None:
        """Take note of what was read; None when that was an error."""
        self._replica = replica
        self._read_term = replica.term if replica is not None else -1

    def was_read_as(self, replica: Replica) -> bool:
        """Whether `replica` is what was read last, in the same role and under the same leader."""
        return replica is self._replica and replica.term == self._read_term

    def idle_replica(self, *, to_log_end: bool = False) -> Replica | None:
        """What was read last, if it can have nothing new: the client has read all of it, was told
        so, and nothing has happened since. Followers read `to_log_end`.

        A client may follow thousands of partitions, most of which are idle: this is what each of
        them costs in each fetch.
        """
        replica = self._replica
        if replica is None or replica.closed or not self.was_read_as(replica):
            return None
        log = replica.log
        is_idle = (
            self.fetch_offset == (log.log_end_offset if to_log_end else log.high_watermark)
            and log.high_watermark == self.told_high_watermark
            and log.log_start_offset == self.told_log_start_offset
        )
        return replica if is_idle else None

    def must_tell(self, error: int, size: int, high_watermark: int, log_start_offset: int) -> bool:
        """True when an incremental response must list this partition; remembers what it says.

        A partition with an error is listed each time, and in full once the error has gone.
        """
        changed = (
            error != 0
            or size > 0
            or high_watermark != self.told_high_watermark
            or log_start_offset != self.told_log_start_offset
        )
        self.told_high_watermark = -1 if error else high_watermark
        self.told_log_start_offset = -1 if error else log_start_offset
        return changed


class Session:
    """What one client fetches, in the order in which it is served next."""

    __slots__ = ("by_topic_id", "epoch", "id", "targets", "used_at_ms")

    def __init__(self, session_id: int, by_topic_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_topic_id = by_topic_id
        self.epoch = 1
        self.targets: dict[TargetKey, Target] = {}
        self.used_at_ms = now_ms

    def update(self, targets: Iterable[Target], forgotten: Iterable[TargetKey]) -> None:
        for key in forgotten:
            self.targets.pop(key, None)
        for target in targets:
            known = self.targets.get(target.key)
            if known is None:
                self.targets[target.key] = target
            else:
                known.update(target)

    def move_back(self, key: TargetKey) -> None:
        """Serve this partition after the others next time: it just got records."""
        target = self.targets.pop(key, None)
        if target is not None:
            self.targets[key] = target

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class FetchPlan:
    """What one request fetches. `session` is None for a fetch without one."""

    __slots__ = ("incremental", "session", "targets")

    def __init__(
        self, targets: list[Target], session: Session | None = None, *, incremental: bool = False
    ) -> None:
        self.targets = targets
        self.session = session
        self.incremental = incremental

    @property
    def session_id(self) -> int:
        return self.session.id if self.session else NO_SESSION


class FetchSessions:
    """All sessions of one node, bounded in number."""

    def __init__(
        self, *, sessions_max: int = SESSIONS_MAX, random_: random.Random | None = None
    ) -> None:
        self._sessions: dict[int, Session] = {}
        self._sessions_max = sessions_max
        self._random = random_ or random.Random()

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        targets: list[Target],
        forgotten: Iterable[TargetKey],
        *,
        by_topic_id: bool,
        now_ms: int,
    ) -> FetchPlan:
        """Return what a request fetches, and move its session on.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR, each for the whole response.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH or not targets:
                return FetchPlan(targets)
            return FetchPlan(targets, self._create(targets, by_topic_id, now_ms))
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_topic_id != by_topic_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.update(targets, forgotten)
        session.used_at_ms = now_ms
        if not session.targets:
            del self._sessions[session_id]
            return FetchPlan([])
        session.next_epoch()
        return FetchPlan(list(session.targets.values()), session, incremental=True)

    def _create(self, targets: list[Target], by_topic_id: bool, now_ms: int) -> Session | None:
        """Make a session; None when there is no room, which every client accepts."""
        if len(self._sessions) >= self._sessions_max:
            oldest = min(self._sessions.values(), key=lambda it: it.used_at_ms, default=None)
            if oldest is None or now_ms - oldest.used_at_ms < EVICT_AFTER_MS:
                return None
            del self._sessions[oldest.id]
        session_id = self._random.randrange(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, EPOCH_MAX)
        session = Session(session_id, by_topic_id, now_ms)
        session.update(targets, ())
        self._sessions[session_id] = session
        return session
