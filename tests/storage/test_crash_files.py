from __future__ import annotations

import pytest

from kbroker.storage.crash_files import SECTOR, CrashFiles, Mode, Operation
from kbroker.storage.errors import StorageError


@pytest.fixture
def files() -> CrashFiles:
    """Return a disk with a directory "d" and a file "d/a", both durable."""
    files = CrashFiles()
    files.mkdir("d")
    files.sync_dir("")
    file = files.open("d/a", create=True)
    file.append([b"stable"])
    file.sync()
    files.sync_dir("d")
    return files


def crashed_disks(files: CrashFiles, mode: Mode) -> list[dict[str, bytes]]:
    """Return the disks after crashes with many seeds."""
    return [files.crashed(mode, seed).image() for seed in range(60)]


@pytest.mark.parametrize("mode", ["drop", "torn", "lost-name", "mixed"])
def test_synced_bytes_survive_a_crash(files: CrashFiles, mode: Mode) -> None:
    assert all(image == {"d/": b"", "d/a": b"stable"} for image in crashed_disks(files, mode))


def test_drop_mode_loses_bytes_but_no_names(files: CrashFiles) -> None:
    files.open("d/a").append([b"more"])
    files.open("d/b", create=True).append([b"x"])
    files.rename("d/a", "d/c")
    for image in crashed_disks(files, "drop"):
        assert image == {"d/": b"", "d/b": b"", "d/c": b"stable"}


def test_torn_mode_keeps_any_subset_of_the_sectors(files: CrashFiles) -> None:
    files.open("d/a").append([b"x" * (3 * SECTOR)])
    found = {image["d/a"] for image in crashed_disks(files, "torn")}
    assert len(found) > 10
    assert {len(data) for data in found} >= {6, 6 + 3 * SECTOR}
    assert all(data.startswith(b"stable") for data in found)
    second = {data[SECTOR : SECTOR + 4] for data in found if len(data) > 2 * SECTOR}
    assert second == {b"xxxx", bytes(4)}


def test_torn_mode_may_undo_a_truncation(files: CrashFiles) -> None:
    files.open("d/a").truncate(2)
    assert {image["d/a"] for image in crashed_disks(files, "torn")} == {b"st", b"stable"}


def test_lost_name_mode_restores_unsynced_names(files: CrashFiles) -> None:
    file = files.open("d/b", create=True)
    file.append([b"x"])
    file.sync()
    files.remove("d/a")
    assert crashed_disks(files, "lost-name")[0] == {"d/": b"", "d/a": b"stable"}
    files.sync_dir("d")
    assert crashed_disks(files, "lost-name")[0] == {"d/": b"", "d/b": b"x"}
    files.rename("d/b", "d/c")
    assert crashed_disks(files, "lost-name")[0] == {"d/": b"", "d/b": b"x"}


def test_unsynced_directory_can_be_lost_with_its_content(files: CrashFiles) -> None:
    files.mkdir("d/sub")
    file = files.open("d/sub/b", create=True)
    file.sync()
    files.sync_dir("d/sub")
    assert "d/sub/" not in crashed_disks(files, "lost-name")[0]
    files.sync_dir("d")
    assert "d/sub/b" in crashed_disks(files, "lost-name")[0]


def test_mixed_mode_applies_renames_atomically(files: CrashFiles) -> None:
    files.rename("d/a", "d/b")
    assert {tuple(image) for image in crashed_disks(files, "mixed")} == {
        ("d/", "d/a"),
        ("d/", "d/b"),
    }


def test_crash_image_does_not_change_the_running_disk(files: CrashFiles) -> None:
    file = files.open("d/a")
    copy = files.crashed("drop", 0)
    copy.open("d/a").append([b"!"])
    file.append([b"?"])
    assert (copy.read_bytes("d/a"), files.read_bytes("d/a")) == (b"stable!", b"stable?")


def test_hook_is_called_before_every_operation(files: CrashFiles) -> None:
    seen: list[tuple[Operation, dict[str, bytes]]] = []
    files.hook = lambda operation: seen.append((operation, files.image()))
    before = files.image()
    files.write_atomic("d/a", b"new")
    files.open("d/a").truncate(0)
    files.mkdir("d/sub")
    files.rmtree("d/sub")
    assert [tuple(operation) for operation, _ in seen] == [
        ("create", "d/a.tmp"),
        ("write", "d/a.tmp"),
        ("sync", "d/a.tmp"),
        ("rename", "d/a.tmp"),
        ("syncdir", "d"),
        ("truncate", "d/a"),
        ("mkdir", "/d/sub"),
        ("remove", "d/sub"),
    ]
    assert seen[0][1] == before
    assert seen[3][1]["d/a"] == b"stable"


def test_hook_can_fail_an_operation(files: CrashFiles) -> None:
    def hook(operation: Operation) -> None:
        raise StorageError("no")

    files.hook = hook
    with pytest.raises(StorageError, match="no"):
        files.open("d/a").append([b"x"])
    assert files.read_bytes("d/a") == b"stable"


def test_append_beyond_the_capacity_fails(files: CrashFiles) -> None:
    files.capacity = 10
    file = files.open("d/a")
    file.append([b"1234"])
    with pytest.raises(StorageError, match="no space"):
        file.append([b"5"])
    assert files.used() == 10
