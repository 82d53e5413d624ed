"""Assertions that prevent operations which would lose records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.storage.crash_files import CrashFiles
from kbroker.storage.files import MemFiles
from kbroker.storage.log import Log

from .helpers import NOW, append, commit, open_log, open_manager, values


@pytest.fixture
def log() -> Log:
    """Return a log of several segments, all of it committed."""
    log = open_log(open_manager(MemFiles(), "data"))
    for number in range(60):
        append(log, b"value %d" % number * 10)
    commit(log)
    assert len(log.segments) > 3
    return log


def active_files(log: Log) -> bytes:
    assert log.active is not None
    return log._files.read_bytes(log.active.log_path)


def test_batch_is_appended_at_the_file_end(log: Log) -> None:
    assert log.active is not None
    assert log.active.file.opened is not None
    log.active.file.opened.append([b"somebody else"])
    before = active_files(log)
    with pytest.raises(AssertionError, match="file size differs from the segment size"):
        append(log, b"lost in the middle")
    assert active_files(log) == before


def test_rest_of_a_failed_append_is_truncated_before_the_next_append(log: Log) -> None:
    """The bytes could not be removed immediately, and the file was closed since then."""
    assert log.active is not None
    log.active.file.opened = None
    log._files.open(log.active.log_path).append([b"the half of a batch"])
    append(log, b"behind it")
    commit(log)
    assert values(log)[-1] == b"behind it"
    assert len(active_files(log)) == log.active.size


def test_offsets_of_a_segment_increase(log: Log) -> None:
    log.log_end_offset -= 2
    with pytest.raises(AssertionError, match="offsets must increase"):
        append(log, b"again")


def test_append_with_an_earlier_leader_epoch_fails(log: Log) -> None:
    append(log, b"a", leader_epoch=5)
    with pytest.raises(AssertionError, match="earlier leader"):
        append(log, b"b", leader_epoch=4)
    assert log.epochs.latest == 5


@pytest.mark.parametrize(
    ("lower", "reason"), [(1, "starts within the previous one"), (1000, "start at the same offset")]
)
def test_new_segment_does_not_overwrite_another_one(log: Log, lower: int, reason: str) -> None:
    assert log.active is not None
    before = active_files(log)
    log.log_end_offset = max(log.active.base_offset, log.log_end_offset - lower)
    with pytest.raises(AssertionError, match=reason):
        log.roll()
    assert active_files(log) == before != b""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (lambda log: [log.segments[0], log.segments[2]], 0, "are not consecutive"),
        (lambda log: [log.active], -1, "active segment is replaced"),
        (lambda log: [log.segments[1]], 0, "are dropped"),
        (lambda log: [log.segments[0]], 0, "overlaps the next"),
    ],
)
def test_compacted_segment_must_cover_its_sources(
    log: Log, old: Callable[[Log], list[object]], new: int, reason: str
) -> None:
    replacement = log.segments[new]
    replacement.end_offset += 1
    found = values(log)
    with pytest.raises(AssertionError, match=reason):
        log.replace(old(log), replacement)  # type: ignore[arg-type]
    assert values(log) == found


def test_synced_offset_does_not_exceed_the_log_end(log: Log) -> None:
    with pytest.raises(AssertionError, match="synced offset exceeds"):
        log.synced(log.log_end_offset + 1)


def test_records_above_the_high_watermark_are_not_deleted(log: Log) -> None:
    log.high_watermark = 3
    with pytest.raises(AssertionError, match="<= 3 <="):
        log._advance_log_start(10)
    assert values(log, 10), "records were lost"


def test_truncation_keeps_the_offsets_in_order(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug: a truncation that does not lower the high watermark."""
    lower_offsets = Log._lower_offsets

    def truncate_without_high_watermark(log: Log, offset: int) -> None:
        before = log.high_watermark
        lower_offsets(log, offset)
        log.high_watermark = before

    monkeypatch.setattr(Log, "_lower_offsets", truncate_without_high_watermark)
    with pytest.raises(AssertionError, match="0 <= 60 <= 20"):
        log.truncate_to(20, now_ms=NOW)


def test_truncation_within_the_first_batch_empties_the_log() -> None:
    """Batches are removed as a whole, even if the log starts within them."""
    files = CrashFiles()
    log = open_log(open_manager(files))
    append(log, *(b"%d" % number for number in range(10)))
    commit(log)
    log.delete_records_before(5)
    log.truncate_to(7, now_ms=NOW)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (5, 5, 5)
    append(log, b"next")
    commit(log)
    reopened = open_log(open_manager(files.crashed("drop", 0)))
    assert (reopened.log_start_offset, values(reopened)) == (5, [b"next"])


def test_recovery_does_not_truncate_synced_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug: recovery finds the log end before the recovery point."""
    files = CrashFiles()
    manager = open_manager(files)
    log = open_log(manager)
    for number in range(5):
        append(log, b"%d" % number)
    commit(log)
    manager.checkpoint(NOW).run()
    monkeypatch.setattr("kbroker.storage.recovery._Recovery._scan", lambda *_: (3, 10))
    with pytest.raises(AssertionError, match="truncation removes synced records"):
        open_log(open_manager(files.crashed("drop", 0)))
