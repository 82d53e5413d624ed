"""A message that was filled in is the same as one that was made and encoded."""

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
from kbroker.protocol.stencil import Stencil

RESPONSE: Any = ProduceResponse

NUMBERS = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)
LONG = st.integers(-(2**63), 2**63 - 1)


def answer(base_offset: int, time_ms: int, log_start: int) -> ProduceResponse:
    row = ProduceResponse.Partition(
        index=7, base_offset=base_offset, log_append_time_ms=time_ms, log_start_offset=log_start
    )
    topic = ProduceResponse.Topic(name="orders", topic_id=UUID(int=9), partition_responses=[row])
    return ProduceResponse(responses=[topic])


@pytest.mark.parametrize("version", range(5, RESPONSE.VERSIONS.stop))
@given(numbers=st.tuples(LONG, LONG, LONG))
def test_filled_in_as_made(version: int, numbers: tuple[int, int, int]) -> None:
    filled = Stencil(answer(*NUMBERS), version, NUMBERS).filled(*numbers)
    assert filled.body == encode_bytes(answer(*numbers), version)


def test_one_can_be_filled_in_again() -> None:
    stencil = Stencil(answer(*NUMBERS), 9, NUMBERS)
    first, second = stencil.filled(1, 2, 3), stencil.filled(4, 5, 6)
    assert first.body == encode_bytes(answer(1, 2, 3), 9)
    assert second.body == encode_bytes(answer(4, 5, 6), 9)


def test_numbers_that_do_not_stand_side_by_side_are_refused() -> None:
    with pytest.raises(ValueError, match="ProduceResponse version 4 has no such row of numbers"):
        Stencil(answer(*NUMBERS), 4, NUMBERS)  # which has no log start offset


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(struct.error):
        Stencil(answer(*NUMBERS), 9, NUMBERS).filled(2**63, 0, 0)


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.API_VERSIONS])
@pytest.mark.parametrize("version", [3, 8, 9])
@pytest.mark.parametrize("size", [0, 100, 4000, 5000, 100_000])
def test_a_frame_of_what_was_encoded_before(key: ApiKey, version: int, size: int) -> None:
    """Small and large ones, after headers with and without tagged fields (KIP-482, KIP-511)."""
    body = b"x" * size
    parts: list[Any] = encode_response(77, key, version, Encoded(RESPONSE, version, body))
    frame = b"".join(parts)
    has_tags = key is ApiKey.PRODUCE and version >= 9
    header = struct.pack(">i", 77) + (b"\0" if has_tags else b"")
    assert frame == struct.pack(">i", len(header + body)) + header + body
