from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode, KafkaError


def test_error_codes_are_contiguous() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


def test_error_names_and_retriability_equal_those_of_kafka() -> None:
    from kio.schema.errors import ErrorCode as Theirs

    ours = {code.name: (int(code), code.retriable) for code in ErrorCode}
    assert ours == {code.name.upper(): (int(code), code.retriable) for code in Theirs}


@pytest.mark.parametrize(
    ("message", "text"),
    [(None, "INVALID_REQUEST"), ("no topics", "INVALID_REQUEST: no topics")],
)
def test_kafka_error_has_its_code(message: str | None, text: str) -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, message)
    assert (error.code, error.message, str(error)) == (42, message, text)
