"""What an operation of a coordinator gives back, and what its caller has to do with it.

A coordinator does no I/O. An operation (a request or a time-out) looks at the state, changes what
is volatile (parked members, timers, a rebalance in progress) and returns a `Result`. What must
survive is in `Result.records`; it enters the state only when those records are replayed.

The contract of the caller, for one result:

1. *Append* `records` to the log, as one batch, at once and before any other call to the same
   coordinator.
2. If that failed, nothing has been replayed: release at once what ``on_failure(code, now)``
   returns in place of this result, and stop here.
3. Otherwise *replay* each record at once (`GroupCoordinator.replay`), before any other call; those
   of a transaction with the id of its `producer`. The record itself is replayed: only a record that
   is loaded from the log is decoded.
4. *Release* the response and all `answers` when the high watermark has reached the end offset that
   the log has now. This holds for results without records too: the state that they saw may still be
   uncommitted. With nothing in flight that moment is now.
5. If the partition is lost between 3 and 4 (storage failed, another node leads), the state is ahead
   of the log. Then it is not repaired: give every answer that is held back as `Answer.refused`
   (and NOT_COORDINATOR in place of a response), release what `GroupCoordinator.on_unloaded`
   returns, throw the coordinator away, and build a new one from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupResponse

from .record import CoordinatorRecord

R = TypeVar("R")


class Now(NamedTuple):
    """The time of an operation in both domains, in milliseconds.

    `log_ms` is wall-clock time: what is written into records, and retention. `coordinator_ms` is
    steady: sessions and rebalances.
    """

    log_ms: int
    coordinator_ms: int


class ClientInfo(NamedTuple):
    """Who sent a request.

    `client_id` is that of the request header. `host` is the peer as groups show it: the address
    after a slash ("/127.0.0.1"), as Kafka does.
    """

    client_id: str
    host: str


class Event(NamedTuple):
    """One change of a group, and why.

    `at_ms` is log time; so is `since_ms`, of a cause that took a while. Generation and state are
    how the change left the group.
    """

    at_ms: int
    group_id: str
    cause: str
    generation: int
    state: str
    since_ms: int | None = None


class TransactionEvent(NamedTuple):
    """One change of a transactional id, and why.

    `at_ms` is log time; the rest is how the change left it. `by_coordinator`: no producer asked.
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

    The caller sets `on_answer`, or reads `response` if the response is already complete. If the client
    disconnects, the caller passes the pending response to `GroupCoordinator.abandon`.
    """

    __slots__ = ("group_id", "member_id", "on_answer", "response")

    def __init__(self, group_id: str, member_id: str) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.response: R | None = None
        self.on_answer: Callable[[R], None] | None = None

    def answer(self, response: R) -> None:
        """Give the answer. Only the first one counts."""
        if self.response is not None:
            return
        self.response = response
        if self.on_answer is not None:
            self.on_answer(response)


class Answer(NamedTuple):
    """A parked request that can be answered now, and the answer: ``slot.answer(response)``."""

    slot: PendingResponse[Any]
    response: Any

    def refused(self, code: ErrorCode) -> Answer:
        """The same request answered with an error, because what the answer says was lost."""
        response = type(self.response)(error_code=code)
        if isinstance(response, JoinGroupResponse):
            response.member_id = self.slot.member_id
        return Answer(self.slot, response)


Undo: TypeAlias = "Callable[[ErrorCode, Now], Result[R]]"


class Result(Generic[R]):
    """Outcome of one operation; the module's docstring says what to do with it.

    Attributes:
      response: The answer to the request itself, or the slot in which it will come. None for a
        time-out.
      records: To be appended and replayed.
      answers: Answers to requests that were parked, this one included.
      events: What changed in which group or transaction, and why. Whoever keeps them can
        explain it.
      producer: Id and epoch of the producer in whose transaction the records are. They are appended
        as a transactional batch of it without a sequence, and pending until a marker ends it.
      work: What is to be done beside clients once the records are stored, because it takes long.
      on_failure: Makes the result to release instead when the append fails, and undoes what was
        volatile. Set whenever there are records.
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


Pieces: TypeAlias = "Iterator[Result[None] | None]"
"""Work over all that there is: a result to handle before the next piece is taken, or None where
there is nothing to handle. Others may have their turn behind each piece."""


def append_error(code: int) -> ErrorCode:
    """What a client is told when the append of a coordinator's records failed with `code`.

    The partition is ours, not the client's: an error about it would mislead. As Kafka does.
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
