from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import DecodeError, EncodeError
from kbroker.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.schema import Message

from .oracles import KafkaPython
from .samples import Pair, Style, declared, declared_pairs, sample


def joined(parts: list[Any]) -> bytes:
    return b"".join(parts)


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        (3, "000c 0003 00000007 0002 6d65"),
        (4, "000c 0004 00000007 0002 6d65 00"),
        (4, "000c 0004 00000007 0002 6d65 01 2a 03 616263"),
    ],
)
def test_request_header_is_decoded_by_version(version: int, raw: str) -> None:
    data = bytes.fromhex(raw)
    expected = RequestHeader(12, version, 7, "me")
    assert decode_request_header(memoryview(data + b"body")) == (expected, len(data))


def test_the_client_id_may_be_null_or_empty() -> None:
    header, position = decode_request_header(bytes.fromhex("000c 0000 00000007 ffff"))
    assert (header.client_id, position) == (None, 10)
    header, position = decode_request_header(bytes.fromhex("000c 0000 00000007 0000"))
    assert (header.client_id, position) == ("", 10)


@pytest.mark.parametrize(("key", "version"), [(18, 99), (12, 5), (4, 7), (999, 0), (-1, -1)])
def test_header_of_an_unknown_version_ends_after_the_client_id(key: int, version: int) -> None:
    raw = struct.pack(">hhih", key, version, 1, 0)
    assert decode_request_header(raw) == (RequestHeader(key, version, 1, ""), 10)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "000c 0003 00000007",
        "000c 0003 00000007 0002 6d",
        "000c 0003 00000007 fffe",
        "000c 0003 00000007 0002 c328",
        "000c 0004 00000007 0002 6d65",
        "000c 0004 00000007 0002 6d65 41",
    ],
)
def test_malformed_request_header_is_rejected(raw: str) -> None:
    with pytest.raises(DecodeError):
        decode_request_header(bytes.fromhex(raw))


@given(st.binary(max_size=40))
def test_arbitrary_bytes_raise_only_decode_errors(raw: bytes) -> None:
    try:
        _, position = decode_request_header(memoryview(raw))
    except DecodeError:
        return
    assert position >= 10


def test_request_frame_is_encoded() -> None:
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    frame = joined(encode_request(12, 4, 7, "me", message))
    assert frame == bytes.fromhex(
        "00000017 000c 0004 00000007 0002 6d65 00  02 67 00000001 02 6d 00 00"
    )
    header, position = decode_request_header(frame[4:])
    assert (header, position) == ((12, 4, 7, "me"), 13)


def test_response_frame_is_encoded() -> None:
    parts = encode_response(7, 12, 4, HeartbeatResponse(throttle_time_ms=1, error_code=2))
    assert joined(parts) == bytes.fromhex("0000000c 00000007 00 00000001 0002 00")
    parts = encode_response(7, 12, 1, HeartbeatResponse(throttle_time_ms=1, error_code=2))
    assert joined(parts) == bytes.fromhex("0000000a 00000007 00000001 0002")


def test_api_versions_response_has_no_header_tags() -> None:
    response = ApiVersionsResponse(error_code=35)
    assert joined(encode_response(7, 18, 3, response)) == bytes.fromhex(
        "0000000c 00000007 0023 01 00000000 00"
    )
    assert joined(encode_response(7, 18, 0, response)) == bytes.fromhex(
        "0000000a 00000007 0023 00000000"
    )
    frame = joined(encode_response(7, 18, 3, response))[4:]
    assert decode_response(ApiVersionsResponse, frame, 3) == (7, response)


def test_frame_length_includes_deferred_ranges() -> None:
    class Range:
        def __len__(self) -> int:
            return 1_000_000

    records = Range()
    partition = FetchResponse.Partition(records=records)
    response = FetchResponse(responses=[FetchResponse.Topic(partitions=[partition])])
    parts = encode_response(1, 1, 12, response)
    assert parts[1] is records
    head, tail = parts[0], parts[2]
    assert isinstance(head, bytearray)
    assert struct.unpack_from(">i", head) == (len(head) + 1_000_000 + len(tail) - 4,)


def test_message_that_does_not_fit_is_an_encode_error() -> None:
    with pytest.raises(EncodeError):
        encode_response(1, 12, 0, HeartbeatResponse(error_code=2**15))
    with pytest.raises(EncodeError):
        encode_request(18, 99, 1, None, ApiVersionsRequest())


@pytest.mark.parametrize("raw", ["", "000000", "00000007", "00000007 01", "00000007 01 05 02 00"])
def test_malformed_response_is_rejected(raw: str) -> None:
    with pytest.raises(DecodeError):
        decode_response(HeartbeatResponse, bytes.fromhex(raw), 4)


def test_unknown_tags_in_a_response_header_are_skipped() -> None:
    frame = bytes.fromhex("00000007 01 05 02 abcd 00000001 0002 00")
    expected = HeartbeatResponse(throttle_time_ms=1, error_code=2)
    assert decode_response(HeartbeatResponse, frame, 4) == (7, expected)


def our_frame(pair: Pair, message: Message) -> tuple[bytes, int]:
    """Return a complete frame and the start of its body, after reading its header back."""
    key, version, kind = pair
    if kind == "request":
        frame = joined(encode_request(key, version, 77, "client", message))
        header, position = decode_request_header(frame[4:])
        assert header == (key, version, 77, "client")
        return frame, position + 4
    frame = joined(encode_response(77, key, version, message))
    assert decode_response(type(message), frame[4:], version) == (77, message)
    has_tags = type(message).is_flexible(version) and key != ApiKey.API_VERSIONS
    return frame, 9 if has_tags else 8


@pytest.mark.slow
def test_frames_equal_those_of_kafka_python(capsys: pytest.CaptureFixture[str]) -> None:
    oracle = KafkaPython()
    pairs = sorted(set(declared_pairs()) & oracle.pairs())
    for pair in pairs:
        message = sample(declared(pair), pair[1], random.Random(str(pair)), Style.EMPTY)
        frame, position = our_frame(pair, message)
        theirs = oracle.read(pair, frame[position:])
        assert oracle.frame(pair, theirs, 77, "client") == frame, pair
    with capsys.disabled():
        print(f"\n{oracle.name}: {len(pairs)} frames compared")
    assert len(pairs) > 500
