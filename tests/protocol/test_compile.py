from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sized
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol.compile import (
    DETACHED_SIZE,
    OBJECTS_MAX,
    DecodeError,
    EncodeError,
    decode,
    encode,
    encode_after,
    encode_bytes,
    source,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    ListGroupsRequest,
)
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.offsets import OffsetFetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.share_groups import ShareFetchResponse
from kbroker.protocol.primitives import write_uvarint
from kbroker.protocol.schema import ZERO_UUID, Int32, Records, message, wire

from .samples import Pair, Style, declared, declared_pairs, plain, sample

PAIRS = declared_pairs()


def decode_hex(cls: type[Any], raw: str, version: int) -> Any:
    value, end = decode(cls, bytes.fromhex(raw), version)
    assert end == len(bytes.fromhex(raw))
    return value


# -- bytes by hand --------------------------------------------------------------------------


def test_message_is_encoded_before_and_after_its_first_flexible_version() -> None:
    request = HeartbeatRequest(
        group_id="grp", generation_id=5, member_id="m", group_instance_id="i"
    )
    assert encode_bytes(request, 2).hex() == "00036772700000000500016d"
    assert encode_bytes(request, 3).hex() == "00036772700000000500016d000169"
    assert encode_bytes(request, 4).hex() == "0467727000000005026d026900"
    assert decode_hex(HeartbeatRequest, "04677270 00000005 026d 0269 00", 4) == request
    request.group_instance_id = None
    assert encode_bytes(request, 3).hex() == "00036772700000000500016dffff"
    assert encode_bytes(request, 4).hex() == "0467727000000005026d0000"
    assert decode_hex(HeartbeatRequest, "04677270 00000005 026d 00 00", 4) == request


def test_null_and_empty_arrays_are_distinguished() -> None:
    request = MetadataRequest(topics=None)
    nothing = MetadataRequest(topics=[])
    assert encode_bytes(request, 1).hex() == "ffffffff"
    assert encode_bytes(nothing, 1).hex() == "00000000"
    assert encode_bytes(request, 9).hex() == "0001000000"
    assert encode_bytes(nothing, 9).hex() == "0101000000"
    assert decode_hex(MetadataRequest, "00 01 00 00 00", 9) == request
    assert decode_hex(MetadataRequest, "01 01 00 00 00", 9) == nothing


def test_none_is_encoded_as_empty_if_not_nullable() -> None:
    assert encode_bytes(MetadataRequest(topics=None), 0).hex() == "00000000"
    response = JoinGroupResponse(protocol_name=None, leader="l", member_id="m")
    assert encode_bytes(response, 0).hex() == "0000ffffffff000000016c00016d00000000"
    assert encode_bytes(response, 7)[10:12] == b"\x00\x00"
    required: Any = HeartbeatRequest(group_id=None)  # type: ignore[arg-type]
    assert encode_bytes(required, 4).hex() == "0100000000010000"
    listed: Any = OffsetFetchRequest(group_id="g", topics=None)
    assert encode_bytes(listed, 1).hex() == "00016700000000"
    assert encode_bytes(listed, 2).hex() == "000167ffffffff"
    struct: Any = ShareFetchResponse.Partition(current_leader=None, records=None)  # type: ignore[arg-type]
    topic = ShareFetchResponse.Topic(partitions=[struct])
    decoded, _ = decode(
        ShareFetchResponse, encode_bytes(ShareFetchResponse(responses=[topic]), 1), 1
    )
    assert decoded.responses[0].partitions[0].current_leader == ShareFetchResponse.Leader()
    assert decoded.responses[0].partitions[0].records == b""


def test_fields_outside_of_the_version_are_skipped_and_get_their_default() -> None:
    request = FetchRequest(
        session_id=5,
        rack_id="r",
        topics=[
            FetchRequest.Topic(
                topic="t",
                topic_id=UUID(int=1),
                partitions=[FetchRequest.Partition(partition=1, log_start_offset=4)],
            )
        ],
    )
    decoded, _ = decode(FetchRequest, encode_bytes(request, 4), 4)
    assert (decoded.session_id, decoded.session_epoch, decoded.rack_id) == (0, -1, "")
    assert decoded.topics[0].topic == "t"
    assert decoded.topics[0].topic_id == ZERO_UUID
    assert decoded.topics[0].partitions == [FetchRequest.Partition(partition=1)]
    decoded, _ = decode(FetchRequest, encode_bytes(request, 13), 13)
    assert (decoded.topics[0].topic, decoded.topics[0].topic_id) == ("", UUID(int=1))


def test_array_missing_in_a_version_is_decoded_as_a_new_list() -> None:
    one = decode_hex(MetadataResponse, "00000000 00000000", 0)
    two = decode_hex(MetadataResponse, "00000000 00000000", 0)
    partition = "0000 00000001 00000002 00000000 00000000"
    raw = "00000000 00000001 0000 000174 00000001" + partition
    three = decode_hex(MetadataResponse, raw, 0).topics[0].partitions[0]
    four = decode_hex(MetadataResponse, raw, 0).topics[0].partitions[0]
    assert one == two
    assert three.offline_replicas == []
    assert three.offline_replicas is not four.offline_replicas


def test_list_offsets_response_version_0_has_an_array() -> None:
    partition = ListOffsetsResponse.Partition(old_style_offsets=[7, 0], offset=3, timestamp=4)
    response = ListOffsetsResponse(
        topics=[ListOffsetsResponse.Topic(name="t", partitions=[partition])]
    )
    head = "0000000100017400000001000000000000"
    assert encode_bytes(response, 0).hex() == head + "00000002" + f"{7:016x}" + f"{0:016x}"
    assert encode_bytes(response, 1).hex() == head + f"{4:016x}" + f"{3:016x}"


def test_nullable_struct_is_encoded_with_a_marker() -> None:
    response = ConsumerGroupHeartbeatResponse(error_code=1)
    empty = "00000000000100000000000000000000"
    assert encode_bytes(response, 1).hex() == empty + "ff" + "00"
    response.assignment = ConsumerGroupHeartbeatResponse.Assignment()
    assert encode_bytes(response, 1).hex() == empty + "01" + "0100" + "00"
    assert decode_hex(ConsumerGroupHeartbeatResponse, empty + "01 01 00 00", 1) == response


def test_error_codes_may_be_enum_members() -> None:
    response = HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
    assert encode_bytes(response, 0).hex() == "0016"
    assert decode_hex(HeartbeatResponse, "0016", 0).error_code == ErrorCode.ILLEGAL_GENERATION


def test_lengths_of_more_than_one_byte_are_encoded() -> None:
    for size in (126, 127, 128, 16_383, 32_767):
        request = HeartbeatRequest(group_id="x" * size)
        data = encode_bytes(request, 4)
        assert data.startswith(write_uvarint(size + 1) + b"xxx")
        assert decode(HeartbeatRequest, data, 4) == (request, len(data))
    for count in (126, 127, 128, 20_000):
        groups = DescribeGroupsRequest(groups=["g"] * count)
        data = encode_bytes(groups, 5)
        assert decode(DescribeGroupsRequest, data, 5) == (groups, len(data))


def test_message_without_fields_is_encoded_as_no_part() -> None:
    assert encode(ListGroupsRequest(), 0) == []
    assert decode(ListGroupsRequest, b"", 0) == (ListGroupsRequest(), 0)


def test_message_is_decoded_from_the_middle_of_a_buffer() -> None:
    data = encode_bytes(HeartbeatRequest(group_id="g"), 4)
    for buffer in (bytes, bytearray, memoryview):
        whole = buffer(b"before" + data + b"after")
        request, end = decode(HeartbeatRequest, whole, 4, 6)
        assert request.group_id == "g"
        assert end == 6 + len(data)


# -- tagged fields --------------------------------------------------------------------------

EMPTY_TAGGED = "00000100000000"


def test_default_tagged_fields_are_omitted() -> None:
    response = ApiVersionsResponse()
    assert encode_bytes(response, 3).hex() == EMPTY_TAGGED + "00"
    response.finalized_features_epoch = 9
    response.supported_features = [ApiVersionsResponse.SupportedFeature(name="f", max_version=1)]
    assert encode_bytes(response, 3).hex() == (
        EMPTY_TAGGED + "02" + "00 08 02 0266 0000 0001 00".replace(" ", "") + "0108" + f"{9:016x}"
    )
    assert encode_bytes(response, 2).hex() == "00000000000000000000"


def test_default_tagged_struct_is_omitted() -> None:
    absent = FetchRequest(max_wait_ms=1)
    unset = FetchRequest(max_wait_ms=1, replica_state=FetchRequest.ReplicaState())
    follower = FetchRequest(max_wait_ms=1, replica_state=FetchRequest.ReplicaState(replica_id=2))
    assert encode_bytes(unset, 15) == encode_bytes(absent, 15)
    data = encode_bytes(follower, 15)
    assert data.endswith(bytes.fromhex("01 01 0d 00000002 ffffffffffffffff 00"))
    assert decode(FetchRequest, data, 15) == (follower, len(data))


def test_unknown_tagged_fields_are_skipped() -> None:
    noise = "03" + "01 08 0000000000000009" + "05 02 abcd" + "ac02 00"
    response = decode_hex(ApiVersionsResponse, EMPTY_TAGGED + noise, 3)
    assert response == ApiVersionsResponse(finalized_features_epoch=9)
    assert decode_hex(HeartbeatResponse, "00000000 0001 02 0500 07 01 ff", 4).error_code == 1


@pytest.mark.parametrize(
    "tags",
    [
        "01 01 07 0000000000000009",
        "01 01 09 0000000000000009 00",
        "01 01 08 00000000000000",
        "41" + "0900" * 65,
        "01 05 ff",
        "01 ffffffffff01 00",
        "01",
    ],
)
def test_malformed_tagged_fields_are_rejected(tags: str) -> None:
    with pytest.raises(DecodeError):
        decode_hex(ApiVersionsResponse, EMPTY_TAGGED + tags, 3)


# -- records --------------------------------------------------------------------------------


class Range(Sized):
    """A stand-in for a range of a file, with bytes that are not in memory."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def produce(records: Any) -> ProduceRequest:
    return ProduceRequest(
        topic_data=[
            ProduceRequest.Topic(
                name="t", partition_data=[ProduceRequest.Partition(records=records)]
            )
        ]
    )


def records_of(request: ProduceRequest) -> Any:
    return request.topic_data[0].partition_data[0].records


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("version", [3, 9])
def test_records_of_any_buffer_type_are_encoded(kind: type, version: int) -> None:
    request = produce(kind(b"batch"))
    decoded, _ = decode(ProduceRequest, encode_bytes(request, version), version)
    assert isinstance(records_of(decoded), memoryview)
    assert records_of(decoded) == b"batch"


def test_null_and_empty_records_are_distinguished() -> None:
    for version in (3, 9):
        for records in (None, b""):
            decoded, _ = decode(ProduceRequest, encode_bytes(produce(records), version), version)
            assert records_of(decoded) == records


def test_small_records_are_joined_and_large_ones_are_separate_parts() -> None:
    assert len(encode(produce(bytes(DETACHED_SIZE - 1)), 9)) == 1
    large = memoryview(bytes(DETACHED_SIZE))
    parts = encode(produce(large), 9)
    assert parts[1] is large
    assert [len(part) for part in parts][1:] == [DETACHED_SIZE, 3]
    assert encode_bytes(produce(large), 9) == b"".join(parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, DETACHED_SIZE, 10**12])
def test_deferred_range_is_a_separate_part(size: int) -> None:
    deferred = Range(size)
    version = 8 if size > 2**31 else 9
    if size > 2**31:
        with pytest.raises(EncodeError):
            encode(produce(deferred), version)
        return
    parts = encode(produce(deferred), version)
    assert parts[1] is deferred
    whole = b"".join(bytes(part) if isinstance(part, bytearray) else bytes(size) for part in parts)
    decoded, _ = decode(ProduceRequest, whole, version)
    assert records_of(decoded) == bytes(size)
    with pytest.raises(EncodeError):
        encode_bytes(produce(deferred), version)


def test_empty_range_is_no_part() -> None:
    assert len(encode(produce(Range(0)), 9)) == 1


def test_several_ranges_keep_their_order() -> None:
    ranges = [Range(5000 + index) for index in range(3)]
    response = FetchResponse(
        responses=[
            FetchResponse.Topic(
                partitions=[FetchResponse.Partition(records=each) for each in ranges]
            )
        ]
    )
    parts = encode(response, 12)
    assert [part for part in parts if isinstance(part, Range)] == ranges
    assert len(parts) == 7


def test_decoded_records_are_views_of_the_frame() -> None:
    frame = bytearray(encode_bytes(produce(b"batch"), 9))
    request, _ = decode(ProduceRequest, memoryview(frame), 9)
    frame[frame.index(b"batch")] = ord("m")
    assert records_of(request) == b"match"


def test_message_is_encoded_after_a_header() -> None:
    out = bytearray(b"head")
    parts = encode_after(out, produce(Range(9)), 9)
    assert parts[0] is out
    assert out.startswith(b"head")


# -- invalid input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "version", "raw"),
    [
        (HeartbeatRequest, 3, "fffe 00000001 0001 6d ffff"),  # length -2
        (HeartbeatRequest, 3, "ffff 00000001 0001 6d ffff"),  # null for a non-nullable string
        (HeartbeatRequest, 4, "00 00000001 02 6d 00 00"),
        (HeartbeatRequest, 3, "0002 c328 00000001 0001 6d ffff"),  # not UTF-8
        (HeartbeatRequest, 4, "03 eda0 00000001 02 6d 00 00"),
        (HeartbeatRequest, 3, "7fff 00"),
        (HeartbeatRequest, 4, "8080808001 00"),  # above the maximum string length
        (MetadataRequest, 0, "ffffffff"),
        (MetadataRequest, 1, "fffffffe"),
        (MetadataRequest, 1, "7fffffff"),
        (MetadataRequest, 9, "ffffffff0f"),
        (MetadataRequest, 9, "ffffffffff01"),
        (MetadataRequest, 9, "02"),
        (ProduceRequest, 3, "ffff 0001 00000000 00000001 0000 00000001 00000000 fffffffe"),
    ],
)
def test_malformed_bytes_are_rejected(cls: type[Any], version: int, raw: str) -> None:
    with pytest.raises(DecodeError):
        decode(cls, bytes.fromhex(raw), version)


def test_count_above_the_rest_of_the_frame_is_rejected() -> None:
    started = time.process_time()
    for raw in ("7fffffff" + "0000" * 1000, "10000000" + "0000" * 1000):
        with pytest.raises(DecodeError, match="topics"):
            decode(MetadataRequest, bytes.fromhex(raw), 1)
    assert time.process_time() - started < 5, "the decoder loops over missing elements"


def test_message_with_too_many_elements_is_rejected() -> None:
    def request(count: int) -> bytes:
        return write_uvarint(count + 1) + b"\x01" * count + b"\x00\x00"

    value, _ = decode(DescribeGroupsRequest, request(OBJECTS_MAX), 5)
    assert len(value.groups) == OBJECTS_MAX
    with pytest.raises(DecodeError, match="groups"):
        decode(DescribeGroupsRequest, request(OBJECTS_MAX + 1), 5)


def test_element_limit_includes_nested_arrays() -> None:
    topic = FetchRequest.ForgottenTopic(topic="", partitions=[0] * 1000)
    fits = FetchRequest(forgotten_topics_data=[topic] * 990)
    assert decode(FetchRequest, encode_bytes(fits, 12), 12)[0] == fits
    too_many = FetchRequest(forgotten_topics_data=[topic] * 1000)
    with pytest.raises(DecodeError, match="limit"):
        decode(FetchRequest, encode_bytes(too_many, 12), 12)


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (HeartbeatResponse(error_code=2**15), 0),
        (HeartbeatResponse(error_code="x"), 0),  # type: ignore[arg-type]
        (HeartbeatResponse(throttle_time_ms=2**31), 1),
        (HeartbeatRequest(group_id="x" * 32768), 0),
        (HeartbeatRequest(group_id="x" * 32768), 4),
        (HeartbeatRequest(group_id="\ud800"), 4),
        (HeartbeatRequest(group_id=b"bytes"), 4),  # type: ignore[arg-type]
        (HeartbeatResponse(), 5),
        (HeartbeatResponse(), -1),
    ],
)
def test_value_that_does_not_fit_is_an_encode_error(value: Any, version: int) -> None:
    with pytest.raises(EncodeError):
        encode(value, version)


def test_undeclared_version_is_a_decode_error() -> None:
    for version in (-1, 5):
        with pytest.raises(DecodeError, match="version"):
            decode(HeartbeatResponse, b"\0" * 10, version)


def test_records_cannot_be_a_tagged_field() -> None:
    @message(versions="0", flexible="0+")
    class Wrong:
        records: Records = wire(tag=0)

    with pytest.raises(TypeError, match="records"):
        encode(Wrong(records=b"x"), 0)


# -- all messages ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("style", Style)
def test_every_declared_version_round_trips(style: Style) -> None:
    for pair in PAIRS:
        value = sample(declared(pair), pair[1], random.Random(str(pair)), style)
        data = encode_bytes(value, pair[1])
        assert decode(declared(pair), data, pair[1]) == (value, len(data)), pair
        assert decode(declared(pair), memoryview(data), pair[1]) == (value, len(data)), pair


def test_every_truncated_message_is_rejected() -> None:
    cuts = 0
    for pair in PAIRS:
        value = sample(declared(pair), pair[1], random.Random(str(pair)), Style.FULL)
        data = encode_bytes(value, pair[1])
        for size in {*range(min(len(data), 12)), *range(0, len(data), 29), len(data) - 1}:
            if 0 <= size < len(data):
                with pytest.raises(DecodeError):
                    decode(declared(pair), data[:size], pair[1])
                cuts += 1
    assert cuts > len(PAIRS) * 5


MUTATIONS = Counter[str]()


def check_decoding(pair: Pair, data: bytes) -> None:
    """Decode arbitrary bytes. The result can be encoded again, or DecodeError is raised."""
    cls = declared(pair)
    try:
        value, end = decode(cls, data, pair[1])
    except DecodeError:
        MUTATIONS["refused"] += 1
        return
    assert end <= len(data)
    decoded, _ = decode(cls, encode_bytes(value, pair[1]), pair[1])
    # Compare by repr, because NaN is not equal to itself.
    assert repr(plain(decoded, pair[1])) == repr(plain(value, pair[1]))
    MUTATIONS["accepted"] += 1


@settings(max_examples=700)
@given(
    pair=st.sampled_from(PAIRS),
    seed=st.integers(0, 2**32),
    style=st.sampled_from(Style),
    edits=st.lists(
        st.tuples(
            st.floats(0, 1),
            st.sampled_from(["set", "drop", "insert", "repeat"]),
            st.binary(min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=4,
    ),
)
def mutate_and_decode(
    pair: Pair, seed: int, style: Style, edits: list[tuple[float, str, bytes]]
) -> None:
    value = sample(declared(pair), pair[1], random.Random(seed), style)
    data = encode_bytes(value, pair[1])[:20_000]
    for position, action, new in edits:
        at = int(position * len(data))
        behind = at if action == "insert" else at + len(new)
        middle = data[at : at + 40] * 3 if action == "repeat" else new * (action != "drop")
        data = data[:at] + middle + data[behind:]
    check_decoding(pair, data)


@pytest.mark.slow
def test_mutated_bytes_raise_only_decode_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    MUTATIONS.clear()
    mutate_and_decode()
    with capsys.disabled():
        print(f"\nmutated messages: {dict(MUTATIONS)}")
    assert MUTATIONS["refused"] > 100
    assert MUTATIONS["accepted"] > 100


@settings(max_examples=500)
@given(pair=st.sampled_from(PAIRS), data=st.binary(max_size=200))
def test_random_bytes_raise_only_decode_errors(pair: Pair, data: bytes) -> None:
    check_decoding(pair, data)


def test_mutations_find_a_planted_bug() -> None:
    """The harness reports a decoder that raises another error."""
    request: Any = HeartbeatRequest
    pair = (12, 3, "request")
    decode(HeartbeatRequest, encode_bytes(HeartbeatRequest(), 3), 3)
    good = request.DECODERS[3]

    def fail_at_length_13(buf: bytes, pos: int, end: int, left: int) -> Any:
        if len(buf) == 13:
            raise KeyError("careless")
        return good(buf, pos, end, left)

    request.DECODERS[3] = fail_at_length_13
    try:
        check_decoding(pair, bytes(12))
        with pytest.raises(KeyError, match="careless"):
            check_decoding(pair, bytes(13))
    finally:
        request.DECODERS[3] = good


def test_generated_source_is_returned() -> None:
    assert "def codec(buf, pos, end, left):" in source(FetchRequest, 12, "decode")
    text = source(FetchRequest, 12, "encode")
    assert "def codec(m, out, parts):" in text
    assert "pack_iiqiqix(" in text  # a partition is one call, with its empty tags


@message(versions="0-1")
class Small:
    value: Int32 = 0
    later: Int32 = wire(since=1, default=5)


def test_message_without_a_key_is_declared_outside_of_messages() -> None:
    assert encode_bytes(Small(value=1, later=2), 1).hex() == "0000000100000002"
    assert decode(Small, b"\0\0\0\1", 0) == (Small(value=1, later=5), 4)
