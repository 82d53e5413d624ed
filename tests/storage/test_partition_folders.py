"""Folders of partitions: their names, and the partitions that they hold."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker.storage.checkpoints import PartitionMetadata
from kbroker.storage.errors import ForeignLogError, StorageError
from kbroker.storage.files import OsFile, OsFiles
from kbroker.storage.naming import PARTITION_METADATA
from kbroker.storage.partition_folders import Future, PartitionFolders

from .helpers import TOPIC_ID

KEY = ("orders", 0)
OTHER_ID = UUID(int=8)


@pytest.fixture
def folders(tmp_path: Path) -> PartitionFolders:
    return PartitionFolders(OsFiles(), str(tmp_path))


def test_size_counts_records_only(folders: PartitionFolders) -> None:
    folder = Path(folders.path(KEY))
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(b"x" * 7)
    (folder / "00000000000000000009.log").write_bytes(b"x")
    (folder / "00000000000000000000.index").write_bytes(b"x" * 100)
    assert folders.size(KEY) == 8


def test_file_with_name_of_partition_is_no_folder(folders: PartitionFolders) -> None:
    Path(folders.path(KEY)).touch()
    assert not folders.is_folder(KEY)


def test_copies_are_found_by_their_names(folders: PartitionFolders, tmp_path: Path) -> None:
    name = f"orders-0.{TOPIC_ID.hex}-future"
    (tmp_path / name).mkdir()
    (tmp_path / "orders-1").mkdir()
    assert folders.futures() == [Future(KEY, TOPIC_ID, name)]


def test_stray_folders_of_one_partition_get_different_names(folders: PartitionFolders) -> None:
    first = folders.free_stray(KEY, TOPIC_ID)
    Path(first).mkdir()
    assert folders.free_stray(KEY, TOPIC_ID) != first


def test_name_for_deleted_folder_is_freed(folders: PartitionFolders) -> None:
    folder = Path(folders.free_deleted(KEY, TOPIC_ID))
    folder.mkdir()
    (folder / "left").touch()
    assert folders.free_deleted(KEY, TOPIC_ID) == str(folder)
    assert not folder.exists()


def test_folder_without_metadata_file_gets_one(
    folders: PartitionFolders, caplog: pytest.LogCaptureFixture
) -> None:
    Path(folders.path(KEY)).mkdir()
    assert folders.held(KEY) is None
    folders.check_held(KEY, TOPIC_ID, was_used=False)
    assert folders.held(KEY) == PartitionMetadata(TOPIC_ID, 0)
    assert not caplog.records


def test_used_folder_that_lost_its_metadata_file_is_logged(
    folders: PartitionFolders, caplog: pytest.LogCaptureFixture
) -> None:
    Path(folders.path(KEY)).mkdir()
    folders.check_held(KEY, TOPIC_ID, was_used=True)
    assert f"{PARTITION_METADATA} is missing or damaged" in caplog.text


def test_folder_of_another_topic_is_rejected(folders: PartitionFolders) -> None:
    folder = Path(folders.path(KEY))
    folder.mkdir()
    (folder / PARTITION_METADATA).write_bytes(PartitionMetadata(OTHER_ID, 0).to_bytes())
    with pytest.raises(ForeignLogError, match="holds topic id"):
        folders.check_held(KEY, TOPIC_ID, was_used=True)


def test_failed_sync_of_records_is_reported(
    folders: PartitionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(folders.path(KEY))
    folder.mkdir()
    (folder / "00000000000000000000.log").touch()
    reasons: list[str] = []
    folders.sync(KEY, 0, reasons.append)
    assert reasons == []

    def fail(_: OsFile) -> None:
        raise StorageError("Input/output error")

    monkeypatch.setattr(OsFile, "sync", fail)
    with pytest.raises(StorageError):
        folders.sync(KEY, 0, reasons.append)
    assert len(reasons) == 1
