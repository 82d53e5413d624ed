from __future__ import annotations

import errno
import random
import struct
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol.framing import (
    GATHERED_SIZE,
    GROWTH,
    LAZY_SIZE,
    FrameError,
    FrameReader,
)


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


def test_pipelined_frames_are_slices_of_the_chunk() -> None:
    reader = FrameReader(100)
    chunk = framed(b"one", b"two")
    reader.feed(chunk)
    frames = list(reader)
    assert [bytes(frame) for frame in frames] == [b"one", b"two"]
    assert all(frame.obj is chunk for frame in frames)
    assert list(reader) == []


def test_frame_is_joined_from_chunks() -> None:
    reader = FrameReader(100)
    for byte in framed(b"one", b"two")[:-1]:
        reader.feed(bytes([byte]))
        for frame in reader:
            assert bytes(frame) == b"one"
    reader.feed(b"o")
    assert [bytes(frame) for frame in reader] == [b"two"]


def test_a_large_frame_is_received_into_one_buffer_of_its_size() -> None:
    payload = bytes(range(256)) * 1024
    assert len(payload) > GATHERED_SIZE
    stream = framed(b"first", payload)
    reader = FrameReader(len(payload))
    reader.feed(stream[:1000])
    assert [bytes(frame) for frame in reader] == [b"first"]
    remaining = stream[1000:]
    while (buffer := reader.next_buffer()) is not None:
        size = min(10_000, len(buffer))
        buffer[:size] = remaining[:size]
        remaining = remaining[size:]
        reader.received(size)
        if remaining:
            assert list(reader) == []
    (frame,) = reader
    assert bytes(frame) == payload
    assert isinstance(frame.obj, bytearray)
    assert len(frame.obj) == len(payload)
    reader.feed(framed(b"next"))
    assert [bytes(frame) for frame in reader] == [b"next"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_announced_frame_uses_no_memory_before_it_arrives() -> None:
    size = 2**30
    readers = [FrameReader(size) for _ in range(64)]
    for reader in readers:
        reader.feed(struct.pack(">i", size) + b"first")
        assert list(reader) == []
    buffers = [reader.next_buffer() for reader in readers]
    assert all(buffer is not None and len(buffer) == size - 5 for buffer in buffers)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert resident_pages * 4096 < 2**30


@pytest.mark.parametrize("arrived", [1, GATHERED_SIZE, 300_000, 1_000_000])
def test_buffer_grows_with_arrived_bytes(arrived: int) -> None:
    """A client that announces a frame must not allocate its whole size."""
    reader = FrameReader(LAZY_SIZE)
    reader.feed(struct.pack(">i", LAZY_SIZE))
    assert list(reader) == []
    for _ in range(arrived):
        reader.feed(bytes(min(1000, arrived - reader.held)))
        assert list(reader) == []
        if reader.held == arrived:
            break
    buffer = reader.next_buffer()
    assert buffer is not None
    assert isinstance(buffer.obj, bytearray)
    assert len(buffer.obj) <= max(GATHERED_SIZE, GROWTH * arrived)
    assert reader.missing == LAZY_SIZE - arrived


def test_frame_without_memory_raises_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system raises OSError, which callers would handle as a lost connection."""

    def refuse(_: int, size: int) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    reader = FrameReader(2 * LAZY_SIZE)
    reader.feed(framed(bytes(LAZY_SIZE + 1))[:100])
    with pytest.raises(MemoryError, match="Cannot allocate"):
        list(reader)


def test_a_very_large_frame_arrives_whole() -> None:
    payload = random.Random(1).randbytes(LAZY_SIZE + 1)
    reader = FrameReader(len(payload))
    stream = framed(payload)
    reader.feed(stream[:100])
    assert list(reader) == []
    buffer = reader.next_buffer()
    assert buffer is not None
    buffer[:] = stream[100:]
    reader.received(len(buffer))
    assert [frame.tobytes() == payload for frame in reader] == [True]


def test_small_frame_needs_no_buffer() -> None:
    reader = FrameReader(GATHERED_SIZE)
    reader.feed(framed(bytes(GATHERED_SIZE))[:100])
    assert list(reader) == []
    assert reader.next_buffer() is None


def test_chunk_is_released_if_only_its_last_bytes_are_left() -> None:
    """Idle clients use no memory for sent bytes."""
    reader = FrameReader(1000)
    reader.feed(framed(b"x" * 500) * 500 + b"\0")
    assert len(list(reader)) == 500
    assert sys.getsizeof(reader._chunk.obj) < 100
    reader.feed(framed(b"y")[1:])
    assert [bytes(frame) for frame in reader] == [b"y"]


def test_large_frame_can_be_fed_in_chunks() -> None:
    payload = bytes(GATHERED_SIZE + 1)
    stream = framed(payload, b"next")
    reader = FrameReader(len(payload))
    reader.feed(stream[:50])
    assert list(reader) == []
    reader.feed(stream[50:])
    assert [bytes(frame) for frame in reader] == [payload, b"next"]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_every_division_of_the_stream_returns_the_same_frames(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([1, 5, 300, GATHERED_SIZE, GATHERED_SIZE + 7])))
    payloads = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    stream = framed(*payloads)
    reader = FrameReader(GATHERED_SIZE * 2)
    found = []
    while stream:
        buffer = reader.next_buffer()
        if buffer is None:
            size = data.draw(st.integers(1, len(stream)))
            reader.feed(stream[:size])
        else:
            size = data.draw(st.integers(1, len(buffer)))
            buffer[:size] = stream[:size]
            reader.received(size)
        stream = stream[size:]
        found += [bytes(frame) for frame in reader]
    assert found == payloads


@pytest.mark.parametrize("size", [0, -1, -(2**31), 101])
def test_impossible_length_raises_frame_error(size: int) -> None:
    reader = FrameReader(100)
    reader.feed(framed(b"good") + struct.pack(">i", size))
    frames = iter(reader)
    assert bytes(next(frames)) == b"good"
    with pytest.raises(FrameError, match=str(size)):
        next(frames)
    assert reader.hint() == ""


def test_frame_of_the_maximum_size_is_accepted() -> None:
    reader = FrameReader(100)
    reader.feed(framed(bytes(100)))
    assert [len(frame) for frame in reader] == [100]


@pytest.mark.parametrize(
    ("first", "word"), [(b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP")]
)
def test_hint_names_another_protocol(first: bytes, word: str) -> None:
    reader = FrameReader(100 * 1024 * 1024)
    reader.feed(first)
    with pytest.raises(FrameError):
        list(reader)
    assert word in reader.hint()


@pytest.mark.parametrize("size", [1, 100, GATHERED_SIZE])
def test_incomplete_small_frame_is_waiting(size: int) -> None:
    data = framed(bytes(size))
    for cut in {0, 1, 3, 4, len(data) - 1}:
        reader = FrameReader(10 * GATHERED_SIZE)
        reader.feed(data[:cut])
        assert reader.is_waiting
        assert list(reader) == []
        reader.feed(data[cut:])
        assert not reader.is_waiting
        assert len(list(reader)) == 1
        assert reader.is_waiting


@pytest.mark.parametrize("length", [-1, 0, GATHERED_SIZE + 1, 20 * GATHERED_SIZE])
def test_large_or_invalid_frame_is_not_waiting(length: int) -> None:
    reader = FrameReader(10 * GATHERED_SIZE)
    reader.feed(struct.pack(">i", length) + b"first")
    assert not reader.is_waiting
