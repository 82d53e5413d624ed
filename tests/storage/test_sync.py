from __future__ import annotations

from collections import Counter

from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.sync import (
    AtomicWrite,
    DirectorySync,
    FileRemoval,
    FileSync,
    FileWrite,
    sync_in_order,
    sync_together,
)


def disk() -> tuple[CrashFiles, list[Operation]]:
    files = CrashFiles()
    files.mkdir("d")
    files.sync_dir("")
    operations: list[Operation] = []
    files.hook = operations.append
    return files, operations


def test_file_write_truncates_the_rest() -> None:
    files, _ = disk()
    for position, data in ((0, b"abcdef"), (4, b"XY"), (6, b""), (6, b"Z"), (2, b"")):
        sync_in_order([FileWrite(files, "d/a", position, data)])
    sync_in_order([DirectorySync(files, "d")])
    assert files.crashed("lost-name", 0).read_bytes("d/a") == b"ab"


def test_file_sync_makes_bytes_durable() -> None:
    files, _ = disk()
    files.open("d/a", create=True).append([b"x"])
    sync_in_order([FileSync(files, "d/a"), FileSync(files, "d/gone"), DirectorySync(files, "d")])
    assert files.crashed("lost-name", 0).read_bytes("d/a") == b"x"


def test_atomic_write_and_removal_run_in_order() -> None:
    files, operations = disk()
    sync_in_order([AtomicWrite(files, "d/a", b"x"), FileRemoval(files, "d/b")])
    sync_in_order([AtomicWrite(files, "d/b", b"y"), FileRemoval(files, "d/a")])
    assert files.listdir("d") == ["b"]
    assert operations[-1] == ("remove", "d/a")


def test_sync_of_a_deleted_directory_is_skipped() -> None:
    files, _ = disk()
    sync_in_order([DirectorySync(files, "d/gone")])


def test_each_of_many_files_is_synced() -> None:
    """Only a sync of each file is reliable: a sync of the whole file system may have no effect."""
    files, operations = disk()
    items = []
    for number in range(100):
        files.open(f"d/{number}", create=True).append([b"x"])
        items.append(FileSync(files, f"d/{number}"))
    operations.clear()
    sync_together(files, items)
    assert Counter(operations) == Counter(Operation("sync", f"d/{n}") for n in range(100))
    assert operations != sorted(operations), "independent syncs run in a fixed order"
    files.sync_dir("d")
    image = files.crashed("lost-name", 0).image()
    assert all(image[f"d/{number}"] == b"x" for number in range(100))


def test_files_are_renamed_after_their_bytes_are_durable() -> None:
    """After a crash at each operation, a file has its old or its new content."""
    files, _ = disk()
    for number in range(9):
        sync_in_order([AtomicWrite(files, f"d/{number}", b"old")])
    disks = []
    files.hook = lambda operation: disks.append(files.crashed("mixed", files.operations))
    sync_together(files, [AtomicWrite(files, f"d/{number}", b"new") for number in range(9)])
    files.hook = None
    found = {each.read_bytes(f"d/{number}") for each in disks for number in range(9)}
    assert found == {b"old", b"new"}
    after = files.crashed("lost-name", 0)
    assert {after.read_bytes(f"d/{number}") for number in range(9)} == {b"new"}
