from __future__ import annotations

import json
from uuid import UUID

import pytest

from kbroker.storage.checkpoints import (
    MetaProperties,
    OffsetCheckpoints,
    Offsets,
    PartitionMetadata,
    checksums_in_marker,
    clean_marker,
    decode_id,
    encode_id,
    offsets_from_bytes,
    offsets_to_bytes,
    parse_lines,
)
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles
from kbroker.storage.naming import LOG_STARTS, RECOVERY_POINTS

# Written by Apache Kafka 4.3.0.
KAFKA_OFFSETS = b"0\n3\n__transaction_state 42 0\nref 0 30000\nreftx 0 153\n"
KAFKA_PARTITION = b"version: 0\ntopic_id: bVyioQuERiybyO8A7mo8fQ"
# Written by kbroker before checksums covered the name of the file.
EARLIER_STARTS = b"0\n4\nplain 0 5\ntrim 0 37\ntrim 1 55\n__checksum 0 2701873829\n"
KAFKA_META = (
    b"#\n#Sat Nov 21 09:24:22 UTC 2026\nnode.id=1\ndirectory.id=9zWOGwWPTcG2AgDWW_m4NQ\n"
    b"version=1\ncluster.id=GyFiz_PMSD627V0vW6A4Pg\n"
)


class TestOffsets:
    def test_offsets_of_a_kafka_checkpoint_are_read(self) -> None:
        offsets = offsets_from_bytes(KAFKA_OFFSETS, LOG_STARTS)
        assert offsets == {("__transaction_state", 42): 0, ("ref", 0): 30000, ("reftx", 0): 153}
        assert offsets_from_bytes(offsets_to_bytes(offsets, LOG_STARTS), LOG_STARTS) == offsets

    def test_empty_checkpoint_has_no_offsets(self) -> None:
        assert (
            offsets_from_bytes(b"", LOG_STARTS) == offsets_from_bytes(b"0\n0\n", LOG_STARTS) == {}
        )

    @pytest.mark.parametrize(
        "data",
        [
            b"0\n",
            b"1\n0\n",
            b"0\n2\na 0 1\n",
            b"0\n1\na 0 1\nb 0 1\n",
            b"0\n1\na 0\n",
            b"0\n1\na 0 x\n",
            b"0\n1\na 0 1",
            b"\0" * 20,
            b"0\n1\n\xff 0 1\n",
        ],
    )
    def test_damaged_checkpoint_is_rejected(self, data: bytes) -> None:
        assert offsets_from_bytes(data, LOG_STARTS) is None

    def test_truncated_checkpoint_is_damaged(self) -> None:
        for end in range(1, len(KAFKA_OFFSETS)):
            assert offsets_from_bytes(KAFKA_OFFSETS[:end], LOG_STARTS) is None


class TestOffsetCheckpoints:
    def open(self, files: MemFiles) -> OffsetCheckpoints:
        files.mkdir("data")
        return OffsetCheckpoints(files, "data")

    def test_written_offsets_are_read_back(self) -> None:
        files = MemFiles()
        one = self.open(files)
        one.update([(("a", 0), Offsets(5, 20, 18)), (("b", 1), Offsets(0, 7, 7))])
        two = self.open(files)
        assert two.get(("a", 0)) == Offsets(5, 20, 18)
        assert two.get(("b", 1)) == Offsets(0, 7, 7)
        assert two.get(("c", 0)) == Offsets(0, 0, 0)
        starts = files.read_bytes("data/log-start-offset-checkpoint")
        assert starts.startswith(b"0\n2\na 0 5\n__checksum 0 ")
        two.forget([("a", 0), ("never", 9)])
        assert self.open(files).get(("a", 0)) == Offsets()

    def test_unchanged_checkpoints_are_not_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files = MemFiles()
        checkpoints = self.open(files)
        checkpoints.forget([("a", 0)])
        assert files.listdir("data") == []
        checkpoints.update([(("a", 0), Offsets(0, 1, 1))])
        monkeypatch.setattr(files, "write_atomic", None)
        checkpoints.update([(("a", 0), Offsets(0, 1, 1))])

    def test_damaged_checkpoint_counts_as_empty(self, caplog: pytest.LogCaptureFixture) -> None:
        files = MemFiles()
        self.open(files).update([(("a", 0), Offsets(5, 20, 18))])
        files.write_atomic("data/recovery-point-offset-checkpoint", b"nonsense")
        checkpoints = self.open(files)
        assert checkpoints.get(("a", 0)) == Offsets(5, 0, 18)
        assert "recovery-point-offset-checkpoint is damaged" in caplog.text


class TestIds:
    def test_ids_are_encoded_as_in_kafka(self) -> None:
        topic_id = UUID("6d5ca2a1-0b84-462c-9bc8-ef00ee6a3c7d")
        assert decode_id("bVyioQuERiybyO8A7mo8fQ") == topic_id
        assert encode_id(topic_id) == "bVyioQuERiybyO8A7mo8fQ"
        assert PartitionMetadata.from_bytes(KAFKA_PARTITION) == (topic_id, None)
        assert PartitionMetadata(topic_id, 3).to_bytes().startswith(KAFKA_PARTITION + b"\n")

    @pytest.mark.parametrize("partition", [None, 0, 12])
    def test_partition_metadata_round_trip_keeps_topic_id_and_partition(
        self, partition: int | None
    ) -> None:
        identity = PartitionMetadata(UUID(int=7), partition)
        assert PartitionMetadata.from_bytes(identity.to_bytes()) == identity
        assert identity.belongs_to(UUID(int=7), 12) == (partition != 0)
        assert not identity.belongs_to(UUID(int=8), 12)

    @pytest.mark.parametrize(
        "data", [b"", b"\0" * 43, KAFKA_PARTITION[:-3], b"version: 1" + KAFKA_PARTITION[10:]]
    )
    def test_damaged_partition_metadata_is_rejected(self, data: bytes) -> None:
        assert PartitionMetadata.from_bytes(data) is None


class TestMetaProperties:
    def test_meta_properties_of_kafka_are_read(self) -> None:
        meta = MetaProperties.from_bytes(KAFKA_META, "meta")
        assert meta == MetaProperties("GyFiz_PMSD627V0vW6A4Pg", 1, "9zWOGwWPTcG2AgDWW_m4NQ")
        assert MetaProperties.from_bytes(meta.to_bytes(), "meta") == meta

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "damaged"),
            (b"\0" * 100, "damaged"),
            (KAFKA_META.replace(b"node.id=1", b"node.id=x"), "damaged"),
            (KAFKA_META + b"checksum=1\n", r"damaged \(its checksum does not match\)"),
            (KAFKA_META.replace(b"version=1", b"version=2"), "newer"),
            (KAFKA_META + b"kbroker.format.version=2\n", "newer"),
        ],
    )
    def test_damaged_or_newer_meta_properties_are_rejected(self, data: bytes, reason: str) -> None:
        with pytest.raises(StorageError, match=f"the/path is .*{reason}"):
            MetaProperties.from_bytes(data, "the/path")


def test_every_changed_bit_is_detected() -> None:
    """A change is detected, or it affects only the checksum's line and the content is correct."""
    identity = PartitionMetadata(UUID(int=2**100 + 17), 12)
    meta = MetaProperties("GyFiz_PMSD627V0vW6A4Pg", 1, "9zWOGwWPTcG2AgDWW_m4NQ")
    offsets = {("orders", 0): 30, ("orders", 1): 1234}
    for data, parse, content in (
        (identity.to_bytes(), PartitionMetadata.from_bytes, identity),
        (offsets_to_bytes(offsets, LOG_STARTS), _parse_log_starts, offsets),
        (meta.to_bytes(), _parse_meta, meta),
    ):
        for position in range(len(data)):
            for bit in range(8):
                changed = bytearray(data)
                changed[position] ^= 1 << bit
                found = parse(bytes(changed))
                if isinstance(found, dict):
                    found = {key: at for key, at in found.items() if key[0] == "orders"}
                assert found in (None, content), changed


def _parse_meta(data: bytes) -> MetaProperties | None:
    try:
        return MetaProperties.from_bytes(data, "meta")
    except StorageError:
        return None


def _parse_log_starts(data: bytes) -> dict[tuple[str, int], int] | None:
    return offsets_from_bytes(data, LOG_STARTS)


def test_checkpoint_under_the_name_of_another_one_is_damaged() -> None:
    data = offsets_to_bytes({("orders", 0): 30}, LOG_STARTS)
    assert offsets_from_bytes(data, RECOVERY_POINTS) is None


def test_checkpoint_of_an_earlier_version_keeps_its_offsets() -> None:
    offsets = {("plain", 0): 5, ("trim", 0): 37, ("trim", 1): 55}
    assert offsets_from_bytes(EARLIER_STARTS, LOG_STARTS) == offsets
    assert offsets_from_bytes(EARLIER_STARTS.replace(b" 37", b" 36"), LOG_STARTS) is None


def test_clean_marker_is_kafkas_json_with_checksums_of_the_checkpoints() -> None:
    assert json.loads(clean_marker({})) == {"version": 0, "brokerEpoch": -1, "checkpoints": {}}
    assert checksums_in_marker(clean_marker({LOG_STARTS: 7})) == {LOG_STARTS: 7}
    for kafkas in (b'{"version":0,"brokerEpoch":-1}', b"", b"[]", b'{"checkpoints":3}'):
        assert checksums_in_marker(kafkas) == {}


def test_version_of_lines_is_checked() -> None:
    assert parse_lines(b"0\n1\n0 7\n", 0) == [["0", "7"]]
    assert parse_lines(b"0\n1\n0 7\n", 1) is None
