"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

A session stores what the client fetches and the last response, so that a request without partitions
fetches all of them and a response lists only changes.

A client expects an error in each response for a partition that does not exist (KIP-516). So a session
stores unknown partitions too, but only a few: a request with many more partitions than exist is bogus.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError

# The sessions together store at most this number of partitions for each possible session.
PARTITIONS_PER_SLOT = 200
# Number of partitions that a session may have in addition to the partitions of the cluster.
UNKNOWN_MAX = 100
# Milliseconds without use after which a session can be evicted for another client (Kafka's rule).
EVICT_AFTER_MS = 120_000

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

# A partition by topic ID (Fetch 13+) or topic name, and index.
TargetKey = tuple[uuid.UUID | str, int]


class User(Protocol):
    """Connection that uses a session."""

    is_closed: bool


class Target:
    """One partition that a client or a follower fetches, with the state of the last response.

    Attributes:
        key: The partition.
        fetch_offset: Offset of the first record to read.
        max_bytes: Maximum size of the partition's records.
        current_leader_epoch: Leader epoch that the client knows, or -1.
        last_fetched_epoch: Epoch of the last fetched record, or -1.
        log_start_offset: Log start offset of a follower.
        high_watermark: High watermark of a follower.
        sent_high_watermark: High watermark of the last response, or what a follower stated since.
        sent_log_start_offset: Log start offset, likewise.
        topic_name: Topic name of a topic ID that was found before; the topic may be recreated.
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
        "sent_high_watermark",
        "sent_log_start_offset",
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
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.topic_name: str | None = None
        self._replica: Replica | None = None
        self._read_term = -1

    def update(self, newer: Target) -> None:
        """Take over the parameters of a newer request. Keep the state of the last response."""
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset
        self.high_watermark = newer.high_watermark
        self._replica = None

    def forget_ignored_response(self) -> None:
        """Assume that a follower knows only the offsets that it stated.

        A follower ignores a response that arrives after a change of its leader epoch or log end.
        """
        self.sent_high_watermark = self.high_watermark
        self.sent_log_start_offset = self.log_start_offset

    def record_read(self, replica: Replica | None) -> None:
        """Record the replica that was read, or None after an error."""
        self._replica = replica
        self._read_term = replica.term if replica is not None else -1

    def was_read_as(self, replica: Replica) -> bool:
        """Return True if `replica` was read last, in the same role and leader epoch."""
        return replica is self._replica and replica.term == self._read_term

    def idle_replica(self, *, to_log_end: bool = False) -> Replica | None:
        """Return the replica that was read last if it has nothing new for the client, or None.

        A client may fetch thousands of partitions, most of them idle. For an idle partition, each
        fetch costs only this call.

        Args:
            to_log_end: The client is a follower, which reads up to the log end offset.
        """
        replica = self._replica
        if replica is None or replica.closed or not self.was_read_as(replica):
            return None
        log = replica.log
        is_idle = (
            self.fetch_offset == (log.log_end_offset if to_log_end else log.high_watermark)
            and log.high_watermark == self.sent_high_watermark
            and log.log_start_offset == self.sent_log_start_offset
        )
        return replica if is_idle else None

    def must_include(
        self, error: int, size: int, high_watermark: int, log_start_offset: int
    ) -> bool:
        """Return True if an incremental response must list this partition, and record the response.

        A partition with an error is listed each time, and once more after the error.
        """
        changed = (
            error != 0
            or size > 0
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
        )
        self.sent_high_watermark = -1 if error else high_watermark
        self.sent_log_start_offset = -1 if error else log_start_offset
        return changed


class Session:
    """Partitions that one client fetches, in the order of their next reads.

    Attributes:
        id: Session ID.
        user: Connection that used the session last.
        used_at_ms: Time of the last use.
        by_topic_id: The client names topics by ID.
        of_follower: The client is a follower.
        epoch: Session epoch that the next request must have.
        targets: The partitions.
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
                if self.of_follower:
                    known.forget_ignored_response()
        for key in forgotten:  # as in Kafka, even if the same request adds the partition
            self.targets.pop(key, None)

    def move_back(self, key: TargetKey) -> None:
        """Move a partition to the end, because the client just got its records."""
        target = self.targets.pop(key, None)
        if target is not None:
            self.targets[key] = target

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class FetchPlan:
    """Partitions that one request fetches. `session` is None for a sessionless fetch."""

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
    """Fetch sessions of one node, with a bounded number of sessions and partitions.

    Args:
        sessions_max: Maximum number of sessions.
        count_partitions: Returns the number of partitions of the cluster.
        random_: Source of session IDs.
    """

    def __init__(
        self,
        sessions_max: int,
        count_partitions: Callable[[], int],
        *,
        random_: random.Random | None = None,
    ) -> None:
        # Number of partitions of all sessions.
        self.partitions = 0
        self._sessions: dict[int, Session] = {}
        self._sessions_max = sessions_max
        self._partitions_max = sessions_max * PARTITIONS_PER_SLOT
        self._count_partitions = count_partitions
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
        """Return the partitions that a request fetches, and advance its session.

        Args:
            session_id: Session ID of the request.
            epoch: Session epoch of the request.
            targets: Partitions that the request adds or updates.
            forgotten: Partitions that the request removes.
            by_topic_id: The request names topics by ID.
            of_follower: The request is from a follower.
            user: The connection.
            now_ms: Current time in milliseconds.

        Raises:
            KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
                FETCH_SESSION_TOPIC_ID_ERROR, for the whole response. FETCH_SESSION_ID_NOT_FOUND also if
                the session exceeds the bounds: the client then continues without a session.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove(session_id)
            if epoch == FINAL_EPOCH or not targets:
                return FetchPlan(targets)
            session = Session(
                self._free_id(), user, now_ms, by_topic_id=by_topic_id, of_follower=of_follower
            )
            session.update(targets, ())
            return FetchPlan(targets, session if self._store(session) else None)
        session = self._find(session_id, epoch, by_topic_id=by_topic_id)
        session.user, session.used_at_ms = user, now_ms
        if targets or forgotten:
            size = len(session.targets)
            self._remove(session_id)
            session.update(targets, forgotten)
            if not session.targets:
                return FetchPlan([])
            if not self._store(session, size_before=size):
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.next_epoch()
        return FetchPlan(list(session.targets.values()), session, incremental=True)

    def forget(self, plan: FetchPlan) -> None:
        """Remove the new session of a plan, because its response does not contain the session ID."""
        self._remove(plan.session_id)
        plan.session = None

    def _find(self, session_id: int, epoch: int, *, by_topic_id: bool) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_topic_id != by_topic_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
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

    def _store(self, session: Session, *, size_before: int = 0) -> bool:
        """Store a session, or return False if the bounds are exceeded. Clients work without one."""
        size = len(session.targets)
        if size > max(size_before, UNKNOWN_MAX) and size > self._count_partitions() + UNKNOWN_MAX:
            return False
        if not self._evict_for(session):
            return False
        self._sessions[session.id] = session
        self.partitions += size
        return True

    def _evict_for(self, new_session: Session) -> bool:
        """Evict sessions for a new one. Evict none and return False if that is not enough."""
        slots = len(self._sessions) + 1 - self._sessions_max
        partitions = self.partitions + len(new_session.targets) - self._partitions_max
        evicted: list[Session] = []
        candidates = self._evictable(new_session) if slots > 0 or partitions > 0 else iter(())
        while slots > 0 or partitions > 0:
            session = next(candidates, None)
            if session is None:
                return False
            evicted.append(session)
            slots -= 1
            partitions -= len(session.targets)
        for session in evicted:
            self._remove(session.id)
        return True

    def _evictable(self, new_session: Session) -> Iterator[Session]:
        """Yield the sessions that can be evicted for a new one, least recently used first.

        First sessions of closed connections, then sessions without recent use. For a follower,
        finally sessions of clients.
        """
        kinds: tuple[Callable[[Session], bool], ...] = (
            lambda it: it.user.is_closed,
            lambda it: new_session.used_at_ms - it.used_at_ms >= EVICT_AFTER_MS,
            lambda it: new_session.of_follower and not it.of_follower,
        )
        left = sorted(self._sessions.values(), key=lambda it: it.used_at_ms)
        for is_evictable in kinds:
            yield from filter(is_evictable, left)
            left = [each for each in left if not is_evictable(each)]
