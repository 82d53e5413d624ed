"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

A session remembers what the client fetches and what it was last told, so that a request without
partitions fetches all of them and a response lists only what changed.

A client expects an error in each answer for a partition that does not exist (KIP-516), so a session
remembers those too, but a few only: one that names many more partitions than there are is made up.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError

PARTITIONS_PER_SLOT = 200
"""How many partitions the sessions remember together, for each session that there may be."""
UNKNOWN_MAX = 100
"""How many partitions that do not exist a session may name at least."""
EVICT_AFTER_MS = 120_000
"""A session that was used since then is not evicted for another client's (Kafka's rule)."""

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

TargetKey = tuple[uuid.UUID | str, int]
"""A partition by topic id (Fetch 13+) or topic name, and index."""


class User(Protocol):
    """Who fetches in a session: a connection."""

    is_closed: bool


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
    """What one client fetches, in the order in which it is served next.

    `user` is the connection that used it last; `of_follower` says whether that is a node.
    """

    __slots__ = ("by_topic_id", "epoch", "id", "of_follower", "targets", "used_at_ms", "user")

    def __init__(
        self, session_id: int, user: User, now_ms: int, *, by_topic_id: bool, of_follower: bool
    ) -> None:
        self.id = session_id
        self.user = user
        self.used_at_ms = now_ms
        self.by_topic_id = by_topic_id
        self.of_follower = of_follower
        self.epoch = 1
        self.targets: dict[TargetKey, Target] = {}

    def update(self, targets: Iterable[Target], forgotten: Iterable[TargetKey]) -> None:
        for target in targets:
            known = self.targets.get(target.key)
            if known is None:
                self.targets[target.key] = target
            else:
                known.update(target)
        for key in forgotten:  # as in Kafka, also where the same request adds it
            self.targets.pop(key, None)

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
    """All sessions of one node, bounded in number and in what they remember together.

    Parameters: `sessions_max` is how many there may be; `partitions_there` counts the partitions of
    the cluster.
    """

    def __init__(
        self,
        sessions_max: int,
        partitions_there: Callable[[], int],
        *,
        random_: random.Random | None = None,
    ) -> None:
        self.partitions = 0
        """How many partitions the sessions remember."""
        self._sessions: dict[int, Session] = {}
        self._sessions_max = sessions_max
        self._partitions_max = sessions_max * PARTITIONS_PER_SLOT
        self._partitions_there = partitions_there
        self._random = random_ or random.Random()

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        targets: list[Target],
        forgotten: Sequence[TargetKey],
        *,
        by_topic_id: bool,
        of_follower: bool,
        user: User,
        now_ms: int,
    ) -> FetchPlan:
        """Return what a request fetches, and move its session on.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR, each for the whole response. The first one too where what a
        session fetches has outgrown the room: the client begins again, and goes on without one.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove(session_id)
            if epoch == FINAL_EPOCH or not targets:
                return FetchPlan(targets)
            session = Session(
                self._free_id(), user, now_ms, by_topic_id=by_topic_id, of_follower=of_follower
            )
            session.update(targets, ())
            return FetchPlan(targets, session if self._keep(session) else None)
        session = self._find(session_id, epoch, by_topic_id=by_topic_id)
        session.user, session.used_at_ms = user, now_ms
        if targets or forgotten:
            size = len(session.targets)
            self._remove(session_id)
            session.update(targets, forgotten)
            if not session.targets:
                return FetchPlan([])
            if not self._keep(session, size_before=size):
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.next_epoch()
        return FetchPlan(list(session.targets.values()), session, incremental=True)

    def forget(self, plan: FetchPlan) -> None:
        """The client of a plan is not told of the session that began with it."""
        self._remove(plan.session_id)
        plan.session = None

    def _find(self, session_id: int, epoch: int, *, by_topic_id: bool) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_topic_id != by_topic_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return session

    def _free_id(self) -> int:
        session_id = self._random.randrange(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, EPOCH_MAX)
        return session_id

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.targets)

    def _keep(self, session: Session, *, size_before: int = 0) -> bool:
        """Remember a session; False when there is no room, which every client accepts."""
        size = len(session.targets)
        if size > max(size_before, UNKNOWN_MAX) and size > self._partitions_there() + UNKNOWN_MAX:
            return False
        if not self._make_room(session):
            return False
        self._sessions[session.id] = session
        self.partitions += size
        return True

    def _make_room(self, newcomer: Session) -> bool:
        """Let go of the sessions that must make way; of none where that is not enough."""
        slots = len(self._sessions) + 1 - self._sessions_max
        partitions = self.partitions + len(newcomer.targets) - self._partitions_max
        leaving: list[Session] = []
        candidates = self._evictable(newcomer) if slots > 0 or partitions > 0 else iter(())
        while slots > 0 or partitions > 0:
            session = next(candidates, None)
            if session is None:
                return False
            leaving.append(session)
            slots -= 1
            partitions -= len(session.targets)
        for session in leaving:
            self._remove(session.id)
        return True

    def _evictable(self, newcomer: Session) -> Iterator[Session]:
        """The sessions that make way for another one: first those that nobody can miss any more,
        then those that nobody has used for long, then for a follower those of clients; of each
        kind, that which was used longest ago comes first.
        """
        kinds: tuple[Callable[[Session], bool], ...] = (
            lambda it: it.user.is_closed,
            lambda it: newcomer.used_at_ms - it.used_at_ms >= EVICT_AFTER_MS,
            lambda it: newcomer.of_follower and not it.of_follower,
        )
        left = sorted(self._sessions.values(), key=lambda it: it.used_at_ms)
        for leaves in kinds:
            yield from filter(leaves, left)
            left = [each for each in left if not leaves(each)]
