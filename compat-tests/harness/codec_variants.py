"""Compressed streams of every form that a library can write, and invalid ones."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import lz4.block
import lz4.frame
import snappy
import zstandard

from kbroker.protocol.compression import Codec
from kbroker.protocol.lz4_header import with_correct_checksum


class Variant(NamedTuple):
    """One way to compress some records."""

    codec: Codec
    name: str
    stream: bytes


def variants(data: bytes) -> Iterator[Variant]:
    """Yield all variants of the uncompressed records `data`, which exceed 64 KiB."""
    for codec, streams in (
        (Codec.GZIP, _gzip(data)),
        (Codec.SNAPPY, _snappy(data)),
        (Codec.LZ4, _lz4(data)),
        (Codec.ZSTD, _zstd(data)),
    ):
        for name, stream in streams:
            yield Variant(codec, name, stream)


Streams = Iterator[tuple[str, bytes]]


def _common(stream: bytes, empty: bytes) -> Streams:
    """Yield variants that apply to any codec. `empty` is a compressed empty stream."""
    yield "plain", stream
    yield "trailing byte", stream + b"x"
    yield "trailing zeros", stream + bytes(8)
    yield "truncated by one byte", stream[:-1]
    yield "truncated by four bytes", stream[:-4]
    yield "truncated in the middle", stream[: len(stream) // 2]
    yield "nothing", b""
    yield "empty stream appended", stream + empty
    yield "empty stream prepended", empty + stream
    for place in (0, 1, 4, len(stream) // 2, -1):
        damaged = bytearray(stream)
        damaged[place] ^= 0x10
        yield f"flipped bit at {place}", bytes(damaged)


# -- gzip


def _gzip(data: bytes) -> Streams:
    half = len(data) // 2
    yield from _common(gzip.compress(data, mtime=0), gzip.compress(b"", mtime=0))
    for level in (0, 1, 9):
        yield f"level {level}", gzip.compress(data, level, mtime=0)
    yield "two members", gzip.compress(data[:half]) + gzip.compress(data[half:])
    yield (
        "a member per 4 KiB",
        b"".join(gzip.compress(data[at : at + 4096]) for at in range(0, len(data), 4096)),
    )
    deflated = zlib.compressobj(wbits=-15)
    body = deflated.compress(data) + deflated.flush()
    trailer = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    for flags, fields in {
        "FTEXT": (1, b""),
        "FHCRC": (2, b""),
        "FEXTRA": (4, b"\x04\x00abcd"),
        "FNAME": (8, b"name\x00"),
        "FCOMMENT": (16, b"comment\x00"),
        "FNAME and FEXTRA": (12, b"\x02\x00ababc\x00"),
        "reserved flag": (32, b""),
    }.items():
        head = b"\x1f\x8b\x08" + bytes([fields[0]]) + bytes(4) + b"\x00\xff" + fields[1]
        if fields[0] == 2:
            head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
        yield flags, head + body + trailer
    head = b"\x1f\x8b\x08" + bytes(7)
    yield "wrong FHCRC", b"\x1f\x8b\x08\x02" + bytes(6) + b"\x01\x02" + body + trailer
    yield "another method", b"\x1f\x8b\x07" + bytes(7) + body + trailer
    yield "wrong CRC", head + body + struct.pack("<II", 1, len(data))
    yield "wrong length", head + body + struct.pack("<II", zlib.crc32(data), 1)
    yield "no trailer", head + body
    yield "zlib", zlib.compress(data)
    yield "raw deflate", body


# -- snappy


def _xerial(data: bytes, block: int, version: int = 1, compatible: int = 1) -> bytes:
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", version, compatible)
    blocks = (snappy.compress(data[at : at + block]) for at in range(0, len(data), block))
    return head + b"".join(struct.pack(">i", len(each)) + each for each in blocks)


def _snappy(data: bytes) -> Streams:
    half = len(data) // 2
    yield from _common(_xerial(data, 32768), _xerial(b"", 32768))
    for block in (1024, 65536, 1 << 20):
        yield f"blocks of {block}", _xerial(data, block)
    for version, compatible in product((0, 1, 2, 77), repeat=2):
        yield f"version {version}, {compatible}", _xerial(data, 32768, version, compatible)
    yield "two streams", _xerial(data[:half], 32768) + _xerial(data[half:], 32768)
    yield "raw block", snappy.compress(data)
    yield "raw block and a byte", snappy.compress(data) + b"x"
    yield "two raw blocks", snappy.compress(data[:half]) + snappy.compress(data[half:])
    yield "no length of a block", _xerial(data, 32768)[:16] + snappy.compress(data)
    yield (
        "empty block before",
        _xerial(b"", 1)[:16] + struct.pack(">i", 1) + b"\x00" + _xerial(data, 32768)[16:],
    )
    yield "block of no bytes", _xerial(data, 32768) + bytes(4)
    yield "block of negative length", _xerial(data, 32768) + struct.pack(">i", -1)
    yield "only a head", _xerial(b"", 1)
    yield "half a head", _xerial(data, 32768)[:12]
    compressor = snappy.StreamCompressor()
    yield "framing of Google", compressor.compress(data)
    raw = bytearray(snappy.compress(data))
    raw[0] ^= 1
    yield "raw block of another size", bytes(raw)


# -- lz4


def _lz4(data: bytes) -> Streams:
    half = len(data) // 2
    plain = {"block_linked": False, "store_size": False}
    yield from _common(lz4.frame.compress(data, **plain), lz4.frame.compress(b"", **plain))
    for linked, blocks, content, size, stored in product(
        (False, True), (False, True), (False, True), (4, 5, 6, 7), (False, True)
    ):
        stream = lz4.frame.compress(
            data,
            block_linked=linked,
            block_checksum=blocks,
            content_checksum=content,
            block_size=size,
            store_size=stored,
        )
        name = f"linked {linked}, block sums {blocks}, content sum {content}, size {size}"
        yield f"{name}, stored size {stored}", stream
    yield "linked, one block", lz4.frame.compress(data[:0] + data, block_linked=True, block_size=7)
    parts = [lz4.frame.compress(part, **plain) for part in (data[:half], data[half:])]
    yield "two frames", b"".join(parts)
    yield "skippable frame first", _skippable(b"abc") + lz4.frame.compress(data, **plain)
    yield "skippable frame appended", lz4.frame.compress(data, **plain) + _skippable(b"abc")
    yield "no end mark", lz4.frame.compress(data, **plain)[:-4]
    yield from _lz4_headers(data, bytearray(lz4.frame.compress(data, **plain)))
    yield from _lz4_blocks(data, bytearray(lz4.frame.compress(data, **plain)))


def _lz4_headers(data: bytes, frame: bytearray) -> Streams:
    """Yield frames whose descriptor does not match their blocks."""
    for name, place, value in (
        ("wrong header checksum", 6, frame[6] ^ 1),
        ("version 2", 4, frame[4] & 0x3F | 0x80),
        ("version 0", 4, frame[4] & 0x3F),
        ("reserved bit of flags", 4, frame[4] | 0x02),
        ("dictionary id", 4, frame[4] | 0x01),
        ("reserved bit of the block descriptor", 5, frame[5] | 0x80),
        ("low bits of the block descriptor", 5, frame[5] | 0x01),
        ("block size 3", 5, 3 << 4),
        ("block size 0", 5, 0),
    ):
        changed = bytearray(frame)
        changed[place] = value
        yield f"{name}, old checksum", bytes(changed)
        yield f"{name}, new checksum", with_correct_checksum(changed)
    with_dictionary = bytearray(frame[:6] + struct.pack("<I", 7) + frame[6:])
    with_dictionary[4] |= 0x01
    yield "dictionary id of four bytes", with_correct_checksum(with_dictionary)
    sized = bytearray(lz4.frame.compress(data, block_linked=False, store_size=True))
    sized[6:14] = struct.pack("<Q", len(data) + 1)
    yield "wrong content size", with_correct_checksum(sized)


def _lz4_blocks(data: bytes, frame: bytearray) -> Streams:
    """Yield frames with wrong checksums, and with blocks that are wrong or unusual."""
    for name, place in (("block", -9), ("content", -1)):
        summed = bytearray(
            lz4.frame.compress(
                data,
                block_linked=False,
                block_checksum=name == "block",
                content_checksum=name == "content",
            )
        )
        summed[place] ^= 1
        yield f"wrong {name} checksum", bytes(summed)
    stored_blocks = b"".join(
        struct.pack("<I", len(data[at : at + 65536]) | 0x80000000) + data[at : at + 65536]
        for at in range(0, len(data), 65536)
    )
    yield "stored blocks", bytes(frame[:7]) + stored_blocks + bytes(4)
    large = struct.pack("<I", len(data) | 0x80000000) + data
    yield "stored block above its size", bytes(frame[:7]) + large + bytes(4)
    packed = lz4.block.compress(data, store_size=False)
    yield (
        "block above its size",
        bytes(frame[:7]) + struct.pack("<I", len(packed)) + packed + bytes(4),
    )
    yield "raw block", packed
    yield "legacy frame", struct.pack("<II", 0x184C2102, len(packed)) + packed
    yield "empty stored block", bytes(frame[:7]) + struct.pack("<I", 0x80000000) + bytes(frame[7:])


def _skippable(content: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A50, len(content)) + content


# -- zstd


def _zstd(data: bytes) -> Streams:
    half = len(data) // 2
    compressor = zstandard.ZstdCompressor()
    yield from _common(compressor.compress(data), compressor.compress(b""))
    for level in (-5, 1, 19):
        yield f"level {level}", zstandard.ZstdCompressor(level).compress(data)
    for checksum, size in product((False, True), repeat=2):
        options = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size)
        yield f"checksum {checksum}, content size {size}", options.compress(data)
        stream = options.compressobj()
        yield f"checksum {checksum}, stream", stream.compress(data) + stream.flush()
    summed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(data))
    summed[-1] ^= 1
    yield "wrong checksum", bytes(summed)
    yield "two frames", compressor.compress(data[:half]) + compressor.compress(data[half:])
    yield "skippable frame first", _skippable(b"abc") + compressor.compress(data)
    yield "skippable frame appended", compressor.compress(data) + _skippable(b"abc")
    yield (
        "skippable frame between",
        (compressor.compress(data[:half]) + _skippable(b"") + compressor.compress(data[half:])),
    )
    yield "truncated skippable frame appended", compressor.compress(data) + _skippable(b"abc")[:-1]
    for log in (10, 17, 20, 23, 26, 27):
        parameters = zstandard.ZstdCompressionParameters(window_log=log, write_content_size=False)
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        yield f"window of 2**{log}", stream.compress(data) + stream.flush()
    blocks = b"".join(
        (len(data[at : at + 1024]) << 3 | (at + 1024 >= len(data))).to_bytes(3, "little")
        + data[at : at + 1024]
        for at in range(0, len(data), 1024)
    )
    for log in (27, 28, 31, 37, 41):
        head = struct.pack("<IBB", 0xFD2FB528, 0, log - 10 << 3)
        yield f"raw blocks, window of 2**{log}", head + blocks
    samples = [data[at : at + 500] for at in range(0, len(data), 500)] * 20
    dictionary = zstandard.train_dictionary(4096, samples)
    yield "dictionary", zstandard.ZstdCompressor(dict_data=dictionary).compress(data)
    yield "magicless", compressor.compress(data)[4:]
    sized = bytearray(compressor.compress(data))
    sized[6] ^= 1
    yield "wrong content size", bytes(sized)
    reserved = bytearray(compressor.compress(data))
    reserved[4] |= 0x08
    yield "reserved bit", bytes(reserved)
    yield "legacy frame", struct.pack("<I", 0xFD2FB527) + compressor.compress(data)[4:]
