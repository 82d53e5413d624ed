from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError

# Errors of Kafka 4.4 that kio does not have yet: code, and whether the error is retriable.
NEW_IN_4_4 = {
    "GROUP_DELETION_FAILED": (134, False),
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": (135, False),
    "CONTROLLER_ID_NOT_REGISTERED": (136, False),
}


def test_error_codes_are_contiguous() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 137))


def test_error_names_and_retriability_equal_those_of_kafka() -> None:
    from kio.schema.errors import ErrorCode as Theirs

    ours = {code.name: (int(code), code.retriable) for code in ErrorCode}
    theirs = {code.name.upper(): (int(code), code.retriable) for code in Theirs}
    assert ours == theirs | NEW_IN_4_4


@pytest.mark.parametrize(
    ("message", "text"),
    [(None, "INVALID_REQUEST"), ("no topics", "INVALID_REQUEST: no topics")],
)
def test_kafka_error_has_its_code(message: str | None, text: str) -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, message)
    assert (error.code, error.message, str(error)) == (42, message, text)
