"""Every codec against foreign writers and readers, damaged streams, and decompression bombs."""

from __future__ import annotations

import gzip
import os
import random
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol import compression
from kbroker.protocol.compression import (
    CHUNK_BYTES,
    FRAMES_MAX,
    Codec,
    DecompressionError,
    MissingCodecError,
    OutputLimitError,
    compress,
    decompress,
)

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated function of importlib.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec

MIB = 1024 * 1024
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"%d bottles of beer on the wall, " % n for n in range(9000))
NOISE = random.Random(3).randbytes(300_000)

FOREIGN: dict[Codec, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    Codec.GZIP: (kafka.codec.gzip_encode, kafka.codec.gzip_decode),
    Codec.SNAPPY: (kafka.codec.snappy_encode, kafka.codec.snappy_decode),
    Codec.LZ4: (kafka.codec.lz4_encode, kafka.codec.lz4_decode),
    Codec.ZSTD: (kafka.codec.zstd_encode, kafka.codec.zstd_decode),
}


@contextmanager
def allocating_at_most(size: int) -> Iterator[None]:
    """Fail if the block's Python objects use more than `size` bytes at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= size


# --- round trips and foreign codecs -----------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"x", TEXT, NOISE, bytes(MIB)], ids=["x", "text", "noise", "0"])
def test_compressed_data_round_trips(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_every_buffer_type_is_accepted(codec: Codec, wrap: Callable[[bytes], bytes]) -> None:
    assert decompress(codec, wrap(compress(codec, wrap(TEXT))), len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", [b"x", TEXT, NOISE], ids=["x", "text", "noise"])
def test_foreign_codec_reads_ours_and_we_read_its(codec: Codec, data: bytes) -> None:
    encode, decode = FOREIGN[codec]
    assert decode(compress(codec, data)) == data
    assert decompress(codec, encode(data), len(data)) == data


def test_view_of_a_larger_buffer_is_decompressed() -> None:
    for codec in COMPRESSED:
        frame = b"before" + compress(codec, TEXT) + b"after"
        assert decompress(codec, memoryview(frame)[6:-5], len(TEXT)) == TEXT


def test_unknown_codec_is_rejected() -> None:
    for number in (-1, 5, 7):
        with pytest.raises(ValueError, match="unknown compression codec"):
            decompress(number, b"", 10)
        with pytest.raises(ValueError, match="unknown compression codec"):
            compress(number, b"")


def test_libraries_are_imported_on_first_use() -> None:
    script = (
        "import sys, kbroker.protocol.compression as c;"
        "libraries = {'lz4', 'snappy', 'cramjam', 'zstandard', 'compression.zstd'};"
        "assert not libraries & set(sys.modules);"
        "c.compress(4, b'x');"
        "assert libraries & set(sys.modules) < {'zstandard', 'compression.zstd'}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("codec", "package"),
    [
        (Codec.SNAPPY, "python-snappy"),
        (Codec.LZ4, "lz4"),
        (Codec.ZSTD, "zstandard" if sys.version_info < (3, 14) else "another build of Python"),
    ],
)
def test_missing_library_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, package: str
) -> None:
    stream = compress(codec, TEXT)
    monkeypatch.setitem(sys.modules, compression._LIBRARIES[codec].module, None)
    with pytest.raises(MissingCodecError, match=f"type {codec.name.lower()}: .*{package}"):
        compress(codec, TEXT)
    with pytest.raises(MissingCodecError, match=package):
        decompress(codec, stream, len(TEXT))
    assert decompress(Codec.GZIP, compress(Codec.GZIP, TEXT), len(TEXT)) == TEXT


@pytest.fixture
def builtin_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use Python's own zstd, or its backport below Python 3.14."""
    if sys.version_info < (3, 14):
        monkeypatch.setattr(compression, "_HAS_ZSTD", True)
        monkeypatch.setitem(
            sys.modules, compression._ZSTD_LIBRARY.module, pytest.importorskip("backports.zstd")
        )


@pytest.mark.usefixtures("builtin_zstd")
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, bytes(MIB)])
def test_builtin_zstd_and_package_write_frames_for_each_other(data: bytes) -> None:
    frame = compress(Codec.ZSTD, data)
    assert zstandard.get_frame_parameters(frame).content_size == len(data)
    assert zstandard.ZstdDecompressor().decompress(frame) == data
    assert decompress(Codec.ZSTD, zstandard.ZstdCompressor().compress(data), len(data)) == data
    without_size = compression.Compressor(Codec.ZSTD, level=19)
    without_size.add(data)
    assert decompress(Codec.ZSTD, without_size.finish(), len(data)) == data


@pytest.mark.usefixtures("builtin_zstd")
def test_builtin_zstd_rejects_damage_and_large_windows() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(NOISE))
    with pytest.raises(DecompressionError, match="truncated"):
        decompress(Codec.ZSTD, frame[:-1], len(NOISE))
    frame[-1] ^= 1
    with pytest.raises(DecompressionError, match="damaged"):
        decompress(Codec.ZSTD, frame, len(NOISE))
    with allocating_at_most(4 * MIB), pytest.raises(OutputLimitError):
        decompress(Codec.ZSTD, zstd_bomb(), MIB)
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(DecompressionError, match="damaged"):
        decompress(Codec.ZSTD, stream.compress(TEXT) + stream.flush(), len(TEXT))


# --- details of each format -------------------------------------------------------------------


def test_gzip_writes_no_time() -> None:
    assert compress(Codec.GZIP, TEXT) == compress(Codec.GZIP, TEXT)
    assert compress(Codec.GZIP, TEXT)[4:8] == bytes(4)


def test_snappy_writes_xerial_blocks_and_reads_raw() -> None:
    stream = compress(Codec.SNAPPY, TEXT)
    assert stream[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    assert (
        snappy.decompress(stream[20 : 20 + struct.unpack_from(">i", stream, 16)[0]])
        == (TEXT[: 32 * 1024])
    )
    assert decompress(Codec.SNAPPY, snappy.compress(TEXT), len(TEXT)) == TEXT


def test_lz4_blocks_are_independent() -> None:
    # Java's reader rejects linked blocks. Bit 5 of the flags marks independent blocks.
    stream = compress(Codec.LZ4, TEXT)
    assert stream[4] & 0x20
    assert lz4.frame.get_frame_info(stream)["block_linked"] is False


@pytest.mark.parametrize("option", ["block_checksum", "content_checksum", "block_linked"])
def test_lz4_options_of_other_writers_are_accepted(option: str) -> None:
    stream = bytearray(lz4.frame.compress(TEXT, store_size=True, **{option: True}))
    assert decompress(Codec.LZ4, stream, len(TEXT)) == TEXT
    if option.endswith("checksum"):
        stream[-1 if option == "content_checksum" else -5] ^= 1
        with pytest.raises(DecompressionError, match="damaged"):
            decompress(Codec.LZ4, stream, len(TEXT))


@pytest.mark.slow
def test_zstd_stream_of_the_highest_level_and_unknown_size_is_accepted() -> None:
    # Like Java with compression.zstd.level=22: a declared window of 128 MiB.
    stream = zstandard.ZstdCompressor(level=22).compressobj()
    data = stream.compress(TEXT) + stream.flush()
    assert zstandard.get_frame_parameters(data).window_size == 128 * MIB
    assert decompress(Codec.ZSTD, data, len(TEXT)) == TEXT


def test_zstd_larger_windows_are_rejected_without_allocation() -> None:
    for log in (28, 31, 41):
        window = (log - 10) << 3
        frame = struct.pack("<IBB", 0xFD2FB528, 0, window) + bytes.fromhex("090000") + b"x"
        with allocating_at_most(MIB), pytest.raises(DecompressionError, match="damaged"):
            decompress(Codec.ZSTD, frame, 100)
    frame = struct.pack("<IBB", 0xFD2FB528, 0, (27 - 10) << 3) + bytes.fromhex("090000") + b"x"
    assert decompress(Codec.ZSTD, frame, 100) == b"x"


def test_zstd_wrong_content_size_is_rejected() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(TEXT))
    assert zstandard.get_frame_parameters(frame).content_size == len(TEXT)
    frame[6] ^= 0x40  # the size field follows the descriptor and the window byte
    assert zstandard.get_frame_parameters(frame).content_size != len(TEXT)
    with pytest.raises(DecompressionError):
        decompress(Codec.ZSTD, frame, 2 * len(TEXT))


def test_zstd_checksum_and_skippable_frames_are_accepted() -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    skipped = struct.pack("<II", 0x184D2A5F, 3) + b"abc"
    assert decompress(Codec.ZSTD, skipped + checked + skipped, len(TEXT)) == TEXT
    with pytest.raises(DecompressionError, match="truncated"):
        decompress(Codec.ZSTD, checked + skipped[:-1], len(TEXT))
    damaged = checked[:-1] + bytes([checked[-1] ^ 1])
    with pytest.raises(DecompressionError, match="damaged"):
        decompress(Codec.ZSTD, damaged, len(TEXT))


# --- concatenation, truncation, damage --------------------------------------------------------


@pytest.mark.parametrize("codec", COMPRESSED)
def test_concatenated_streams_are_decompressed(codec: Codec) -> None:
    stream = compress(codec, b"one ") + compress(codec, TEXT) + compress(codec, b" three")
    assert decompress(codec, stream, 2 * MIB) == b"one " + TEXT + b" three"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_thousands_of_empty_frames_are_rejected(codec: Codec) -> None:
    with pytest.raises(DecompressionError, match="concatenated"):
        decompress(codec, compress(codec, b"") * (FRAMES_MAX + 1), 100)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_truncation_is_detected(codec: Codec) -> None:
    data = TEXT[:3000]
    stream = compress(codec, data)
    for end in range(len(stream)):
        if codec == Codec.SNAPPY and end == 16:
            continue  # the header alone is a valid stream without blocks
        with pytest.raises(DecompressionError):
            decompress(codec, stream[:end], len(data))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_trailing_bytes_are_rejected(codec: Codec) -> None:
    with pytest.raises(DecompressionError):
        decompress(codec, compress(codec, TEXT) + b"garbage, not a frame", len(TEXT))


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=400))
@settings(max_examples=150)
def test_arbitrary_bytes_raise_only_decompression_errors(codec: Codec, data: bytes) -> None:
    with suppress(DecompressionError):
        assert len(decompress(codec, data, 1000)) <= 1000


@pytest.mark.slow
@pytest.mark.parametrize("codec", COMPRESSED)
@given(
    seed=st.binary(min_size=1, max_size=600),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 10_000),
)
@settings(max_examples=200)
def test_mutated_streams_raise_only_decompression_errors(
    codec: Codec, seed: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    stream = bytearray(compress(codec, seed * 5))
    for position, byte in changes:
        stream[position % len(stream)] = byte
    if cut < len(stream):
        del stream[cut:]
    with suppress(DecompressionError):
        assert len(decompress(codec, stream, 4000)) <= 4000


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_limit_is_exact(codec: Codec) -> None:
    for size in (1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES):
        stream = compress(codec, bytes(size))
        assert len(decompress(codec, stream, size)) == size
        with pytest.raises(OutputLimitError):
            decompress(codec, stream, size - 1)


def zstd_bomb() -> bytes:
    """Return 1 MiB that expands to 32 GiB: blocks of one repeated byte, 128 KiB per 4 bytes."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return struct.pack("<IBB", 0xFD2FB528, 0, 7 << 3) + block * (MIB // 4) + last


def bomb(codec: Codec) -> bytes:
    """Return about 1 MiB that expands as far as the format allows."""
    if codec == Codec.GZIP:
        member = zlib.compressobj(9, wbits=31)
        return (member.compress(bytes(64 * MIB)) + member.flush()) * 16  # 1 GiB
    if codec == Codec.SNAPPY:
        return bytes(snappy.compress(bytes(21 * MIB)))
    if codec == Codec.LZ4:
        return bytes(lz4.frame.compress(bytes(250 * MIB)))
    return zstd_bomb()


@pytest.mark.slow
@pytest.mark.parametrize("codec", COMPRESSED)
def test_bomb_costs_the_limit_and_a_few_chunks(codec: Codec) -> None:
    stream = bomb(codec)
    assert MIB // 2 < len(stream) < 2 * MIB
    limit = 4 * MIB
    with allocating_at_most(limit + 6 * CHUNK_BYTES), pytest.raises(OutputLimitError):
        decompress(codec, stream, limit)


def test_gzip_bomb_in_one_member_is_limited() -> None:
    stream = gzip.compress(bytes(64 * MIB), 1)
    with allocating_at_most(4 * MIB + 6 * CHUNK_BYTES), pytest.raises(OutputLimitError):
        decompress(Codec.GZIP, stream, 4 * MIB)


def test_snappy_declared_length_is_checked_before_allocation() -> None:
    for declared in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"):
        for stream in (declared + b"abc", compress(Codec.SNAPPY, b"") + b"\0\0\0\x08" + declared):
            with pytest.raises(DecompressionError, match="declares"):
                decompress(Codec.SNAPPY, stream + b"abc", 1 << 40)
    # Plausible, but above the limit: nothing is decompressed.
    raw = snappy.compress(bytes(8 * MIB))
    with allocating_at_most(MIB), pytest.raises(OutputLimitError):
        decompress(Codec.SNAPPY, raw, 4 * MIB)


@pytest.mark.parametrize("size", [-1, 0x7FFFFFFF, 1000])
def test_snappy_block_lengths_are_validated(size: int) -> None:
    stream = compress(Codec.SNAPPY, b"") + struct.pack(">i", size) + snappy.compress(b"hello")
    with pytest.raises(DecompressionError, match="block of"):
        decompress(Codec.SNAPPY, stream, 1000)


def test_noise_does_not_look_compressed() -> None:
    # A codec that stores what it cannot shrink must still be readable at the exact limit.
    data = os.urandom(100_000)
    for codec in COMPRESSED:
        assert decompress(codec, compress(codec, data), len(data)) == data
