"""Errors that clients get after a failed append."""

from __future__ import annotations

from kbroker.coordinator import Answer, PendingResponse, append_error
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse


def test_lost_response_becomes_error() -> None:
    code = ErrorCode.NOT_COORDINATOR
    join: PendingResponse[JoinGroupResponse] = PendingResponse("g", "m")
    response = Answer(join, JoinGroupResponse(generation_id=3, member_id="m", leader="m"))
    assert response.with_error(code) == (join, JoinGroupResponse(error_code=code, member_id="m"))
    sync: PendingResponse[SyncGroupResponse] = PendingResponse("g", "m")
    refused = Answer(sync, SyncGroupResponse(assignment=b"x")).with_error(code)
    assert refused == (sync, SyncGroupResponse(error_code=code))


def test_partition_errors_become_coordinator_errors() -> None:
    translated = {code: append_error(code) for code in ErrorCode}
    changed = {code.name: translated[code].name for code in ErrorCode if translated[code] != code}
    assert changed == {
        "UNKNOWN_TOPIC_OR_PARTITION": "COORDINATOR_NOT_AVAILABLE",
        "NOT_ENOUGH_REPLICAS": "COORDINATOR_NOT_AVAILABLE",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "COORDINATOR_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT": "COORDINATOR_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER": "NOT_COORDINATOR",
        "KAFKA_STORAGE_ERROR": "NOT_COORDINATOR",
        "MESSAGE_TOO_LARGE": "UNKNOWN_SERVER_ERROR",
        "RECORD_LIST_TOO_LARGE": "UNKNOWN_SERVER_ERROR",
        "INVALID_FETCH_SIZE": "UNKNOWN_SERVER_ERROR",
    }
