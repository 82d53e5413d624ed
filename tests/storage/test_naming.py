from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.storage import naming


def test_file_names_sort_as_offsets() -> None:
    assert naming.file_name(42, naming.LOG) == "00000000000000000042.log"
    names = [naming.file_name(offset, naming.LOG) for offset in (0, 9, 10, 2**62)]
    assert names == sorted(names)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_parse_file_name_returns_offset_and_suffix(suffix: str) -> None:
    assert naming.parse_file_name(naming.file_name(2**62, suffix)) == (2**62, suffix)


@pytest.mark.parametrize(
    "name",
    [
        "42.log",
        "00000000000000000042",
        "00000000000000000042.log.corrupt",
        "leader-epoch-checkpoint",
    ],
)
def test_other_names_are_not_parsed(name: str) -> None:
    assert naming.parse_file_name(name) is None


@pytest.mark.parametrize(("topic", "partition"), [("orders", 0), ("a-1", 12), ("x.y_z", 3)])
def test_partition_directory_names_are_parsed(topic: str, partition: int) -> None:
    name = naming.directory_name(topic, partition)
    assert naming.parse_directory_name(name) == (topic, partition)


def test_deleted_directory_names_are_truncated_and_recognized() -> None:
    name = naming.deleted_directory_name("orders", 3, UUID(int=255))
    assert name == "orders-3.000000000000000000000000000000ff-delete"
    assert naming.parse_directory_name(name) is None
    assert len(naming.deleted_directory_name("t" * 249, 12345, UUID(int=1))) == 255
