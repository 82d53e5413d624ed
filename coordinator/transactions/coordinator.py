"""Transaction coordinator of one partition of `__transaction_state` (KIP-98, KIP-890).

The coordinator decides and its caller acts. A transaction ends in two steps:

1. The decision is stored as a prepared state. When that record is committed, the caller writes
   markers to all partitions of the transaction.
2. When the markers are committed, `complete` stores the completed state.

`take_prepared` returns the transactions whose markers must be written, after an operation and after
loading.

There are two protocols. In the first one, a producer adds its partitions before it writes to them,
and keeps its epoch. In the second one (TV2, KIP-890), the partition leader adds the partitions.
Every end of a transaction then bumps the epoch, so that delayed writes cannot enter a later
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.transaction_log import (
    KINDS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionLogKey,
    TransactionLogValue,
)

from ..common.memory import TRANSACTIONAL_ID_BYTES, MemoryLimit
from ..common.record import CoordinatorRecord, CoordinatorRecordSerde
from ..common.result import (
    Answer,
    Now,
    PendingResponse,
    Pieces,
    R,
    Result,
    TransactionEvent,
    append_error,
)
from ..common.timers import Timers
from .transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    LAST_EPOCH_GIVEN,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TopicPartition,
    TransactionMetadata,
    check_transition,
    from_value,
    to_value,
)

# Delay before an abort that could not be stored is retried.
RETRY_BACKOFF_MS = 1_000
# Transactional IDs to resume per piece after loading.
TRANSACTIONS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Transaction settings, in milliseconds.

    Attributes:
        timeout_max_ms: Maximum transaction timeout of a producer (`transaction.max.timeout.ms`).
        expiration_ms: How long an unused transactional ID is kept
            (`transactional.id.expiration.ms`).
    """

    timeout_max_ms: int = 900_000
    expiration_ms: int = 604_800_000


class TransactionCoordinator:
    """Transactional IDs of one partition.

    Args:
        settings: Timeouts.
        second_protocol: Returns True if the cluster has finalized `transaction.version` 2.
        memory: Memory limit that all coordinators of a node share.
    """

    serde = CoordinatorRecordSerde(KINDS)

    def __init__(
        self,
        settings: TransactionSettings,
        second_protocol: Callable[[], bool],
        memory: MemoryLimit,
    ) -> None:
        self._settings = settings
        self._second_protocol = second_protocol
        self._memory = memory
        self._transactions: dict[str, TransactionMetadata] = {}
        # Client address that created each transactional ID, if this node knows it.
        self._hosts: dict[str, str] = {}
        # Transactional ID that a client is about to create, and the address of the client.
        self._newest: tuple[str, str] | None = None
        # Epoch that a producer had before it bumped its own epoch, to recognize a retry.
        self._epochs_before: dict[str, int] = {}
        self._timers: Timers[str] = Timers()
        self._prepared: dict[str, None] = {}  # in log order

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """State of all transactional IDs, by transactional ID."""
        return self._transactions

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Return True if the next operation may need a new producer ID."""
        known = self._transactions.get(transactional_id)
        return known is None or known.is_exhausted

    # -- InitProducerId

    def init_producer_id(
        self, request: InitProducerIdRequest, new_id: int, now: Now, host: str
    ) -> Result[InitProducerIdResponse]:
        """Handle InitProducerId with a transactional ID, fencing the previous producer.

        Args:
            request: The request.
            new_id: An unused producer ID, if `needs_producer_id` returned True.
            now: Current time.
            host: Address of the client.

        Returns:
            The response. If the memory limit does not permit another transactional ID, it has the
            retriable error COORDINATOR_LOAD_IN_PROGRESS.
        """
        transactional_id = request.transactional_id
        code = self._check_init(request)
        if code or transactional_id is None:
            return Result(_init_error_response(code))
        known = self._transactions.get(transactional_id)
        if known is None:
            if not self._memory.permits(transactional_id_bytes(transactional_id), host):
                return Result(_init_error_response(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            self._newest = transactional_id, host
            known = TransactionMetadata(new_id, request.transaction_timeout_ms, now.log_ms)
        sent_epoch = request.producer_epoch if request.producer_id != NO_PRODUCER_ID else None
        if sent_epoch is not None and not _may_continue(known, request.producer_id, sent_epoch):
            return Result(_init_error_response(ErrorCode.PRODUCER_FENCED))
        if known.state.is_prepared:
            return Result(_init_error_response(ErrorCode.CONCURRENT_TRANSACTIONS))
        if known.state is ONGOING:
            # The client retries and then gets an epoch that no other client was given.
            cause = "another producer initialized the transactional ID"
            result = Result(_init_error_response(ErrorCode.CONCURRENT_TRANSACTIONS))
            self._abort(transactional_id, known, cause, now, result)
            result.on_failure = lambda code, now: Result(_init_error_response(append_error(code)))
            return result
        return self._begin(transactional_id, known, sent_epoch, request, new_id, now)

    def _check_init(self, request: InitProducerIdRequest) -> ErrorCode:
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not has_complete_producer(request):
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._settings.timeout_max_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _begin(
        self,
        transactional_id: str,
        known: TransactionMetadata,
        sent_epoch: int | None,
        request: InitProducerIdRequest,
        new_id: int,
        now: Now,
    ) -> Result[InitProducerIdResponse]:
        """Assign the next epoch, or the first epoch of a new producer ID."""
        if known.epoch == NO_PRODUCER_EPOCH:
            sent_epoch = None  # no producer uses the transactional ID
        is_retry = False
        if sent_epoch not in (None, known.epoch):
            is_retry = sent_epoch == self._epochs_before.get(transactional_id)
            if not is_retry:
                return Result(_init_error_response(ErrorCode.PRODUCER_FENCED))
        producer_id, epoch = known.producer_id, known.epoch + 1
        if is_retry and known.epoch <= LAST_EPOCH_GIVEN:
            epoch = known.epoch  # the first response was lost
        elif known.is_exhausted:
            producer_id, epoch = new_id, 0
        initialized = TransactionMetadata(
            producer_id=producer_id,
            epoch=epoch,
            previous_producer_id=known.producer_id
            if known.epoch != NO_PRODUCER_EPOCH
            else NO_PRODUCER_ID,
            timeout_ms=request.transaction_timeout_ms,
            updated_ms=now.log_ms,
        )
        result = Result(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))
        self._store(transactional_id, initialized, now, result, cause="a producer was initialized")
        self._epochs_before[transactional_id] = (
            NO_PRODUCER_EPOCH if sent_epoch is None else sent_epoch
        )
        result.on_failure = lambda code, now: Result(_init_error_response(append_error(code)))
        return result

    # -- partitions

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        now: Now,
        *,
        second_protocol: bool,
    ) -> Result[ErrorCode]:
        """Add partitions to a transaction. The first partition begins the transaction."""
        known = self._transactions.get(transactional_id)
        code = _check_producer(transactional_id, known, producer_id, epoch)
        if code or known is None:
            return Result(code)
        begins = known.state is not ONGOING
        if not begins and known.partitions.issuperset(partitions):
            return Result(ErrorCode.NONE)
        changed = replace(
            known,
            state=ONGOING,
            partitions=known.partitions.union(partitions),
            previous_producer_id=known.producer_id,
            started_ms=now.log_ms if begins else known.started_ms,
            updated_ms=now.log_ms,
            second_protocol=second_protocol,
        )
        result = Result(ErrorCode.NONE)
        if begins:
            self._timers.schedule(transactional_id, now.coordinator_ms + known.timeout_ms)
        cause = "a transaction began" if begins else None
        self._store(transactional_id, changed, now, result, cause=cause)
        result.on_failure = lambda code, now: Result(append_error(code))
        return result

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition
    ) -> ErrorCode:
        """Return the error for a write to a partition in a producer's transaction.

        TRANSACTION_ABORTABLE means that the partition is not part of the transaction.
        """
        known = self._transactions.get(transactional_id)
        code = _check_producer(transactional_id, known, producer_id, epoch)
        if code or known is None:
            return code
        return ErrorCode.NONE if partition in known.partitions else ErrorCode.TRANSACTION_ABORTABLE

    # -- EndTxn and aborts

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        new_id: int,
        now: Now,
        *,
        commit: bool,
        second_protocol: bool,
    ) -> Result[EndTxnResponse]:
        """Handle EndTxn.

        If the transaction becomes prepared, send the response only after `complete`.

        Args:
            transactional_id: Transactional ID of the producer.
            producer_id: Producer ID of the request.
            epoch: Producer epoch of the request.
            new_id: An unused producer ID, if `needs_producer_id` returned True.
            now: Current time.
            commit: True to commit, False to abort.
            second_protocol: True if the request version uses TV2.
        """
        if not transactional_id:
            return Result(_end_error_response(ErrorCode.INVALID_REQUEST))
        known = self._transactions.get(transactional_id)
        if known is None:
            return Result(_end_error_response(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        if not second_protocol:
            code = _check_end(known, producer_id, epoch, commit)
            if code or known.state is not ONGOING:
                return Result(_end_error_response(code))
            # The first protocol does not bump the epoch: the markers carry the current epoch,
            # whichever protocol added the partitions.
            kept = replace(known, second_protocol=False)
            return self._prepare(transactional_id, kept, NO_PRODUCER_ID, commit, now)
        code, is_retry = _check_second_end(known, producer_id, epoch, commit)
        if code:
            return Result(_end_error_response(code))
        if is_retry and known.epoch <= LAST_EPOCH_GIVEN:
            return Result(_end_response(known))
        next_id = new_id if known.is_exhausted else NO_PRODUCER_ID
        self._epochs_before[transactional_id] = epoch
        raised = replace(
            known,
            epoch=epoch + 1,
            second_protocol=True,
            started_ms=known.started_ms if known.state is ONGOING else now.log_ms,
        )
        return self._prepare(transactional_id, raised, next_id, commit, now)

    def _prepare(
        self,
        transactional_id: str,
        known: TransactionMetadata,
        next_id: int,
        commit: bool,
        now: Now,
    ) -> Result[EndTxnResponse]:
        prepared = replace(
            known,
            state=PREPARE_COMMIT if commit else PREPARE_ABORT,
            previous_producer_id=known.producer_id,
            next_producer_id=next_id,
            updated_ms=now.log_ms,
        )
        result = Result(_end_response(prepared.completed(now.log_ms)))
        cause = f"producer {'committed' if commit else 'aborted'} the transaction"
        self._store(transactional_id, prepared, now, result, cause=cause)
        result.on_failure = lambda code, now: Result(_end_error_response(append_error(code)))
        return result

    def abort(self, transactional_id: str, now: Now, *, cause: str) -> Result[None]:
        """Abort the open transaction, if there is one, and fence its producer."""
        result: Result[None] = Result()
        known = self._transactions.get(transactional_id)
        if known is not None and known.state is ONGOING:
            self._abort(transactional_id, known, cause, now, result)
            result.on_failure = lambda code, now: self._abort_later(transactional_id, now)
        return result

    def _abort(
        self,
        transactional_id: str,
        known: TransactionMetadata,
        cause: str,
        now: Now,
        result: Result[R],
    ) -> None:
        """Fence the producer and abort its open transaction. The caller sets `on_failure`."""
        second = self._second_protocol()
        aborted = replace(
            known,
            epoch=known.epoch + 1,
            state=PREPARE_ABORT,
            previous_producer_id=known.producer_id,
            updated_ms=now.log_ms,
            second_protocol=second,
        )
        # With TV2 the epoch is bumped as if the producer had aborted, so the producer can continue.
        self._epochs_before[transactional_id] = known.epoch if second else NO_PRODUCER_EPOCH
        self._store(transactional_id, aborted, now, result, cause=cause, by_coordinator=True)

    def raise_epoch(self, transactional_id: str, above: int, now: Now) -> Result[None]:
        """Fence producers with epochs up to `above`, and abort an open transaction.

        This is used after a cluster was restored to an earlier state. It does nothing if the
        transaction is already prepared.
        """
        result: Result[None] = Result()
        known = self._transactions.get(transactional_id)
        if known is None or known.epoch > above or known.state.is_prepared:
            return result
        cause = "a restored cluster has seen later producers"
        raised = replace(known, epoch=min(above, LAST_EPOCH_GIVEN), updated_ms=now.log_ms)
        if known.state is ONGOING:
            self._abort(transactional_id, raised, cause, now, result)
            result.on_failure = lambda code, now: self._abort_later(transactional_id, now)
            return result
        raised = replace(raised, epoch=raised.epoch + 1)
        self._store(transactional_id, raised, now, result, cause=cause, by_coordinator=True)
        result.on_failure = lambda code, now: Result()
        return result

    def take_prepared(self) -> list[str]:
        """Return the transactional IDs whose markers must be written when the log is committed."""
        taken = list(self._prepared)
        self._prepared.clear()
        return taken

    def complete(self, transactional_id: str, now: Now) -> Result[None]:
        """Complete a prepared transaction after all its markers were committed."""
        result: Result[None] = Result()
        known = self._transactions.get(transactional_id)
        if known is not None and known.state.is_prepared:
            completed = known.completed(now.log_ms)
            self._store(transactional_id, completed, now, result, cause="all markers were written")
            result.on_failure = lambda code, now: Result()
        return result

    # -- time

    def next_deadline(self) -> int | None:
        """Return the time at which `due` must be called next (ms, monotonic clock), or None."""
        return self._timers.next_deadline()

    def deadline(self, transactional_id: str) -> int | None:
        """Return the time at which an open transaction times out (ms, monotonic clock), or None."""
        known = self._transactions.get(transactional_id)
        is_open = known is not None and known.state is ONGOING
        return self._timers.deadline(transactional_id) if is_open else None

    def due(self, now: Now) -> Iterator[Result[None]]:
        """Abort transactions that timed out. Process each result before taking the next one."""
        while (transactional_id := self._timers.pop_due(now.coordinator_ms)) is not None:
            known = self._transactions.get(transactional_id)
            if known is not None:
                cause = f"transaction timed out after {known.timeout_ms} ms"
                yield self.abort(transactional_id, now, cause=cause)

    def _abort_later(self, transactional_id: str, now: Now) -> Result[None]:
        self._timers.schedule(transactional_id, now.coordinator_ms + RETRY_BACKOFF_MS)
        return Result()

    def expire(self, now: Now) -> Pieces:
        """Delete expired transactional IDs, in pieces."""
        for transactional_id in tuple(self._transactions):
            known = self._transactions.get(transactional_id)
            yield (
                self._expire_transactional_id(transactional_id, known, now)
                if known is not None
                else None
            )

    def _expire_transactional_id(
        self, transactional_id: str, known: TransactionMetadata, now: Now
    ) -> Result[None] | None:
        """Return the tombstone of an expired transactional ID, or None if it has not expired."""
        idle = known.state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
        if not idle or now.log_ms - known.updated_ms < self._settings.expiration_ms:
            return None
        result: Result[None] = Result()
        result.records.append(CoordinatorRecord(_key(transactional_id), None))
        result.on_failure = lambda code, now: Result()
        return result

    def expire_timeout(self, transactional_id: str, now: Now) -> None:
        """Expire the timeout of an open transaction at the next call of `due`."""
        self._timers.schedule(transactional_id, now.coordinator_ms)

    # -- records and life cycle

    def _store(
        self,
        transactional_id: str,
        changed: TransactionMetadata,
        now: Now,
        result: Result[R],
        *,
        cause: str | None,
        by_coordinator: bool = False,
    ) -> None:
        """Add the record of a changed transaction, and an event if there is a cause."""
        known = self._transactions.get(transactional_id)
        check_transition(EMPTY if known is None else known.state, changed.state)
        result.records.append(CoordinatorRecord(_key(transactional_id), to_value(changed)))
        if cause is not None:
            event = TransactionEvent(
                at_ms=now.log_ms,
                transactional_id=transactional_id,
                cause=cause,
                producer_id=changed.producer_id,
                epoch=changed.epoch,
                state=changed.state.label,
                by_coordinator=by_coordinator,
            )
            result.events.append(event)

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition, in log order, during loading and after an append.

        `producer_id` is unused: no producer writes to this topic in a transaction.

        Raises:
            DecodeError: The state in the record is unknown.
        """
        key, value = record.key, record.value
        assert isinstance(key, TransactionLogKey)
        transactional_id = key.transactional_id
        self._prepared.pop(transactional_id, None)
        if value is None:
            if self._transactions.pop(transactional_id, None) is not None:
                self._release_memory(transactional_id)
            self._epochs_before.pop(transactional_id, None)
            return
        assert isinstance(value, TransactionLogValue)
        try:
            transaction = from_value(value)
        except ValueError as error:
            raise DecodeError(f"transactional ID {transactional_id!r}: {error}") from None
        if transactional_id not in self._transactions:
            self._add_memory(transactional_id)
        self._transactions[transactional_id] = transaction
        if transaction.state.is_prepared:
            self._prepared[transactional_id] = None

    def _add_memory(self, transactional_id: str) -> None:
        if self._newest is not None and self._newest[0] == transactional_id:
            self._hosts[transactional_id] = self._newest[1]
        host = self._hosts.get(transactional_id)
        self._memory.change(transactional_id_bytes(transactional_id), host)

    def _release_memory(self, transactional_id: str) -> None:
        host = self._hosts.pop(transactional_id, None)
        self._memory.change(-transactional_id_bytes(transactional_id), host)

    def on_loaded(self, now: Now) -> Iterator[Result[None]]:
        """Resume the timeouts of open transactions after the last record was replayed.

        Process the pieces as described in `GroupCoordinator.on_loaded`.
        """
        for number, (transactional_id, known) in enumerate(tuple(self._transactions.items()), 1):
            if known.state is ONGOING:
                left_ms = min(max(known.deadline_ms - now.log_ms, 0), known.timeout_ms)
                self._timers.schedule(transactional_id, now.coordinator_ms + left_ms)
            if not number % TRANSACTIONS_AT_ONCE:
                yield Result()

    def on_unloaded(self) -> list[Answer]:
        """Release the memory of the coordinator. It has no pending requests."""
        for transactional_id in self._transactions:
            self._release_memory(transactional_id)
        self._memory = MemoryLimit()  # later changes no longer count for the node
        return []

    def abandon(self, slot: PendingResponse[R], now: Now) -> Result[None]:
        """Do nothing: this coordinator has no pending requests."""
        return Result()


def transactional_id_bytes(transactional_id: str) -> int:
    """Return the bytes in memory of a transactional ID."""
    return TRANSACTIONAL_ID_BYTES + len(transactional_id)


def has_complete_producer(request: InitProducerIdRequest) -> bool:
    """Return True if an InitProducerId has both a producer ID and an epoch, or neither.

    Kafka checks this for every request, including requests without a transactional ID.
    """
    return (request.producer_id == NO_PRODUCER_ID) == (request.producer_epoch == NO_PRODUCER_EPOCH)


def _may_continue(known: TransactionMetadata, producer_id: int, epoch: int) -> bool:
    """Return True if a producer that sends its ID and epoch may use the transactional ID."""
    if known.epoch == NO_PRODUCER_EPOCH or producer_id == known.producer_id:
        return True
    return producer_id == known.previous_producer_id and epoch >= LAST_EPOCH_GIVEN


def _check_producer(
    transactional_id: str, known: TransactionMetadata | None, producer_id: int, epoch: int
) -> ErrorCode:
    """Return the error for a producer that changes its transaction."""
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if known is not None and known.state.is_prepared:
        return (
            ErrorCode.CONCURRENT_TRANSACTIONS
        )  # checked first: the producer ID may be about to change
    if known is None or known.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.PRODUCER_FENCED if known.epoch != epoch else ErrorCode.NONE


def _check_end(known: TransactionMetadata, producer_id: int, epoch: int, commit: bool) -> ErrorCode:
    """Return the error for an EndTxn of the first protocol; a repeated EndTxn is not an error."""
    if known.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state is ONGOING or known.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return ErrorCode.NONE
    if known.state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE


def _check_second_end(
    known: TransactionMetadata, producer_id: int, epoch: int, commit: bool
) -> tuple[ErrorCode, bool]:
    """Check an EndTxn of the second protocol.

    The epoch identifies the transaction: a retry has the current epoch minus 1.

    Returns:
        The error, and True if the request repeats an EndTxn that was completed.
    """
    rotated = (
        producer_id == known.previous_producer_id and epoch == LAST_EPOCH_GIVEN and known.epoch == 0
    )
    if known.producer_id != producer_id and not rotated:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, False
    is_repeated = rotated or known.epoch == epoch + 1
    state = known.state
    if state in (EMPTY, ONGOING):
        is_valid = epoch == known.epoch
    elif state.is_prepared:
        is_valid = is_repeated
    else:
        is_valid = is_repeated or epoch == known.epoch
    if not is_valid:
        return ErrorCode.PRODUCER_FENCED, False
    if state is ONGOING:
        return ErrorCode.NONE, False
    if state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        return ErrorCode.CONCURRENT_TRANSACTIONS, False
    if is_repeated and state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return ErrorCode.NONE, True
    if not is_repeated and not commit:
        return ErrorCode.NONE, False  # aborting an empty transaction bumps the epoch
    return ErrorCode.INVALID_TXN_STATE, False


def _key(transactional_id: str) -> TransactionLogKey:
    return TransactionLogKey(transactional_id=transactional_id)


def _init_error_response(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _end_response(transaction: TransactionMetadata) -> EndTxnResponse:
    return EndTxnResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)


def _end_error_response(code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(
        error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
