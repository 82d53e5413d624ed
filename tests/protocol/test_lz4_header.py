"""Header checksums of LZ4 streams, in standard LZ4 and in Kafka before 0.10."""

from __future__ import annotations

import lz4.frame
import pytest

from kbroker.protocol.compression import Codec, compress, decompress
from kbroker.protocol.lz4_header import with_correct_checksum, with_old_checksum

# Header of a stream that Apache Kafka 3.9 wrote for a consumer of format 0.
KAFKA_0 = bytes.fromhex("04224d1860401a")
# Header of a stream that Apache Kafka 3.9 wrote for a consumer of format 1.
KAFKA_1 = bytes.fromhex("04224d18604082")


def test_old_checksum_equals_that_of_kafka() -> None:
    stream = compress(Codec.LZ4, b"some bytes")
    assert stream[:7] == KAFKA_1
    assert with_old_checksum(stream)[:7] == KAFKA_0
    assert with_old_checksum(stream)[7:] == stream[7:]


def test_library_rejects_the_old_checksum() -> None:
    """Shows why the conversion is needed."""
    with pytest.raises(ValueError, match="lz4"):
        decompress(Codec.LZ4, with_old_checksum(compress(Codec.LZ4, b"x")), 100)


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("content_checksum", [False, True])
def test_checksum_conversion_round_trips(
    block_size: int, store_size: bool, content_checksum: bool
) -> None:
    """With a content size, the header has 14 bytes, but the format 0 checksum covers 18."""
    stream = lz4.frame.compress(
        b"content" * 100,
        block_size=block_size,
        store_size=store_size,
        content_checksum=content_checksum,
    )
    old = with_old_checksum(stream)
    at = 14 if store_size else 6
    assert old[:at] + old[at + 1 :] == stream[:at] + stream[at + 1 :]
    assert old[at] != stream[at]
    assert with_correct_checksum(old) == with_correct_checksum(stream) == stream


@pytest.mark.parametrize(
    "stream",
    [b"", b"\x04\x22\x4d\x18", KAFKA_1[:6], b"\x04\x22\x4d\x18\x68\x40" + bytes(8), b"garbage!"],
)
def test_other_bytes_are_unchanged(stream: bytes) -> None:
    assert with_correct_checksum(stream) == with_old_checksum(stream) == stream
