"""Transaction coordinator: results of KIP-98 and KIP-890, and state after loading."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.coordinator import (
    CoordinatorRecord,
    Now,
    Result,
    TransactionCoordinator,
    TransactionSettings,
    TransactionState,
)
from kbroker.coordinator.common.memory import MemoryLimit
from kbroker.coordinator.transactions.transaction import (
    LAST_EPOCH_GIVEN,
    TransactionMetadata,
    from_value,
    to_value,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.transaction_log import TransactionLogKey, encode_key, encode_value

from ..stored import StoredRecord, load, store

NOW = Now(1_000_000, 50_000)
DAY_MS = 86_400_000
A, B = ("orders", 0), ("orders", 1)
NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
INVALID, CONCURRENT = ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
PROTOCOLS = pytest.mark.parametrize("second", [False, True], ids=["first", "second"])


class Log:
    """A coordinator whose records are stored in a list, encoded as in a log."""

    def __init__(self, *, second: bool = True, settings: TransactionSettings | None = None) -> None:
        self.second = second
        self.settings = settings or TransactionSettings()
        self.records: list[StoredRecord] = []
        self.coordinator = self._make_coordinator()
        self.now = NOW
        self.new_id = 100

    def _make_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.settings, lambda: self.second, MemoryLimit())

    def keep(self, result: Result[Any]) -> Any:
        for record in result.records:
            self.records.append(store(self.coordinator.serde, record))
            self.coordinator.replay(record)
        return result.response

    def reload(self) -> None:
        self.coordinator = self._make_coordinator()
        for stored in self.records:
            load(self.coordinator, *stored)
        for result in self.coordinator.on_loaded(self.now):
            self.keep(result)

    def advance_clock(self, ms: int) -> None:
        self.now = Now(self.now.log_ms + ms, self.now.coordinator_ms + ms)

    def init(
        self, name: str = "t", timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
    ) -> InitProducerIdResponse:
        self.new_id += 1
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        response = self.keep(
            self.coordinator.init_producer_id(request, self.new_id, self.now, "/127.0.0.1")
        )
        assert isinstance(response, InitProducerIdResponse)
        return response

    def add(self, *partitions: tuple[str, int], producer_id: int = 101, epoch: int = 0) -> object:
        return self.keep(
            self.coordinator.add(
                "t", producer_id, epoch, partitions, self.now, second_protocol=self.second
            )
        )

    def end(
        self, *, commit: bool = True, producer_id: int = 101, epoch: int = 0, complete: bool = True
    ) -> EndTxnResponse:
        self.new_id += 1
        response = self.keep(
            self.coordinator.end(
                "t",
                producer_id,
                epoch,
                self.new_id,
                self.now,
                commit=commit,
                second_protocol=self.second,
            )
        )
        assert isinstance(response, EndTxnResponse)
        if complete:
            self.complete()
        return response

    def complete(self) -> list[str]:
        prepared = self.coordinator.take_prepared()
        for name in prepared:
            self.keep(self.coordinator.complete(name, self.now))
        return prepared

    def due(self) -> int:
        return len([self.keep(result) for result in self.coordinator.due(self.now)])

    @property
    def transaction(self) -> TransactionMetadata:
        return self.coordinator.transactions["t"]

    @property
    def state(self) -> str:
        return self.transaction.state.label

    def skip_to_epoch(self, epoch: int) -> None:
        """Continue as if `epoch` epochs had been used."""
        value = to_value(replace(self.transaction, epoch=epoch))
        record = CoordinatorRecord(TransactionLogKey(transactional_id="t"), value)
        self.records.append(store(self.coordinator.serde, record))
        self.coordinator.replay(record)


def producer_in(response: InitProducerIdResponse | EndTxnResponse) -> tuple[int, int, int]:
    """Return the error code, the producer ID and the producer epoch."""
    return response.error_code, response.producer_id, response.producer_epoch


# -- InitProducerId


def test_init_producer_id_bumps_epoch() -> None:
    log = Log()
    assert [producer_in(log.init()) for _ in range(3)] == [(0, 101, 0), (0, 101, 1), (0, 101, 2)]
    assert log.state == "Empty"
    assert producer_in(log.init("u")) == (0, 104, 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"name": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_000}, NONE),
    ],
)
def test_init_producer_id_validates_request(request_: dict[str, object], code: ErrorCode) -> None:
    response = Log().init(**request_)  # type: ignore[arg-type]
    assert producer_in(response) == ((code, -1, -1) if code else (0, 101, 0))


def test_init_producer_id_updates_timeout() -> None:
    log = Log()
    log.init(timeout_ms=1000)
    log.init(timeout_ms=2000)
    assert log.transaction.timeout_ms == 2000


def test_init_producer_id_with_known_producer_bumps_epoch() -> None:
    """KIP-360: only the producer with the last epoch may repeat the request."""
    log = Log()
    log.init()
    assert producer_in(log.init(producer_id=101, epoch=0)) == (0, 101, 1)
    assert producer_in(log.init(producer_id=101, epoch=0)) == (0, 101, 1)
    assert producer_in(log.init(producer_id=101, epoch=1)) == (0, 101, 2)
    for producer_id, epoch in ((101, 0), (101, 3), (999, 2)):
        assert producer_in(log.init(producer_id=producer_id, epoch=epoch)) == (FENCED, -1, -1)
    log.init()
    assert producer_in(log.init(producer_id=101, epoch=2)) == (FENCED, -1, -1)


def test_producer_id_of_unknown_transactional_id_is_ignored() -> None:
    assert producer_in(Log().init(producer_id=7, epoch=7)) == (0, 101, 0)


def test_exhausted_epochs_require_new_producer_id() -> None:
    log = Log()
    log.init()
    assert not log.coordinator.needs_producer_id("t")
    log.skip_to_epoch(LAST_EPOCH_GIVEN)
    assert log.coordinator.needs_producer_id("t")
    log.new_id = 500
    assert producer_in(log.init(producer_id=101, epoch=LAST_EPOCH_GIVEN)) == (0, 501, 0)
    assert producer_in(log.init(producer_id=101, epoch=LAST_EPOCH_GIVEN)) == (0, 501, 0)
    assert producer_in(log.init(producer_id=101, epoch=LAST_EPOCH_GIVEN - 1)) == (FENCED, -1, -1)
    log.skip_to_epoch(LAST_EPOCH_GIVEN)
    log.new_id = 600
    assert producer_in(log.init()) == (0, 601, 0)


@PROTOCOLS
def test_init_producer_id_aborts_open_transaction(second: bool) -> None:
    """The abort uses an epoch that no client has; the client retries."""
    log = Log(second=second)
    log.init()
    assert log.add(A) == NONE
    assert producer_in(log.init()) == (CONCURRENT, -1, -1)
    assert log.state == "PrepareAbort"
    assert producer_in(log.init()) == (CONCURRENT, -1, -1)
    assert log.complete() == ["t"]
    assert (log.state, log.transaction.epoch) == ("CompleteAbort", 1)
    assert producer_in(log.init()) == (0, 101, 2)


def test_producer_that_continues_gets_epoch_of_abort() -> None:
    log = Log()
    log.init()
    log.add(A)
    assert producer_in(log.init(producer_id=101, epoch=0)) == (CONCURRENT, -1, -1)
    log.complete()
    assert producer_in(log.init(producer_id=101, epoch=0)) == (0, 101, 1)


def test_only_last_epoch_may_be_continued() -> None:
    """The response with the last epoch may have been lost; older epochs are fenced."""
    log = Log()
    log.init()
    assert producer_in(log.init(producer_id=101, epoch=0)) == (0, 101, 1)
    for epoch in (1, 2):
        log.add(A, epoch=epoch)
        assert producer_in(log.end(epoch=epoch)) == (0, 101, epoch + 1)
    assert producer_in(log.init(producer_id=101, epoch=0)) == (FENCED, -1, -1)
    assert producer_in(log.init(producer_id=101, epoch=1)) == (FENCED, -1, -1)
    assert producer_in(log.init(producer_id=101, epoch=2)) == (0, 101, 3)


def test_coordinator_aborts_transaction_in_last_epoch() -> None:
    """The epoch above is never given to a client, because it could not be fenced."""
    for goes_on in ("init", "end"):
        log = Log()
        log.init()
        log.skip_to_epoch(LAST_EPOCH_GIVEN)
        log.add(A, epoch=LAST_EPOCH_GIVEN)
        log.advance_clock(60_000)
        assert log.due() == 1
        log.complete()
        assert log.transaction.epoch == LAST_EPOCH_GIVEN + 1
        log.new_id = 500
        if goes_on == "init":
            assert producer_in(log.init(producer_id=101, epoch=LAST_EPOCH_GIVEN)) == (0, 501, 0)
            assert producer_in(log.init(producer_id=101, epoch=LAST_EPOCH_GIVEN)) == (0, 501, 0)
        else:
            assert producer_in(log.end(commit=True, epoch=LAST_EPOCH_GIVEN)) == (INVALID, -1, -1)
            log.new_id = 500
            for _ in range(2):
                assert producer_in(log.end(commit=False, epoch=LAST_EPOCH_GIVEN)) == (0, 501, 0)
        assert log.add(A, producer_id=501) == NONE


# -- partitions


@PROTOCOLS
def test_added_partitions_join_transaction(second: bool) -> None:
    log = Log(second=second)
    log.init()
    log.advance_clock(5)
    assert log.add(A) == NONE
    began = log.now.log_ms
    log.advance_clock(5)
    assert log.add(B) == NONE
    known = len(log.records)
    assert log.add(A, B) == NONE
    assert len(log.records) == known, "adding known partitions stores no record"
    assert log.transaction.partitions == {A, B}
    assert (log.transaction.started_ms, log.state) == (began, "Ongoing")


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"), [(101, 1, FENCED), (101, -1, FENCED), (7, 0, MAPPING)]
)
def test_add_partitions_checks_producer(producer_id: int, epoch: int, code: ErrorCode) -> None:
    log = Log()
    log.init()
    assert log.add(A, producer_id=producer_id, epoch=epoch) == code
    log.add(A)
    assert log.coordinator.verify("t", producer_id, epoch, A) == code


def test_unknown_transactional_id_is_rejected() -> None:
    log = Log()
    for name, code in (("", ErrorCode.INVALID_REQUEST), ("missing", MAPPING)):
        assert log.coordinator.verify(name, 101, 0, A) == code
        added = log.coordinator.add(name, 101, 0, [A], NOW, second_protocol=False)
        assert added.response == code
        for second in (False, True):
            ended = log.coordinator.end(
                name, 101, 0, -1, NOW, commit=True, second_protocol=second
            ).response
            assert isinstance(ended, EndTxnResponse)
            assert producer_in(ended) == (code, -1, -1)


def test_verify_checks_partitions_of_open_transaction() -> None:
    log = Log(second=False)
    log.init()
    assert log.coordinator.verify("t", 101, 0, A) == ErrorCode.TRANSACTION_ABORTABLE
    log.add(A)
    assert log.coordinator.verify("t", 101, 0, A) == NONE
    assert log.coordinator.verify("t", 101, 0, B) == ErrorCode.TRANSACTION_ABORTABLE
    log.end(complete=False)
    assert log.coordinator.verify("t", 101, 0, A) == CONCURRENT
    assert log.add(B) == CONCURRENT
    log.complete()
    assert log.coordinator.verify("t", 101, 0, A) == ErrorCode.TRANSACTION_ABORTABLE


# -- ends


@pytest.mark.parametrize("commit", [True, False])
def test_first_protocol_keeps_epoch(commit: bool) -> None:
    log = Log(second=False)
    log.init()
    for _ in range(2):
        log.add(A)
        log.end(commit=commit)
        assert log.state == ("CompleteCommit" if commit else "CompleteAbort")
        assert (log.transaction.epoch, log.transaction.partitions) == (0, frozenset())


@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_results_of_first_protocol(commit: bool) -> None:
    log = Log(second=False)
    log.init()
    assert log.end(commit=commit).error_code == INVALID, "no transaction is open"
    log.add(A)
    assert log.end(commit=commit, epoch=1).error_code == FENCED
    assert log.end(commit=commit, producer_id=7).error_code == MAPPING
    assert producer_in(log.end(commit=commit, complete=False))[0] == NONE
    assert log.end(commit=commit, complete=False).error_code == CONCURRENT
    assert log.end(commit=not commit, complete=False).error_code == INVALID
    log.complete()
    known = len(log.records)
    assert log.end(commit=commit).error_code == NONE, "retry"
    assert log.end(commit=not commit).error_code == INVALID
    assert len(log.records) == known


@pytest.mark.parametrize(
    ("state", "commit", "from_previous_epoch", "code"),
    [
        ("Empty", False, True, FENCED),
        ("Empty", False, False, NONE),
        ("Empty", True, True, FENCED),
        ("Empty", True, False, INVALID),
        ("CompleteAbort", False, True, NONE),
        ("CompleteAbort", False, False, NONE),
        ("CompleteAbort", True, True, INVALID),
        ("CompleteAbort", True, False, INVALID),
        ("CompleteCommit", False, True, INVALID),
        ("CompleteCommit", False, False, NONE),
        ("CompleteCommit", True, True, NONE),
        ("CompleteCommit", True, False, INVALID),
    ],
)
def test_end_txn_results_of_second_protocol(
    state: str, commit: bool, from_previous_epoch: bool, code: ErrorCode
) -> None:
    """Table of KIP-890: the producer sends the previous epoch, or else the current one."""
    log = Log()
    log.init()
    if state == "Empty":
        log.init()
    else:
        log.add(A)
        log.end(commit=state == "CompleteCommit")
    now = log.transaction.epoch
    assert (log.state, now) == (state, 1)
    response = log.end(commit=commit, epoch=now - 1 if from_previous_epoch else now)
    if code:
        assert producer_in(response) == (code, -1, -1)
    else:
        assert producer_in(response) == (0, 101, now if from_previous_epoch else now + 1)
        assert log.transaction.epoch == response.producer_epoch
    for epoch in (now - 2, now + 2):
        assert producer_in(log.end(commit=commit, epoch=epoch)) == (FENCED, -1, -1)


def test_second_protocol_returns_concurrent_while_markers_are_written() -> None:
    log = Log()
    log.init()
    log.add(A)
    assert producer_in(log.end(complete=False)) == (0, 101, 1)
    assert log.end(complete=False).error_code == CONCURRENT
    assert log.end(complete=False, commit=False).error_code == INVALID
    assert log.end(complete=False, epoch=1).error_code == FENCED
    assert log.add(B, epoch=1) == CONCURRENT


def test_second_protocol_with_exhausted_epochs_returns_new_producer_id() -> None:
    """The producer continues with a new ID; markers still contain the old one."""
    log = Log()
    log.init()
    log.skip_to_epoch(LAST_EPOCH_GIVEN)
    log.add(A, epoch=LAST_EPOCH_GIVEN)
    log.new_id = 500
    assert producer_in(log.end(epoch=LAST_EPOCH_GIVEN, complete=False)) == (0, 501, 0)
    assert (log.transaction.producer_id, log.transaction.epoch) == (101, LAST_EPOCH_GIVEN + 1)
    assert log.add(A, producer_id=501) == CONCURRENT, "the producer may already have the response"
    log.complete()
    assert (log.transaction.producer_id, log.transaction.epoch) == (501, 0)
    assert producer_in(log.end(epoch=LAST_EPOCH_GIVEN)) == (0, 501, 0), "retry"
    assert log.add(A, producer_id=501) == NONE


# -- timeouts


@PROTOCOLS
def test_transaction_timeout_aborts_transaction(second: bool) -> None:
    log = Log(second=second)
    log.init(timeout_ms=1000)
    log.advance_clock(5000)
    log.add(A)
    log.advance_clock(999)
    assert log.due() == 0
    log.advance_clock(1)
    assert log.due() == 1
    log.complete()
    assert (log.state, log.transaction.epoch) == ("CompleteAbort", 1)
    assert log.add(A) == FENCED
    # With TV2 the abort looks like an abort by the producer.
    assert log.end(commit=False).error_code == (NONE if second else FENCED)
    assert log.end(commit=True).error_code == (INVALID if second else FENCED)


def test_each_transaction_has_its_own_timeout() -> None:
    log = Log(second=False)
    log.init(timeout_ms=1000)
    log.add(A)
    log.advance_clock(900)
    log.add(B)
    log.end()
    log.add(A)
    log.advance_clock(900)
    assert log.due() == 0, "the first transaction has ended"
    log.advance_clock(100)
    assert log.due() == 1


def test_abort_that_cannot_be_stored_is_retried() -> None:
    log = Log()
    log.init(timeout_ms=1000)
    log.add(A)
    log.advance_clock(1000)
    (result,) = log.coordinator.due(log.now)
    assert result.on_failure is not None
    result.on_failure(ErrorCode.KAFKA_STORAGE_ERROR, log.now)
    assert (log.state, log.due()) == ("Ongoing", 0)
    log.advance_clock(1000)
    assert log.due() == 1


def test_unused_transactional_ids_expire() -> None:
    log = Log()
    log.init()
    log.init("open")
    log.keep(log.coordinator.add("open", 102, 0, [A], log.now, second_protocol=True))
    log.advance_clock(7 * DAY_MS - 1)
    assert set(log.coordinator.expire(log.now)) == {None}
    log.advance_clock(1)
    for result in filter(None, log.coordinator.expire(log.now)):
        log.keep(result)
    assert set(log.coordinator.transactions) == {"open"}
    log.reload()
    assert set(log.coordinator.transactions) == {"open"}
    assert producer_in(log.init()) == (0, 103, 0), "the ID starts with a new producer ID"


# -- loading


@PROTOCOLS
@pytest.mark.parametrize("commit", [True, False])
def test_transaction_survives_load_at_every_step(second: bool, commit: bool) -> None:
    log = Log(second=second)
    log.init()
    log.reload()
    log.add(A, B)
    log.reload()
    assert (log.state, log.transaction.partitions) == ("Ongoing", frozenset({A, B}))
    log.end(commit=commit, complete=False)
    log.reload()
    assert log.transaction.partitions == {A, B}
    assert log.complete() == ["t"], "the markers are written again"
    log.reload()
    assert log.complete() == []
    assert log.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_transaction_timeout_continues_after_load() -> None:
    log = Log()
    log.init(timeout_ms=1000)
    log.add(A)
    log.advance_clock(400)
    log.reload()
    log.advance_clock(599)
    assert log.due() == 0
    log.advance_clock(1)
    assert log.due() == 1


def test_clock_set_back_does_not_prolong_transaction() -> None:
    log = Log()
    log.init()
    log.add(A)
    log.now = Now(log.now.log_ms - DAY_MS, log.now.coordinator_ms)
    log.reload()
    log.advance_clock(60_000)
    assert log.due() == 1


def test_rejected_operations_change_nothing() -> None:
    """If a result cannot be stored, the client gets an error and the state is unchanged."""
    log = Log()
    log.init()
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
    init = log.coordinator.init_producer_id(request, 9, NOW, "/127.0.0.1")
    add = log.coordinator.add("t", 101, 0, [A], NOW, second_protocol=True)
    offline = ErrorCode.KAFKA_STORAGE_ERROR
    assert init.on_failure is not None
    assert add.on_failure is not None
    refused = init.on_failure(offline, NOW).response
    assert isinstance(refused, InitProducerIdResponse)
    assert producer_in(refused) == (ErrorCode.NOT_COORDINATOR, -1, -1)
    assert add.on_failure(offline, NOW).response == ErrorCode.NOT_COORDINATOR
    assert (log.state, log.transaction.epoch) == ("Empty", 0)


def test_record_value_round_trips() -> None:
    transaction = TransactionMetadata(
        producer_id=5,
        epoch=7,
        previous_producer_id=4,
        next_producer_id=6,
        timeout_ms=1000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset({A, B, ("other", 3)}),
        updated_ms=20,
        started_ms=10,
        second_protocol=True,
    )
    assert from_value(to_value(transaction)) == transaction


def test_record_with_unknown_state_raises_decode_error() -> None:
    value = to_value(TransactionMetadata(1, 1000, 0))
    value.status = 99
    with pytest.raises(DecodeError, match="transactional ID 't'"):
        load(Log().coordinator, encode_key("t"), encode_value(value, 1))


def test_state_labels_match_kafka() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


# -- operations without a producer


@PROTOCOLS
def test_abort_without_producer_request_fences_producer(second: bool) -> None:
    log = Log(second=second)
    assert not log.coordinator.abort("t", NOW, cause="x").records, "no transaction is open"
    log.init()
    assert not log.coordinator.abort("t", NOW, cause="x").records
    log.add(A)
    assert log.coordinator.deadline("t") == NOW.coordinator_ms + 60_000
    log.keep(log.coordinator.abort("t", NOW, cause="x"))
    assert log.coordinator.deadline("t") is None
    assert log.complete() == ["t"]
    known = log.coordinator.transactions["t"]
    assert (known.state, known.epoch) == (TransactionState.COMPLETE_ABORT, 1)
    assert log.end(commit=True).error_code in (FENCED, INVALID)


@pytest.mark.parametrize("is_open", [True, False])
def test_raise_epoch_fences_known_epochs(is_open: bool) -> None:
    log = Log()
    log.init()
    if is_open:
        log.add(A)
    log.keep(log.coordinator.raise_epoch("t", 7, NOW))
    log.complete()
    assert log.coordinator.transactions["t"].epoch == 8
    assert not log.coordinator.raise_epoch("t", 7, NOW).records, (
        "all known epochs are already fenced"
    )
    for epoch in range(8):
        assert log.end(epoch=epoch, commit=True).error_code in (FENCED, INVALID)
        assert log.add(A, epoch=epoch) == FENCED
    assert log.init().producer_epoch == 9


def test_raise_epoch_above_last_epoch_requires_new_producer_id() -> None:
    log = Log()
    log.init()
    log.keep(log.coordinator.raise_epoch("t", LAST_EPOCH_GIVEN + 1, NOW))
    assert log.coordinator.transactions["t"].epoch == LAST_EPOCH_GIVEN + 1
    response = log.init()
    assert (response.producer_id, response.producer_epoch) == (log.new_id, 0)
