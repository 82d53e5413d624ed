from __future__ import annotations

from kbroker.storage.crash_files import CrashFiles, Operation
from kbroker.storage.sync import (
    WHOLE_ABOVE,
    AtomicWrite,
    FileSync,
    FileWrite,
    FolderSync,
    Removal,
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


def test_file_write_ends_the_file() -> None:
    files, _ = disk()
    for position, data in ((0, b"abcdef"), (4, b"XY"), (6, b""), (6, b"Z"), (2, b"")):
        sync_in_order([FileWrite(files, "d/a", position, data)])
    sync_in_order([FolderSync(files, "d")])
    assert files.crashed("lost-name", 0).read_bytes("d/a") == b"ab"


def test_file_sync_closes_an_open_file() -> None:
    files, _ = disk()
    file = files.open("d/a", create=True)
    file.append([b"x"])
    sync_in_order([FileSync(file), FolderSync(files, "d")])
    assert files.crashed("lost-name", 0).read_bytes("d/a") == b"x"


def test_atomic_write_and_removal_in_order() -> None:
    files, operations = disk()
    sync_in_order([AtomicWrite(files, "d/a", b"x"), Removal(files, "d/b")])
    sync_in_order([AtomicWrite(files, "d/b", b"y"), Removal(files, "d/a")])
    assert files.listdir("d") == ["b"]
    assert operations[-1] == ("remove", "d/a")


def test_a_folder_that_is_gone_needs_no_sync() -> None:
    files, _ = disk()
    sync_in_order([FolderSync(files, "d/gone")])


def test_few_are_synced_one_by_one_and_many_at_once() -> None:
    for count, kind in ((WHOLE_ABOVE, "sync"), (WHOLE_ABOVE + 1, "syncfs")):
        files, operations = disk()
        items = []
        for number in range(count):
            file = files.open(f"d/{number}", create=True)
            file.append([b"x"])
            items.append(FileSync(file))
        operations.clear()
        sync_together(files, "d", items)
        assert {operation.kind for operation in operations} == {kind}
        files.sync_dir("d")
        image = files.crashed("lost-name", 0).image()
        assert all(image[f"d/{number}"] == b"x" for number in range(count))


def test_where_there_is_no_such_call_all_are_synced_one_by_one() -> None:
    class Plain(CrashFiles):
        def sync_everything(self, path: str) -> bool:
            return False

    files = Plain()
    files.mkdir("d")
    file = files.open("d/a", create=True)
    file.append([b"x"])
    sync_together(files, "d", [FileSync(file)] * 20)
    assert files.crashed("drop", 0).read_bytes("d/a") == b"x"
