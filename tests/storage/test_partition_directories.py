"""Directories of partitions: their names and the partitions that they contain."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker.storage.checkpoints import PartitionMetadata
from kbroker.storage.errors import ForeignLogError, StorageError
from kbroker.storage.files import OsFile, OsFiles
from kbroker.storage.naming import PARTITION_METADATA
from kbroker.storage.partition_directories import FutureDirectory, PartitionDirectories

from .helpers import TOPIC_ID

KEY = ("orders", 0)
OTHER_ID = UUID(int=8)


@pytest.fixture
def directories(tmp_path: Path) -> PartitionDirectories:
    return PartitionDirectories(OsFiles(), str(tmp_path))


def test_size_counts_records_only(directories: PartitionDirectories) -> None:
    directory = Path(directories.path(KEY))
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(b"x" * 7)
    (directory / "00000000000000000009.log").write_bytes(b"x")
    (directory / "00000000000000000000.index").write_bytes(b"x" * 100)
    assert directories.size(KEY) == 8


def test_file_with_the_name_of_a_partition_is_not_a_directory(
    directories: PartitionDirectories,
) -> None:
    Path(directories.path(KEY)).touch()
    assert not directories.is_directory(KEY)


def test_future_replicas_are_found_by_their_names(
    directories: PartitionDirectories, tmp_path: Path
) -> None:
    name = f"orders-0.{TOPIC_ID.hex}-future"
    (tmp_path / name).mkdir()
    (tmp_path / "orders-1").mkdir()
    assert directories.futures() == [FutureDirectory(KEY, TOPIC_ID, name)]


def test_stray_directories_of_one_partition_get_different_names(
    directories: PartitionDirectories,
) -> None:
    first = directories.unused_stray_path(KEY, TOPIC_ID)
    Path(first).mkdir()
    assert directories.unused_stray_path(KEY, TOPIC_ID) != first


def test_name_for_deleted_directory_is_freed(directories: PartitionDirectories) -> None:
    directory = Path(directories.prepare_deleted_path(KEY, TOPIC_ID))
    directory.mkdir()
    (directory / "left").touch()
    assert directories.prepare_deleted_path(KEY, TOPIC_ID) == str(directory)
    assert not directory.exists()


def test_directory_without_metadata_file_gets_one(
    directories: PartitionDirectories, caplog: pytest.LogCaptureFixture
) -> None:
    Path(directories.path(KEY)).mkdir()
    assert directories.read_identity(KEY) is None
    directories.check_identity(KEY, TOPIC_ID, was_used=False)
    assert directories.read_identity(KEY) == PartitionMetadata(TOPIC_ID, 0)
    assert not caplog.records


def test_used_directory_that_lost_its_metadata_file_is_logged(
    directories: PartitionDirectories, caplog: pytest.LogCaptureFixture
) -> None:
    Path(directories.path(KEY)).mkdir()
    directories.check_identity(KEY, TOPIC_ID, was_used=True)
    assert f"{PARTITION_METADATA} is missing or damaged" in caplog.text


def test_directory_of_another_topic_is_rejected(directories: PartitionDirectories) -> None:
    directory = Path(directories.path(KEY))
    directory.mkdir()
    (directory / PARTITION_METADATA).write_bytes(PartitionMetadata(OTHER_ID, 0).to_bytes())
    with pytest.raises(ForeignLogError, match="holds topic ID"):
        directories.check_identity(KEY, TOPIC_ID, was_used=True)


def test_failed_sync_of_records_is_reported(
    directories: PartitionDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(directories.path(KEY))
    directory.mkdir()
    (directory / "00000000000000000000.log").touch()
    reasons: list[str] = []
    directories.sync(KEY, 0, reasons.append)
    assert reasons == []

    def fail(_: OsFile) -> None:
        raise StorageError("Input/output error")

    monkeypatch.setattr(OsFile, "sync", fail)
    with pytest.raises(StorageError):
        directories.sync(KEY, 0, reasons.append)
    assert len(reasons) == 1
