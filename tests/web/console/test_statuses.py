"""HTTP statuses of Kafka's error codes and of the client's errors."""

from __future__ import annotations

import pytest

from kbroker.client.errors import CannotAbort, CannotRead, ClientError, NoSuchTopic, TimedOut
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.web.console.statuses import STATUS_OF_CODE, status_of

ERRORS = [code for code in ErrorCode if code is not ErrorCode.NONE]
# Codes named INVALID_ that report a state of the cluster or of a session, not an invalid request.
STATES = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_status_says_who_can_fix_the_error(code: ErrorCode) -> None:
    status = status_of(KafkaError(code))
    if code.name.endswith("AUTHORIZATION_FAILED"):
        assert status == 403
    elif code.name.endswith("NOT_FOUND") and not code.retriable:
        assert status == 404
    elif code.name.startswith("INVALID_") and code not in STATES:
        assert status == 400
    elif code.name.endswith("TOO_LARGE") and code is not ErrorCode.OFFSET_METADATA_TOO_LARGE:
        assert status == 413
    else:
        assert status in (400, 403, 404, 409, 429, 502)


def test_table_has_every_error_code_once() -> None:
    assert set(STATUS_OF_CODE) == set(ERRORS)


def test_unavailable_brokers_are_neither_a_client_error_nor_a_stopped_console() -> None:
    for code in (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ):
        assert status_of(KafkaError(code)) == 502


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoSuchTopic("topic 't' does not exist"), 404),
        (CannotAbort("the transaction is not open"), 409),
        (CannotRead(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "cannot be read"), 403),
        (TimedOut("the operation timed out"), 502),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else str(each),
)
def test_status_of_client_error(error: ClientError, status: int) -> None:
    assert status_of(error) == status
