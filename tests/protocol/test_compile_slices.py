"""Generator codecs: equal results, and frequent pauses."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol import compile as compiling
from kbroker.protocol.compile import (
    SLICE_OBJECTS,
    DecodeError,
    EncodeError,
    TooManyElementsError,
    decode,
    decode_counted,
    decode_in_slices,
    encode,
    encode_bytes,
    encode_in_slices,
)
from kbroker.protocol.messages.groups import DescribeGroupsRequest, HeartbeatRequest
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.schema import Struct, fields

from .samples import Pair, Style, declared, declared_pairs, plain, sample

PAIRS = declared_pairs()
FEW = 3

T = TypeVar("T")


class Run(NamedTuple):
    """The result of a generator, and the number of its pauses."""

    value: Any
    pauses: int


def run(slices: Generator[None, None, T]) -> Run:
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return Run(end.value, pauses)
        pauses += 1


class Elements(NamedTuple):
    """Number of array elements of a message: all, and those that are encoded one by one."""

    all: int
    single: int


def elements(value: Struct, version: int) -> Elements:
    """Count the elements by the declaration."""
    count = single = 0
    for field in fields(type(value)):
        held = getattr(value, field.name) if field.present(version) else None
        if held is None:
            continue
        rows = held if field.array else [held]
        if field.array:
            count += len(rows)
            single += 0 if isinstance(field.kind, str) and len(field.kind) == 1 else len(rows)
        for row in rows:
            if isinstance(row, Struct):
                below = elements(row, version)
                count, single = count + below.all, single + below.single
    return Elements(count, single)


def joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


@contextmanager
def short_slices() -> Iterator[None]:
    """Use codecs that pause after `FEW` elements, and drop them afterwards."""
    classes = {declared(pair) for pair in PAIRS}

    def forget() -> None:
        for each in classes:
            each.SLICED_ENCODERS.clear()
            each.SLICED_DECODERS.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "SLICE_OBJECTS", FEW)
        forget()
        try:
            yield
        finally:
            forget()


@pytest.mark.slow
@pytest.mark.parametrize("style", Style)
def test_every_message_in_slices_equals_the_whole(style: Style) -> None:
    """Compares bytes, values, element counts and the number of pauses."""
    paused = 0
    with short_slices():
        for pair in PAIRS:
            cls, version = declared(pair), pair[1]
            value = sample(cls, version, random.Random(repr((pair, style))), style)
            count = elements(value, version)
            data = encode_bytes(value, version)
            written = run(encode_in_slices(bytearray(), value, version))
            assert joined(written.value) == data, pair
            assert written.pauses == 1 + count.single // FEW, pair
            (decoded, end, counted), pauses = run(decode_in_slices(cls, data, version))
            assert repr(plain(decoded, version)) == repr(
                plain(decode(cls, data, version)[0], version)
            )
            assert (end, counted) == (len(data), count.all), pair
            assert decode_counted(cls, data, version)[1:] == (end, counted), pair
            assert pauses == 1 + count.single // FEW, pair
            paused += pauses
    assert (paused > len(PAIRS)) == (style is not Style.EMPTY)


def test_slices_are_short() -> None:
    """With the default settings both directions pause after each `SLICE_OBJECTS` elements."""
    count = 10 * SLICE_OBJECTS
    request = DescribeGroupsRequest(groups=[str(i) for i in range(count)])
    data = encode_bytes(request, 5)
    assert run(decode_in_slices(DescribeGroupsRequest, data, 5)).pauses == 11
    topics = [
        MetadataResponse.Topic(name="t", partitions=[MetadataResponse.Partition()])
        for _ in range(count // 2)
    ]
    response = MetadataResponse(topics=topics)
    assert run(encode_in_slices(bytearray(), response, 9)).pauses == 11


def test_bytes_around_a_message_are_unchanged() -> None:
    value = HeartbeatRequest(group_id="g", member_id="m")
    data = encode_bytes(value, 4)
    assert joined(run(encode_in_slices(bytearray(b"head"), value, 4)).value) == b"head" + data
    framed = b"head" + data + b"tail"
    assert run(decode_in_slices(HeartbeatRequest, framed, 4, 4)).value == (value, 4 + len(data), 0)


def test_element_limit_counts_all_arrays() -> None:
    topics = [
        MetadataResponse.Topic(
            name="t",
            partitions=[MetadataResponse.Partition(replica_nodes=[1, 2, 3], isr_nodes=[1])],
        )
        for _ in range(10)
    ]
    data = encode_bytes(MetadataResponse(topics=topics), 9)
    count = 10 * (1 + 1 + 3 + 1)

    def decode_with_limit(objects_max: int) -> Any:
        return run(decode_in_slices(MetadataResponse, data, 9, objects_max=objects_max)).value

    assert decode_with_limit(count) == decode_counted(MetadataResponse, data, 9)
    assert decode_with_limit(count)[1:] == (len(data), count)
    with pytest.raises(TooManyElementsError):
        decode_with_limit(count - 1)


def test_excessive_count_is_rejected_before_elements_are_created() -> None:
    data = b"\xff\xff\xff\xff\x07" + b"\x01" * 1000
    slices = decode_in_slices(DescribeGroupsRequest, data, 5)
    next(slices)
    with pytest.raises(TooManyElementsError):
        next(slices)


def outcome(work: Any) -> Any:
    """Return the value, or the error as a string."""
    try:
        return work()
    except (DecodeError, EncodeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.slow
@settings(max_examples=600)
@given(
    pair=st.sampled_from(PAIRS),
    seed=st.integers(0, 2**32),
    style=st.sampled_from(Style),
    where=st.floats(0, 1),
    new=st.binary(max_size=6),
    cut=st.booleans(),
)
def test_malformed_bytes_raise_the_same_error_in_slices(
    pair: Pair, seed: int, style: Style, where: float, new: bytes, cut: bool
) -> None:
    cls, version = declared(pair), pair[1]
    data = encode_bytes(sample(cls, version, random.Random(seed), style), version)[:20_000]
    at = int(where * len(data))
    data = data[:at] + new + (b"" if cut else data[at + len(new) :])

    def describe(decoded: tuple[Any, int, int]) -> str:
        return repr((plain(decoded[0], version), *decoded[1:]))

    at_once = outcome(lambda: describe(decode_counted(cls, data, version)))
    assert outcome(lambda: describe(run(decode_in_slices(cls, data, version)).value)) == at_once


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (HeartbeatRequest(generation_id=2**40), 3),
        (HeartbeatRequest(group_id="x" * 40_000), 3),
        (HeartbeatRequest(group_id="x" * 40_000), 4),
        (HeartbeatRequest(group_id=3), 3),  # type: ignore[arg-type]
        (HeartbeatRequest(), 99),
    ],
    ids=["number", "string", "compact string", "type", "version"],
)
def test_invalid_value_raises_the_same_error_in_slices(
    value: HeartbeatRequest, version: int
) -> None:
    at_once = outcome(lambda: encode(value, version))
    assert at_once.startswith("EncodeError")
    assert outcome(lambda: run(encode_in_slices(bytearray(), value, version))) == at_once


def test_undeclared_version_is_rejected_in_slices() -> None:
    expected = outcome(lambda: decode(HeartbeatRequest, b"", 99))
    assert outcome(lambda: run(decode_in_slices(HeartbeatRequest, b"", 99))) == expected
