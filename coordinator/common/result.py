"""Results of coordinator operations, and the obligations of the caller.

A coordinator does no I/O. An operation (a request or a timeout) reads the state, changes the
volatile part (pending members, timers, a rebalance in progress) and returns a `Result`. Persistent
changes are in `Result.records`; they take effect only when those records are replayed.

The caller must process each result as follows:

1. *Append* `records` to the log as one batch, immediately and before any other call to the same
   coordinator.
2. If the append fails, no record was replayed. Release the result that ``on_failure(code, now)``
   returns instead of this one, and stop here.
3. Otherwise *replay* each record immediately (`GroupCoordinator.replay`), before any other call.
   Pass the producer ID of `producer` for records of a transaction. Replay the record object itself:
   only records that are loaded from the log are decoded.
4. *Release* the response and all `answers` when the high watermark reaches the current log end
   offset. This also applies to results without records, because the state that they read may still
   be uncommitted. If nothing is in flight, release them immediately.
5. If the partition is lost between 3 and 4 (storage failure, or another node became leader), the
   state is ahead of the log and cannot be repaired. Replace each held answer by `Answer.with_error`
   and the response by NOT_COORDINATOR. Release what `GroupCoordinator.on_unloaded` returns, discard
   the coordinator, and build a new one from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupResponse

from .record import CoordinatorRecord

R = TypeVar("R")


class Now(NamedTuple):
    """Current time in both time domains, in milliseconds.

    Attributes:
        log_ms: Log time: ms since 1970, for record timestamps and retention.
        coordinator_ms: Coordinator time: ms of a monotonic clock, for sessions and rebalances.
    """

    log_ms: int
    coordinator_ms: int


class ClientInfo(NamedTuple):
    """Client that sent a request.

    Attributes:
        client_id: Client ID of the request header.
        host: Peer address after a slash ("/127.0.0.1"), as Kafka shows it in groups.
    """

    client_id: str
    host: str


class Event(NamedTuple):
    """A change of a group and its cause.

    Attributes:
        at_ms: Time of the change in ms since 1970.
        generation: Generation (or epoch) after the change.
        state: State after the change.
        since_ms: Time at which the cause began in ms since 1970, if it took a while.
    """

    at_ms: int
    group_id: str
    cause: str
    generation: int
    state: str
    since_ms: int | None = None


class TransactionEvent(NamedTuple):
    """A change of a transactional ID and its cause.

    Attributes:
        at_ms: Time of the change in ms since 1970.
        producer_id: Producer ID after the change.
        epoch: Producer epoch after the change.
        state: State after the change.
        by_coordinator: True if the coordinator made the change without a request from a producer.
    """

    at_ms: int
    transactional_id: str
    cause: str
    producer_id: int
    epoch: int
    state: str
    by_coordinator: bool


class PendingResponse(Generic[R]):
    """A response that completes later.

    The caller sets `on_answer`, or reads `response` if the response is already complete. If the
    client disconnects, the caller passes the pending response to `GroupCoordinator.abandon`.
    """

    __slots__ = ("group_id", "member_id", "on_answer", "response")

    def __init__(self, group_id: str, member_id: str) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.response: R | None = None
        self.on_answer: Callable[[R], None] | None = None

    def answer(self, response: R) -> None:
        """Complete the response. Later calls have no effect."""
        if self.response is not None:
            return
        self.response = response
        if self.on_answer is not None:
            self.on_answer(response)


class Answer(NamedTuple):
    """A pending request that can be answered now: ``slot.answer(response)`` sends the response."""

    slot: PendingResponse[Any]
    response: Any

    def with_error(self, code: ErrorCode) -> Answer:
        """Return an error for the same request, because the change behind the response was lost."""
        response = type(self.response)(error_code=code)
        if isinstance(response, JoinGroupResponse):
            response.member_id = self.slot.member_id
        return Answer(self.slot, response)


Undo: TypeAlias = "Callable[[ErrorCode, Now], Result[R]]"


class Result(Generic[R]):
    """Outcome of one operation. The module docstring lists the obligations of the caller.

    Attributes:
        response: Response to the request, or the `PendingResponse` that completes later. None for a
            timeout.
        records: Records to append and replay.
        answers: Responses to pending requests, including the current request.
        events: Changes of groups and transactions with their causes, for diagnostics.
        producer: ID and epoch of the producer if the records belong to its transaction. They are
            appended as a transactional batch without a sequence number, and stay pending until a
            marker ends the transaction.
        work: Long-running work to do in the background once the records are stored.
        on_failure: Undoes the volatile changes if the append fails, and returns the result to
            release instead. Always set if there are records.
    """

    __slots__ = ("answers", "events", "on_failure", "producer", "records", "response", "work")

    def __init__(self, response: R | PendingResponse[R] | None = None) -> None:
        self.response = response
        self.records: list[CoordinatorRecord] = []
        self.answers: list[Answer] = []
        self.events: list[Event | TransactionEvent] = []
        self.producer: tuple[int, int] | None = None
        self.work: Pieces | None = None
        self.on_failure: Undo[R] | None = None


# Long-running work in pieces. Each item is a result to process before the next piece, or None.
# Other tasks may run between two pieces.
Pieces: TypeAlias = "Iterator[Result[None] | None]"


def append_error(code: int) -> ErrorCode:
    """Return the error for a client after the append of a coordinator's records failed with `code`.

    The client did not write to the internal topic, so the original error would mislead it. The
    mapping is that of Apache Kafka.
    """
    if code in _UNAVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in _MOVED:
        return ErrorCode.NOT_COORDINATOR
    if code in _TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode(code)


_UNAVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_TOO_LARGE = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    }
)
