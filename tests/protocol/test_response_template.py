"""A filled template equals a newly encoded message."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded, encode_bytes
from kbroker.protocol.headers import encode_response
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.protocol.response_template import ResponseTemplate

RESPONSE: Any = ProduceResponse

LAYOUT = ">ihqqq"
NUMBERS = (0x01020304, 0x1112, 0x2122232425262728, 0x3132333435363738, 0x4142434445464748)
SHORT, INT, LONG = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))


def response_with(
    index: int, error_code: int, base_offset: int, time_ms: int, log_start: int
) -> ProduceResponse:
    row = ProduceResponse.Partition(
        index=index,
        error_code=error_code,
        base_offset=base_offset,
        log_append_time_ms=time_ms,
        log_start_offset=log_start,
    )
    topic = ProduceResponse.Topic(name="orders", topic_id=UUID(int=9), partition_responses=[row])
    return ProduceResponse(responses=[topic])


@pytest.mark.slow
@pytest.mark.parametrize("version", range(5, RESPONSE.VERSIONS.stop))
@given(numbers=st.tuples(INT, SHORT, LONG, LONG, LONG))
def test_filled_template_equals_an_encoded_message(
    version: int, numbers: tuple[int, int, int, int, int]
) -> None:
    fill = ResponseTemplate(response_with(*NUMBERS), version, LAYOUT, *NUMBERS).fill(*numbers)
    assert fill.body == encode_bytes(response_with(*numbers), version)


def test_template_can_be_filled_again() -> None:
    template = ResponseTemplate(response_with(*NUMBERS), 9, LAYOUT, *NUMBERS)
    first, second = template.fill(1, 2, 3, 4, 5), template.fill(6, 7, 8, 9, 10)
    assert first.body == encode_bytes(response_with(1, 2, 3, 4, 5), 9)
    assert second.body == encode_bytes(response_with(6, 7, 8, 9, 10), 9)


def test_numbers_that_are_not_adjacent_are_rejected() -> None:
    with pytest.raises(ValueError, match="ProduceResponse version 4: the numbers are not adjacent"):
        ResponseTemplate(
            response_with(*NUMBERS), 4, LAYOUT, *NUMBERS
        )  # version 4 has no log start offset


def test_number_that_does_not_fit_is_rejected() -> None:
    with pytest.raises(struct.error):
        ResponseTemplate(response_with(*NUMBERS), 9, LAYOUT, *NUMBERS).fill(0, 0, 2**63, 0, 0)


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.API_VERSIONS])
@pytest.mark.parametrize("version", [3, 8, 9])
@pytest.mark.parametrize("size", [0, 100, 4000, 5000, 100_000])
def test_frame_of_an_encoded_message_equals_that_of_the_message(
    key: ApiKey, version: int, size: int
) -> None:
    """Small and large messages, after headers with and without tagged fields (KIP-482, KIP-511)."""
    body = b"x" * size
    parts: list[Any] = encode_response(77, key, version, Encoded(RESPONSE, version, body))
    frame = b"".join(parts)
    has_tags = key is ApiKey.PRODUCE and version >= 9
    header = struct.pack(">i", 77) + (b"\0" if has_tags else b"")
    assert frame == struct.pack(">i", len(header + body)) + header + body
