"""The local metadata store: compare-and-set, journal, torn lines."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.cluster.local_store import LocalStore, clean_end_path
from kbroker.cluster.store import ABSENT, Change, Compacted, Document, Entry, Lease
from kbroker.runtime.disk_work import DiskWork
from kbroker.runtime.threads import InThread
from kbroker.storage.crash_files import NO_LIMIT, CrashFiles, Operation
from kbroker.storage.errors import StorageError, SyncFailedError
from kbroker.storage.files import MemFiles, OsFiles

from ..refusing_files import RefusingFiles
from ..tearing_disk import refusing_truncation, tearing_disk

PATH = "data/cluster.journal"
Result = TypeVar("Result")


@pytest.fixture
def files() -> MemFiles:
    files = MemFiles()
    files.mkdir("data")
    return files


async def put(store: LocalStore, key: str, value: int, revision: int = ABSENT) -> int | None:
    return await store.transact({key: {"n": value}}, compares={key: revision}, cause="test")


async def keys(store: LocalStore) -> set[str]:
    return set((await store.range("")).entries)


async def test_failed_compare_changes_nothing(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    first = await put(store, "a", 1)
    assert first is not None
    assert await put(store, "a", 2) is None
    assert (await store.range("a")).entries["a"].value == {"n": 1}
    assert await put(store, "a", 2, first) == first + 1


async def test_revision_is_not_reused_after_delete(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    first = await put(store, "a", 1)
    assert first is not None
    await store.transact({"a": None}, compares={"a": first}, cause="test")
    second = await put(store, "a", 1)
    assert second is not None
    assert second > first
    assert await put(store, "a", 3, first) is None


async def test_entries_and_revisions_survive_restart(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    revision = await put(store, "a", 1)
    await put(store, "b", 2)
    await store.aclose()
    reopened = LocalStore(files, PATH)
    entries = (await reopened.range("")).entries
    assert {key: entry.value["n"] for key, entry in entries.items()} == {"a": 1, "b": 2}
    assert entries["a"].revision == revision
    assert await put(reopened, "c", 3) == 3


async def test_torn_last_line_is_truncated(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    await put(store, "a", 1)
    await put(store, "b", 2)
    await store.aclose()
    journal = files.open(PATH)
    journal.truncate(journal.size - 5)
    journal.close()
    reopened = LocalStore(files, PATH)
    assert await keys(reopened) == {"a"}
    await put(reopened, "c", 3)
    await reopened.aclose()
    assert await keys(LocalStore(files, PATH)) == {"a", "c"}


async def test_bad_line_before_intact_lines_is_rejected_unmodified(
    files: MemFiles,
) -> None:
    store = LocalStore(files, PATH)
    await put(store, "a", 1)
    await put(store, "b", 2)
    await store.aclose()
    damaged = b"?" + files.read_bytes(PATH)[1:]
    files.write_atomic(PATH, damaged)
    with pytest.raises(StorageError, match="line 1 is damaged, and 1 intact lines follow; restore"):
        LocalStore(files, PATH)
    assert files.read_bytes(PATH) == damaged


async def test_journal_with_long_history_is_rewritten(
    files: MemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "REWRITE_BYTES", 1000)
    store = LocalStore(files, PATH)
    revision: int | None = ABSENT
    for number in range(100):
        assert revision is not None
        revision = await put(store, "a", number, revision)
    await store.aclose()
    before = files.size(PATH)
    reopened = LocalStore(files, PATH)
    assert files.size(PATH) == before, "it was only looked at"
    assert (await reopened.range("a")).entries["a"] == ({"n": 99}, revision)
    await put(reopened, "b", 1)
    assert files.size(PATH) < before / 10
    assert (await LocalStore(files, PATH).range("a")).entries["a"] == ({"n": 99}, revision)


async def test_long_journal_of_live_entries_is_not_rewritten(
    files: MemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand partitions exceed a megabyte, but a rewrite would not shrink the journal."""
    monkeypatch.setattr(LocalStore, "REWRITE_BYTES", 1000)
    store = LocalStore(files, PATH)
    for number in range(100):
        await put(store, str(number), number)
    await store.aclose()
    monkeypatch.setattr(files, "write_atomic", None)
    reopened = LocalStore(files, PATH)
    await put(reopened, "one more", 1)
    assert len(await keys(LocalStore(files, PATH))) == 101


async def test_read_only_use_writes_nothing_and_detects_other_writers(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    assert not files.exists(PATH)
    await put(LocalStore(files, PATH), "a", 1)
    with pytest.raises(StorageError, match="written by another process; start the server again"):
        await put(store, "b", 1)
    assert await keys(LocalStore(files, PATH)) == {"a"}


async def test_reserve_permits_writes_on_full_disk() -> None:
    files = CrashFiles()
    files.mkdir("data")
    store = LocalStore(files, PATH)
    await put(store, "a", 1)
    files.capacity = files.used()
    await put(store, "b", 1)
    reopened = LocalStore(files, PATH)
    await put(reopened, "c", 1)
    assert await keys(LocalStore(files, PATH)) == {"a", "b", "c"}
    assert not files.exists(PATH + ".reserve")
    files.capacity = NO_LIMIT
    await put(reopened, "d", 1)
    assert files.exists(PATH + ".reserve")


async def test_watcher_gets_each_change_once(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    seen: list[Change] = []
    store.watch(seen.append, after=store.revision)
    await put(store, "a", 1)
    await put(store, "a", 9)  # fails
    assert [change.entries for change in seen] == [{"a": Entry({"n": 1}, 1)}]


async def test_failing_watcher_does_not_affect_others(files: MemFiles) -> None:
    """The other watchers are other nodes of the same process."""

    def fail(change: Change) -> None:
        raise StorageError("no space for a log")

    store = LocalStore(files, PATH)
    seen: list[Change] = []
    store.watch(fail, after=0)
    store.watch(seen.append, after=0)
    with pytest.raises(StorageError, match="no space for a log"):
        await put(store, "a", 1)
    assert [change.revision for change in seen] == [1]
    assert await keys(store) == {"a"}


class LostDisk:
    """A journal whose syncs fail."""

    def append(self, parts: list[bytes]) -> int:
        return 0

    def sync(self) -> None:
        raise StorageError("the disk is gone")


async def test_store_stops_writing_after_failed_sync(
    files: MemFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(files, PATH)
    await put(store, "a", 1)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_journal", LostDisk())
        with pytest.raises(StorageError):
            await put(store, "b", 2)
    with pytest.raises(StorageError, match="restart the server"):
        await put(store, "c", 3)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the disk is gone); restart the server" in caplog.text
    assert store.problem is not None
    assert store.problem.action == "restart the server"
    assert await keys(store) == {"a"}


@pytest.mark.parametrize("state", ["new", "stopped", "torn"])
async def test_store_stops_writing_after_failed_sync_of_first_write(
    files: MemFiles, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Preparing the journal syncs a directory before the line is appended."""
    if state != "new":
        before = LocalStore(files, PATH)
        await put(before, "a", 1)
        if state == "torn":
            files.open(PATH).append([b"torn"])
        else:
            files.write_atomic(clean_end_path(PATH), b"damaged")

    def failed(path: str) -> None:
        raise SyncFailedError("the disk is gone", path)

    store = LocalStore(files, PATH)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_dir", failed)
        patch.setattr(files, "write_atomic", lambda path, data: failed(path))
        with pytest.raises(StorageError, match="the disk is gone"):
            await put(store, "b", 2)
    assert store.problem is not None
    assert store.problem.action == "restart the server"
    with pytest.raises(StorageError, match="restart the server"):
        await put(store, "c", 3)


async def test_store_writes_again_after_full_disk_is_freed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemFiles(limit=200)
    files.mkdir("data")
    store = LocalStore(files, PATH)
    await put(store, "a", 1)
    with pytest.raises(StorageError):
        await put(store, "b" * 300, 2)
    assert "the metadata cannot be written: memory storage is full" in caplog.text
    assert store.problem is not None
    await put(store, "c", 3)
    assert store.problem is None
    assert await keys(store) == await keys(LocalStore(files, PATH)) == {"a", "c"}


async def test_problem_is_reported_until_write_succeeds(
    autojump_clock: MockClock, nursery: trio.Nursery, pytestconfig: pytest.Config
) -> None:
    """The store retries by itself with a line without changes."""
    random = Random(pytestconfig.getoption("--seed"))
    files = RefusingFiles()
    files.mkdir("data")
    store = LocalStore(files, PATH)
    nursery.start_soon(store.run)
    stored = {}
    for number in range(50):
        refuses = random.random() < 0.5
        full, files.capacity = random.random() < 0.5, NO_LIMIT
        if refuses and full:
            files.capacity = 0  # the reserve is not sufficient
        elif refuses:
            files.refuse("data")
        if random.random() < 0.7:
            try:
                await put(store, str(number), number)
                stored[str(number)] = number
            except StorageError:
                assert refuses
                assert store.problem is not None
                assert "cannot be written" in store.problem.description
        files.heal()
        files.capacity = NO_LIMIT
        if random.random() < 0.7:
            await trio.sleep(2 * LocalStore.PROBE_SECONDS)
            assert store.problem is None
            assert await next_timer() == math.inf
        if random.random() < 0.2:
            files.capacity = files.used()
            assert await values(LocalStore(files, PATH)) == await values(store) == stored
    assert len(stored) > 5


async def values(store: LocalStore) -> dict[str, int]:
    return {key: entry.value["n"] for key, entry in (await store.range("")).entries.items()}


# Leases


async def put_leased(store: LocalStore, key: str, seconds: float = math.inf) -> Lease:
    lease = await store.grant(seconds, holder="node 1")
    assert await store.transact({key: {}}, compares={}, cause="test", lease=lease)
    return lease


async def test_leased_entries_are_dropped_after_restart(files: MemFiles) -> None:
    store = LocalStore(files, PATH)
    await put_leased(store, "live")
    await put_leased(store, "freed")
    await put(store, "stays", 1)
    revision = await put(store, "freed", 2, 2)
    await store.aclose()
    reopened = LocalStore(files, PATH)
    assert await keys(reopened) == {"stays", "freed"}
    assert await put(reopened, "live", 1) == 5
    assert revision == 4


async def test_rewritten_journal_omits_entries_of_ended_leases(
    files: MemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "REWRITE_BYTES", 0)
    store = LocalStore(files, PATH)
    revision = await put(store, "a", 1)
    assert revision is not None
    for number in range(5):
        await put(store, "a", number, revision + number)
    await put_leased(store, "live")
    await store.aclose()
    await put(LocalStore(files, PATH), "b", 1)
    assert b"live" not in files.read_bytes(PATH)
    assert LocalStore(files, PATH).revision == 8


async def next_timer() -> float:
    await trio.testing.wait_all_tasks_blocked()
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


async def test_unlimited_leases_start_no_timer(
    files: MemFiles, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    store = LocalStore(files, PATH)
    nursery.start_soon(store.run)
    await put_leased(store, "live")
    assert await next_timer() == math.inf
    await put_leased(store, "ends", 1)
    assert await next_timer() < 1
    await trio.sleep(2)
    assert await next_timer() == math.inf
    assert await keys(store) == {"live"}


def test_blocked_event_loop_expires_no_lease(files: MemFiles) -> None:
    """The holder of the lease was blocked as well."""
    clock = MockClock()

    async def main() -> None:
        store = LocalStore(files, PATH)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            lease = await put_leased(store, "live", 0.6)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(60)
            await trio.testing.wait_all_tasks_blocked()
            assert await lease.keep_alive()
            clock.autojump_threshold = 0
            await trio.sleep(0.5)
            assert await keys(store) == {"live"}
            await trio.sleep(0.2)
            assert await keys(store) == set()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def delayed_by(delays: list[float]) -> InThread:
    """Return a function that runs syncs, of which the next one takes `delays[-1]` seconds."""

    async def run(work: Callable[[], Result]) -> Result:
        await trio.sleep(delays.pop() if delays else 0)
        return work()

    return run


async def test_renewed_lease_does_not_end_after_slow_change(
    files: MemFiles, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """The lease expires during the sync of another change, and is renewed before the sync ends."""
    delays: list[float] = []
    store = LocalStore(files, PATH, in_thread=delayed_by(delays))
    lease = await put_leased(store, "live", 0.5)
    delays.append(1.0)
    nursery.start_soon(store.run)
    nursery.start_soon(put, store, "other", 1)
    await trio.sleep(0.8)
    assert await lease.keep_alive()
    await trio.sleep(0.4)
    assert await keys(store) == {"live", "other"}


async def test_lease_cannot_be_renewed_while_its_entries_are_deleted(
    files: MemFiles, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Otherwise the holder relies on a lease that has ended."""
    delays: list[float] = []
    store = LocalStore(files, PATH, in_thread=delayed_by(delays))
    lease = await put_leased(store, "live", 0.5)
    delays.append(1.0)
    nursery.start_soon(store.run)
    await trio.sleep(0.8)
    assert not await lease.keep_alive()
    assert lease.may_be_over()
    await trio.sleep(1)
    assert await keys(store) == set()


async def test_lease_continues_if_its_end_cannot_be_stored(
    files: MemFiles,
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = LocalStore(files, PATH)
    nursery.start_soon(store.run)
    await put_leased(store, "live", 1)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_journal", FullDisk())
        await trio.sleep(5.5)
        assert await keys(store) == {"live"}
        assert len(caplog.records) == 1  # not one per tick
    await trio.sleep(1)
    assert await keys(store) == set()


class FullDisk:
    """A journal whose disk is full."""

    def append(self, parts: list[bytes]) -> int:
        raise StorageError("the disk is full")


async def test_change_history_is_bounded(files: MemFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "HISTORY_ENTRIES", 10)
    store = LocalStore(files, PATH)
    changes: dict[str, Document | None] = {"a": {}, "b": {}}
    for _ in range(20):
        await store.transact(changes, compares={}, cause="test")
    received: list[Change] = []
    with pytest.raises(Compacted, match="up to revision 15 are no longer available"):
        store.watch(received.append, after=14)
    store.watch(received.append, after=15)
    assert [change.revision for change in received] == [16, 17, 18, 19, 20]


class SlowDisk:
    """Syncs that end when the test allows it."""

    def __init__(self) -> None:
        self.began = 0
        self.go_on = trio.Event()

    async def in_thread(self, work: Callable[[], Result], /) -> Result:
        self.began += 1
        await self.go_on.wait()
        return work()


async def test_event_loop_runs_during_sync(files: MemFiles) -> None:
    """Readers do not see the change before; the next change waits and sees the first one."""
    disk = SlowDisk()
    store = LocalStore(files, PATH, in_thread=disk.in_thread)
    changes: list[Change] = []
    store.watch(changes.append, after=0)
    outcomes: list[int | None] = []

    async def change(value: int) -> None:
        outcomes.append(await put(store, "a", value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change, 1)
        await wait_all_tasks_blocked()
        nursery.start_soon(change, 2)
        await wait_all_tasks_blocked()
        assert disk.began == 1
        assert await keys(store) == set()
        assert not changes
        disk.go_on.set()
    assert outcomes == [1, None]
    assert [change.revision for change in changes] == [1]


async def test_cancelled_change_is_completed(files: MemFiles) -> None:
    """A written line is a change, even if its caller was cancelled."""
    disk = SlowDisk()
    store = LocalStore(files, PATH, in_thread=disk.in_thread)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, store, "a", 1)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        disk.go_on.set()
    assert await keys(store) == {"a"}
    assert await put(store, "b", 2) == 2
    assert await keys(LocalStore(files, PATH)) == {"a", "b"}


async def test_event_loop_runs_between_instant_syncs(
    files: MemFiles,
) -> None:
    store = LocalStore(files, PATH, in_thread=DiskWork().run)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        for number in range(50):
            await put(store, f"key-{number}", number)
        nursery.cancel_scope.cancel()
    assert turns > 40


# -- the end of a journal


@pytest.fixture
def disk() -> CrashFiles:
    files = CrashFiles()
    files.mkdir("data")
    files.sync_dir("")
    return files


async def stopped_store(disk: CrashFiles, count: int = 5) -> bytes:
    """Write some entries, stop cleanly, and return the journal."""
    store = LocalStore(disk, PATH)
    for number in range(count):
        await put(store, f"key-{number}", number)
    await store.aclose()
    return disk.read_bytes(PATH)


async def test_journal_truncated_after_clean_stop_is_rejected(disk: CrashFiles) -> None:
    journal = await stopped_store(disk)
    for size in range(len(journal)):
        disk.write_atomic(PATH, journal[:size])
        with pytest.raises(StorageError, match=f"at byte {len(journal)}, revision 5.*restore"):
            LocalStore(disk, PATH)
        assert disk.read_bytes(PATH) == journal[:size]
    disk.write_atomic(PATH, journal)
    assert len(await keys(LocalStore(disk, PATH))) == 5


async def test_older_journal_copy_is_rejected_until_operator_confirms(
    disk: CrashFiles,
) -> None:
    older = await stopped_store(disk)
    store = LocalStore(disk, PATH)
    await put(store, "young", 1)
    await store.aclose()
    disk.write_atomic(PATH, older)
    with pytest.raises(StorageError, match=f"remove {PATH}.clean to start"):
        LocalStore(disk, PATH)
    disk.remove(f"{PATH}.clean")
    reopened = LocalStore(disk, PATH)
    assert "young" not in await keys(reopened)
    await put(reopened, "next", 1)
    await reopened.aclose()
    assert "next" in await keys(LocalStore(disk, PATH))


async def test_journal_continued_by_earlier_version_logs_warning(
    disk: CrashFiles, caplog: pytest.LogCaptureFixture
) -> None:
    await stopped_store(disk)
    note = disk.read_bytes(f"{PATH}.clean")
    store = LocalStore(disk, PATH)
    await put(store, "young", 1)
    await store.aclose()
    disk.write_atomic(f"{PATH}.clean", note)  # an earlier version neither removes nor writes it
    assert "young" in await keys(LocalStore(disk, PATH))
    assert "was written after the last clean stop" in caplog.text


async def test_torn_line_after_clean_stop_and_crash_is_truncated(
    disk: CrashFiles,
) -> None:
    await stopped_store(disk)
    store = LocalStore(disk, PATH)
    await put(store, "young", 1)
    journal = disk.read_bytes(PATH)
    disk.write_atomic(PATH, journal[:-3])
    assert await keys(LocalStore(disk, PATH)) == {f"key-{number}" for number in range(5)}


async def test_damaged_clean_stop_file_logs_warning(
    disk: CrashFiles, caplog: pytest.LogCaptureFixture
) -> None:
    await stopped_store(disk)
    note = disk.read_bytes(f"{PATH}.clean")
    disk.write_atomic(f"{PATH}.clean", note[:12] + b"?" + note[13:])
    assert len(await keys(LocalStore(disk, PATH))) == 5
    assert f"{PATH}.clean is damaged" in caplog.text


async def test_journal_is_rewritten_while_store_runs(
    disk: CrashFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "REWRITE_BYTES", 2000)
    store = LocalStore(disk, PATH)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        lease = await store.grant(math.inf, holder="node 1")
        await store.transact({"leased": {"n": 1}}, compares={}, cause="test", lease=lease)
        await put(store, "kept", 1)
        largest = 0
        for number in range(400):
            revision = await put(store, "topic", number)
            assert revision is not None
            await store.transact({"topic": None}, compares={"topic": revision}, cause="test")
            await wait_all_tasks_blocked()
            largest = max(largest, disk.size(PATH))
        assert largest < 3000
        assert await keys(store) == {"leased", "kept"}
        nursery.cancel_scope.cancel()
    reopened = LocalStore(disk, PATH)
    assert await keys(reopened) == {"kept"}, "the lease ended with the process"
    assert reopened.revision == store.revision


async def test_crash_during_rewrite_loses_nothing(
    disk: CrashFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "REWRITE_BYTES", 1000)
    store = LocalStore(disk, PATH)
    acknowledged: dict[str, int] = {}
    cuts: list[tuple[CrashFiles, dict[str, int]]] = []

    def cut(operation: Operation) -> None:
        for mode in ("drop", "lost-name", "mixed"):
            cuts.append((disk.crashed(mode, disk.operations), dict(acknowledged)))

    disk.hook = cut
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        for number in range(60):
            key = f"key-{number % 3}"
            revision = acknowledged.get(key, ABSENT)
            stored = await put(store, key, number, revision)
            assert stored is not None
            acknowledged[key] = stored
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert disk.size(PATH) < 1500
    assert len(cuts) > 300
    for crashed, known in cuts:
        entries = (await LocalStore(crashed, PATH).range("")).entries
        for key, revision in known.items():
            assert key in entries, (known, entries, crashed.listdir("data"))
            assert entries[key].revision >= revision


@pytest.mark.parametrize("can_cut", [True, False])
async def test_stop_after_torn_append_leaves_readable_journal(
    tmp_path: Path, can_cut: bool
) -> None:
    path = (tmp_path / "cluster.journal").as_posix()
    store = LocalStore(OsFiles(), path)
    await put(store, "a", 1)
    with tearing_disk(), pytest.raises(StorageError):
        await put(store, "b", 1)
    with nullcontext() if can_cut else refusing_truncation():
        await store.aclose()
    assert OsFiles().exists(clean_end_path(path)) is can_cut
    store = LocalStore(OsFiles(), path)
    assert await keys(store) == {"a"}
    await store.aclose()
