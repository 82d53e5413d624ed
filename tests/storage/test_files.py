from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker.storage import files as files_module
from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.errors import StorageError, UnreadableError, WriteRefusedError
from kbroker.storage.files import Files, MemFile, MemFiles, OsFiles

Place = tuple[Files, str]


@pytest.fixture(params=["disk", "memory", "crash"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each file system implementation with an existing directory."""
    files: Files
    if request.param == "disk":
        files, directory = OsFiles(), (tmp_path / "data").as_posix()
    else:
        files, directory = (MemFiles() if request.param == "memory" else CrashFiles()), "data"
    files.mkdir(directory)
    return files, directory


class TestFile:
    def test_appended_bytes_are_read_back(self, place: Place) -> None:
        files, directory = place
        file = files.open(f"{directory}/a", create=True)
        assert file.append([b"abc", memoryview(b"def")]) == 0
        assert file.append([b"", bytearray(b"gh")]) == 6
        assert file.size == files.size(f"{directory}/a") == 8
        assert file.read(2, 3) == b"cde"
        assert file.read(6, 100) == b"gh"
        assert file.read(8, 1) == b""
        file.sync()
        file.close()
        reopened = files.open(f"{directory}/a")
        assert reopened.append([b"i"]) == 8
        assert files.read_bytes(f"{directory}/a") == b"abcdefghi"

    def test_large_appends_are_read_back(self, place: Place) -> None:
        files, directory = place
        file = files.open(f"{directory}/a", create=True)
        whole = b""
        for size in (1, 5000, 3_000_000, 17, 4096, 1_048_576):
            piece = os.urandom(size)
            assert file.append([piece[:1], piece[1:]]) == len(whole)
            whole += piece
        assert file.read(0, len(whole) + 5) == whole
        for position in (0, 4095, 4096, 5001, 3_000_000):
            part = file.range(position, 1_500_000)
            assert part.read() == whole[position : position + 1_500_000]
            assert b"".join(part.parts()) == part.read()
            assert len(part) == 1_500_000

    def test_truncated_file_ends_earlier(self, place: Place) -> None:
        files, directory = place
        file = files.open(f"{directory}/a", create=True)
        file.append([b"0123456789"])
        file.truncate(4)
        assert (file.size, file.read(0, 10)) == (4, b"0123")
        assert file.append([b"x"]) == 4
        assert file.read(0, 10) == b"0123x"
        file.truncate(0)
        assert file.append([b"y"]) == 0

    def test_range_outlives_name_and_file(self, place: Place) -> None:
        files, directory = place
        file = files.open(f"{directory}/a", create=True)
        file.append([b"0123456789"])
        part = file.range(2, 3)
        files.remove(f"{directory}/a")
        file.close()
        del file
        gc.collect()
        assert part.read() == b"234"


class TestFiles:
    def test_missing_names_raise_file_not_found(self, place: Place) -> None:
        files, directory = place
        for use in (files.open, files.read_bytes, files.size):
            with pytest.raises(FileNotFoundError):
                use(f"{directory}/none")
        with pytest.raises(FileNotFoundError):
            files.open(f"{directory}/no/file", create=True)
        with pytest.raises(FileNotFoundError):
            files.rename(f"{directory}/none", f"{directory}/other")
        files.remove(f"{directory}/none")
        files.rmtree(f"{directory}/none")
        assert files.listdir(f"{directory}/none") == []
        assert not files.exists(f"{directory}/none")
        assert not files.exists(f"{directory}/no/file")

    def test_names_are_listed_renamed_and_removed(self, place: Place) -> None:
        files, directory = place
        files.mkdir(f"{directory}/sub")
        files.mkdir(f"{directory}/sub")
        files.open(f"{directory}/sub/b", create=True).append([b"1"])
        files.write_atomic(f"{directory}/a", b"2")
        assert files.listdir(directory) == ["a", "sub"]
        files.rename(f"{directory}/sub", f"{directory}/moved")
        files.rename(f"{directory}/a", f"{directory}/c")
        assert files.listdir(directory) == ["c", "moved"]
        assert files.read_bytes(f"{directory}/moved/b") == b"1"
        files.open(f"{directory}/d", create=True).append([b"3"])
        files.rename(f"{directory}/c", f"{directory}/d")
        assert files.read_bytes(f"{directory}/d") == b"2"
        assert files.exists(f"{directory}/moved")
        files.rmtree(f"{directory}/moved")
        assert files.listdir(directory) == ["d"]
        files.sync_dir(directory)
        synced: list[str] = []
        files.at_once([partial(synced.append, "a"), partial(synced.append, "b")])
        assert sorted(synced) == ["a", "b"]

    def test_write_atomic_replaces(self, place: Place) -> None:
        files, directory = place
        files.write_atomic(f"{directory}/a", b"long content")
        old = files.open(f"{directory}/a").range(0, 12)
        files.write_atomic(f"{directory}/a", b"short")
        assert files.read_bytes(f"{directory}/a") == b"short"
        assert old.read() == b"long content"
        assert files.listdir(directory) == ["a"]


class TestLock:
    @pytest.mark.parametrize("kind", ["disk", "memory"])
    def test_directory_is_locked_by_one_owner(self, kind: str, tmp_path: Path) -> None:
        files: Files = OsFiles() if kind == "disk" else MemFiles()
        path = (tmp_path / ".lock").as_posix()
        lock = files.lock(path)
        with pytest.raises(StorageError, match="another broker"):
            files.lock(path)
        lock.release()
        files.lock(path).release()


class TestMemory:
    def test_limit_counts_every_byte_once(self) -> None:
        files = MemFiles(limit=100)
        files.mkdir("d")
        file = files.open("d/a", create=True)
        file.append([b"x" * 60])
        with pytest.raises(StorageError, match=r"memory\.limit\.bytes=100"):
            file.append([b"x" * 41])
        assert (file.size, files.used) == (60, 60)
        file.append([b"x" * 40])
        file.truncate(10)
        assert files.used == 10
        files.write_atomic("d/b", b"x" * 50)
        files.write_atomic("d/b", b"x" * 20)
        assert files.used == 30
        files.rename("d/b", "d/a")
        assert files.used == 20
        files.rmtree("d")
        assert files.used == 0

    def test_append_without_memory_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files = MemFiles()
        files.mkdir("d")
        file = files.open("d/a", create=True)
        file.append([b"x" * 5000])
        grow, grown = MemFile._grow, []

        def fail_after_two(self: MemFile, needed: int) -> None:
            grown.append(needed)
            if len(grown) > 2:
                raise MemoryError
            grow(self, needed)

        monkeypatch.setattr(MemFile, "_grow", fail_after_two)
        with pytest.raises(MemoryError):
            file.append([b"y" * 3_000_000])
        monkeypatch.undo()
        assert len(grown) == 3, "the first part was stored already"
        assert (file.size, files.used) == (5000, 5000)
        assert file.append([b"z" * 9000]) == 5000
        assert file.read(4999, 9001) == b"x" + b"z" * 9000

    def test_view_keeps_bytes_that_truncation_overwrites(self) -> None:
        files = MemFiles()
        files.mkdir("d")
        file = files.open("d/a", create=True)
        file.append([b"0123456789"])
        views = file.range(0, 10).parts()
        file.truncate(4)
        file.append([b"abcdef"])
        assert b"".join(views) == b"0123456789"
        assert file.read(0, 10) == b"0123abcdef"

    def test_parts_are_views_not_copies(self) -> None:
        files = MemFiles()
        files.mkdir("d")
        file = files.open("d/a", create=True)
        for _ in range(3):
            file.append([b"x" * 1_000_000])
        parts = file.range(500_000, 2_000_000).parts()
        assert 1 < len(parts) < 6
        assert all(isinstance(part, memoryview) and part.readonly for part in parts)


class TestDisk:
    def test_files_leave_no_descriptor_open(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        files = OsFiles()
        file = files.open((tmp_path / "a").as_posix(), create=True)
        file.append([b"abc"])
        part = file.range(0, 3)
        assert part.fd is not None
        assert os.pread(part.fd, 3, 0) == b"abc"
        file.close()
        assert len(os.listdir("/proc/self/fd")) == before + 1
        del part
        assert len(os.listdir("/proc/self/fd")) == before
        with pytest.raises(StorageError, match="is closed"):
            file.read(0, 1)

    def test_short_writes_are_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = OsFiles().open((tmp_path / "a").as_posix(), create=True)
        file.append([b"before"])
        monkeypatch.setattr(
            files_module, "_writev", lambda fd, parts: os.write(fd, b"".join(parts)[:3])
        )
        assert file.append([b"ab", b"cdef"]) == 6
        assert file.read(0, 20) == b"beforeabcdef"

    @pytest.mark.parametrize("space", range(12))
    def test_append_on_a_full_disk_leaves_nothing(self, tmp_path: Path, space: int) -> None:
        file = OsFiles().open((tmp_path / "a").as_posix(), create=True)
        file.append([b"before"])
        with _file_size_limit(6 + space):
            if space < 11:
                with pytest.raises(StorageError, match="cannot append"):
                    file.append([b"01234", b"567890"])
                assert (file.size, file.read(0, 50)) == (6, b"before")
            else:
                file.append([b"01234", b"567890"])
        assert file.append([b"after"]) == (6 if space < 11 else 17)
        assert os.path.getsize(tmp_path / "a") == file.size

    def test_usage_excludes_reserved_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk of 100 bytes with 30 reserved counts as 40 of 70 used, as in `df`."""
        disk = SimpleNamespace(total=100, used=40, free=30)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
        assert OsFiles().usage(tmp_path.as_posix()) == (70, 30)

    def test_full_disk_error_advises_to_free_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        file = OsFiles().open((tmp_path / "a").as_posix(), create=True)
        monkeypatch.setattr(files_module, "_writev", refuse)
        with pytest.raises(StorageError, match="No space left on device; free some space"):
            file.append([b"x"])

    def test_torn_file_accepts_no_append_until_it_is_truncated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A partial write must not end up between records."""

        def refuse(*_: object) -> int:
            raise OSError(errno.EROFS, "read-only")

        def write_some(fd: int, parts: list[bytes]) -> int:
            os.write(fd, parts[0][:2])
            raise OSError(errno.EIO, "broken")

        file = OsFiles().open((tmp_path / "a").as_posix(), create=True)
        file.append([b"before"])
        monkeypatch.setattr(os, "ftruncate", refuse)
        with monkeypatch.context() as patch:
            patch.setattr(files_module, "_writev", write_some)
            with pytest.raises(WriteRefusedError, match="broken"):
                file.append([b"torn"])
        assert file.is_torn
        with pytest.raises(WriteRefusedError, match="read-only"):
            file.append([b"x"])
        monkeypatch.undo()
        assert file.append([b"after"]) == 6
        assert not file.is_torn
        assert (tmp_path / "a").read_bytes() == b"beforeafter"

    @pytest.mark.parametrize("call", ["open", "open read-only", "read_bytes", "listdir", "size"])
    def test_unreadable_file_is_named(
        self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.EIO, "broken")

        path = (tmp_path / "a").as_posix()
        OsFiles().open(path, create=True)
        for name in ("open", "listdir", "stat"):
            monkeypatch.setattr(os, name, refuse)
        files = OsFiles(read_only=call == "open read-only")
        with pytest.raises(UnreadableError, match="check the disk") as caught:
            getattr(files, call.partition(" ")[0])(path)
        monkeypatch.undo()
        assert caught.value.path == path
        assert caught.value.cause == f"cannot read {path}: broken"

    def test_file_that_cannot_be_created_is_a_write_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(WriteRefusedError, match=r"cannot open .*broken"):
            OsFiles().open((tmp_path / "a").as_posix(), create=True)
        monkeypatch.undo()

    def test_directory_without_permission_is_named_with_next_action(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def refuse(*args: object, **options: object) -> int:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        monkeypatch.setattr(os, "makedirs", refuse)
        action = "Permission denied; make it writable for this user, or choose another directory$"
        with pytest.raises(StorageError, match=rf"cannot lock .*/\.lock: {action}"):
            OsFiles().lock((tmp_path / ".lock").as_posix())
        with pytest.raises(StorageError, match=rf"cannot create .*/data: {action}"):
            OsFiles().mkdir((tmp_path / "data").as_posix())

    def test_new_files_are_accessible_to_their_owner_only(self, tmp_path: Path) -> None:
        files, directory = OsFiles(), f"{tmp_path.as_posix()}/directory"
        files.mkdir(directory)
        files.open(f"{directory}/log", create=True)
        files.write_atomic(f"{directory}/checkpoint", b"x")
        files.allocate(f"{directory}/reserve", 1000)
        lock = files.lock(f"{directory}/lock")
        modes = {each.name: each.stat().st_mode & 0o777 for each in Path(directory).iterdir()}
        lock.release()
        assert modes == dict.fromkeys(["log", "checkpoint", "reserve", "lock"], 0o600)
        assert Path(directory).stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("is_known", [True, False])
    def test_allocated_file_occupies_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "not here")

        if not is_known:
            monkeypatch.setattr(os, "posix_fallocate", refuse)
        path = tmp_path / "a"
        OsFiles().allocate(path.as_posix(), 3_000_000)
        assert path.stat().st_size == 3_000_000
        assert path.stat().st_blocks * 512 >= 3_000_000
        with _file_size_limit(1000), pytest.raises(WriteRefusedError):
            OsFiles().allocate((tmp_path / "b").as_posix(), 3_000_000)
        assert not (tmp_path / "b").exists()

    def test_failed_sync_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(fd: int) -> None:
            raise OSError(5, "broken")

        file = OsFiles().open((tmp_path / "a").as_posix(), create=True)
        monkeypatch.setattr(files_module, "_fsync", refuse)
        with pytest.raises(StorageError, match="cannot sync"):
            file.sync()

    def test_an_atomic_write_syncs_bytes_then_renames_then_syncs_the_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []

        def path_of(fd: int) -> str:
            return Path(os.readlink(f"/proc/self/fd/{fd}")).name

        replace = os.replace
        monkeypatch.setattr(files_module, "_fsync", lambda fd: steps.append(f"sync {path_of(fd)}"))
        monkeypatch.setattr(os, "fsync", lambda fd: steps.append(f"sync {path_of(fd)}"))

        def rename(old: str, new: str) -> None:
            steps.append("rename")
            replace(old, new)

        monkeypatch.setattr(os, "replace", rename)
        OsFiles().write_atomic((tmp_path / "a").as_posix(), b"x")
        assert steps == ["sync a.tmp", "rename", f"sync {tmp_path.name}"]

    def test_sync_reaches_the_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[int] = []
        monkeypatch.setattr(files_module, "_fsync", synced.append)
        file = OsFiles().open((tmp_path / "a").as_posix(), create=True)
        file.sync()
        part = file.range(0, 0)
        assert synced == [part.fd]
        file.close()
        file.sync()
        assert len(synced) == 1

    def test_fallbacks_without_vectored_calls_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files_module, "_writev", files_module._write_joined)
        monkeypatch.setattr(files_module, "_pread", files_module._seek_read)
        files = OsFiles()
        file = files.open((tmp_path / "a").as_posix(), create=True)
        file.append([b"abc", b"def"])
        assert file.read(1, 3) == b"bcd"
        assert file.append([b"g"]) == 6
        assert file.read(0, 10) == b"abcdefg"


@contextlib.contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    """Let writes beyond `size` fail with EFBIG after a short write, like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_removed_lock_file_does_not_free_the_directory(tmp_path: Path) -> None:
    path = (tmp_path / ".lock").as_posix()
    held = OsFiles().lock(path)
    (tmp_path / ".lock").unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match="another broker uses this data directory"):
            OsFiles().lock(path)
    held.release()
    OsFiles().lock(path).release()
    OsFiles().lock(path).release()


BESIDE_CHILD = """
import os, sys
from kbroker.storage.files import OsFiles

held = OsFiles().lock(sys.argv[1])
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(writer)
    os.read(reader, 1)
    os._exit(0)
held.release()
OsFiles().lock(sys.argv[1]).release()
"""


def test_released_directory_is_free_while_a_forked_child_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BESIDE_CHILD, (tmp_path / ".lock").as_posix()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
