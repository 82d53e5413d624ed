"""Data directories read from outside the broker: committed data, damage, and concurrent changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kbroker.protocol.message_sets import from_batches
from kbroker.protocol.records import (
    Marker,
    Record,
    encode_batch,
    end_transaction_marker,
    iter_headers,
)
from kbroker.spark.source import stored
from kbroker.spark.source.files import FilePartitions, file_tasks, read_task
from kbroker.spark.source.loss import DataLoss
from kbroker.spark.source.offsets import EARLIEST, LATEST, OffsetRange
from kbroker.spark.source.options import AtTimestamps, Everywhere, OptionError, SourceOptions
from kbroker.spark.source.partitions import SourceError
from kbroker.spark.source.stored import DataDirectories, FilesError, StoredLog
from kbroker.spark.source.stored_range import StoredRange
from kbroker.storage.batches import Position
from kbroker.storage.checkpoints import offsets_to_bytes
from kbroker.storage.index import AbortedTransaction, OffsetIndex, TimeIndex
from kbroker.storage.naming import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    file_name,
)
from kbroker.storage.producer_state import ProducerStates

TIME = 1_700_000_000_000


def batch(first: int, count: int = 10, producer: int = -1, step: int = 1) -> bytes:
    """Encode records whose values are their offsets, with increasing timestamps."""
    offsets = range(first, first + count, step)
    records = [Record(None, b"%d" % it, TIME + it, (), it) for it in offsets]
    known = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    chosen = {**known, "transactional": True} if producer >= 0 else {}
    return encode_batch(records, base_offset=first, keep_offsets=True, **chosen)  # type: ignore[arg-type]


def marker(at: int, producer: int, commit: bool) -> bytes:
    return end_transaction_marker(
        Marker(commit, 0), producer_id=producer, producer_epoch=0, timestamp=TIME, base_offset=at
    )


class Directory:
    """A data directory with the partition t-0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partition = path / "t-0"
        self.partition.mkdir(parents=True)

    def segment(self, base: int, batches: Sequence[bytes], tail: bytes = b"") -> Path:
        path = self.partition / file_name(base, ".log")
        path.write_bytes(b"".join(batches) + tail)
        return path

    def index(self, base: int) -> None:
        """Write both indexes of a segment, with an entry for each batch."""
        data = (self.partition / file_name(base, ".log")).read_bytes()
        offsets, times = OffsetIndex(), TimeIndex()
        for position, header in iter_headers(data):
            offsets.append(header.last_offset - base, Position(position))
            times.append(header.max_timestamp, header.last_offset - base)
        (self.partition / file_name(base, ".index")).write_bytes(offsets.to_bytes())
        (self.partition / file_name(base, ".timeindex")).write_bytes(times.to_bytes())

    def checkpoint(self, end: int, start: int = 0) -> None:
        (self.path / HIGH_WATERMARKS).write_bytes(
            offsets_to_bytes({("t", 0): end}, HIGH_WATERMARKS)
        )
        (self.path / LOG_STARTS).write_bytes(offsets_to_bytes({("t", 0): start}, LOG_STARTS))

    @property
    def log(self) -> StoredLog:
        return DataDirectories([str(self.path)]).logs()["t", 0]

    def options(self, **more: str) -> SourceOptions:
        return SourceOptions.parse({"path": str(self.path), "subscribe": "t", **more})

    def offsets(self, start: int, end: int, **more: str) -> list[int]:
        """Return the offsets that all tasks of a range read. The values must equal the offsets."""
        options = self.options(**more)
        found: list[int] = []
        for task in file_tasks([OffsetRange("t", 0, start, end)], options):
            for rows in read_task(task, options):
                offsets = rows.column("offset").to_pylist()
                assert [int(it) for it in rows.column("value").to_pylist()] == offsets
                found += offsets
        return found


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """A data directory with offsets 0 to 99 in three segments."""
    made = Directory(tmp_path / "data")
    made.segment(0, [batch(it) for it in (0, 10, 20)])
    made.segment(30, [batch(it) for it in (30, 40, 50)])
    made.segment(60, [batch(it) for it in (60, 70, 80, 90)])
    for base in (0, 30, 60):
        made.index(base)
    made.checkpoint(100)
    return made


def test_bytes_after_high_watermark_are_not_read(directory: Directory) -> None:
    directory.segment(60, [batch(60), batch(70)], batch(80)[:50] + b"garbage")
    directory.checkpoint(80, start=15)
    partitions = FilePartitions(directory.options())

    assert partitions.resolve(Everywhere(LATEST), side="ending") == {("t", 0): 80}
    assert partitions.resolve(Everywhere(EARLIEST), side="starting") == {("t", 0): 15}
    assert directory.offsets(15, 80) == list(range(15, 80))


def test_task_starts_and_ends_within_batch(directory: Directory) -> None:
    assert directory.offsets(33, 34) == [33]
    assert directory.offsets(25, 77) == list(range(25, 77))


@pytest.mark.parametrize("index", ["right", "missing", "of another file", "torn", "allocated"])
def test_small_tasks_read_all_records_despite_invalid_indexes(
    directory: Directory, index: str
) -> None:
    for base in (0, 30, 60):
        path = directory.partition / file_name(base, ".index")
        if index == "missing":
            path.unlink()
        elif index == "of another file":
            wrong = OffsetIndex()
            for number in range(1, 5):
                wrong.append(number * 6, Position(number * 70))
            path.write_bytes(wrong.to_bytes())
        elif index == "torn":
            path.write_bytes(path.read_bytes()[:-3])
        elif index == "allocated":
            path.write_bytes(path.read_bytes() + bytes(800))

    tasks = file_tasks([OffsetRange("t", 0, 0, 100)], directory.options(minPartitions="8"))

    assert len(tasks) >= (1 if index in ("missing", "torn") else 5)
    assert directory.offsets(0, 100, minPartitions="8") == list(range(100))
    if index == "right":
        edges = [it.range.start for it in tasks if it.range]
        assert all(edge % 10 == 0 for edge in edges)


def test_tasks_are_split_by_bytes_and_by_rows(directory: Directory) -> None:
    cuts = list(directory.log.split_offsets(0, 100, 300))
    limited = directory.options(maxRecordsPerPartition="5")

    sizes = [end - start for start, end in pairwise([0, *cuts, 100])]
    assert all(0 < size <= 30 for size in sizes)
    assert len(sizes) >= 5
    assert len(file_tasks([OffsetRange("t", 0, 0, 100)], limited)) == 20


def test_damaged_batch_error_names_position_and_repair_command(
    directory: Directory,
) -> None:
    path = directory.partition / file_name(30, ".log")
    data = bytearray(path.read_bytes())
    at = len(batch(30))
    data[at + 70] ^= 1
    path.write_bytes(data)

    with pytest.raises(FilesError) as refused:
        directory.offsets(0, 100)

    message = str(refused.value)
    assert f"{path} is corrupt at byte {at}" in message
    assert f"kbroker log verify {directory.partition}" in message
    assert f"kbroker log repair {directory.partition}" in message
    assert directory.offsets(0, 40) == list(range(40))


def test_log_that_ends_below_high_watermark_is_data_loss(directory: Directory) -> None:
    directory.checkpoint(120)
    with pytest.raises(DataLoss, match="the files end at 100"):
        directory.offsets(90, 120)
    assert directory.offsets(90, 120, failOnDataLoss="false") == list(range(90, 100))


def test_records_deleted_by_retention_are_data_loss(directory: Directory) -> None:
    (directory.partition / file_name(0, ".log")).unlink()
    with pytest.raises(DataLoss, match="the log starts at 30"):
        directory.offsets(5, 50)
    assert directory.offsets(5, 50, failOnDataLoss="false") == list(range(30, 50))


def test_deleted_partition_is_data_loss(directory: Directory) -> None:
    directory.partition.rename(directory.path / "t-0.0123-delete")
    with pytest.raises(DataLoss, match="t-0 has no files"):
        directory.offsets(0, 50)
    assert directory.offsets(0, 50, failOnDataLoss="false") == []
    with pytest.raises(SourceError, match="topic t does not exist"):
        FilePartitions(directory.options()).current()


def test_segments_replaced_by_compaction_are_read_on(directory: Directory) -> None:
    reading = StoredRange(directory.log, 0, 100)
    rows: Iterator[list[int]] = (it.offsets.tolist() for it in reading.columns())
    first = next(rows)
    assert first == list(range(30))

    # Every other record of the first two segments remains, in one segment with the first name.
    directory.segment(0, [batch(it, step=2) for it in range(0, 60, 10)])
    (directory.partition / file_name(30, ".log")).unlink()
    rest = [offset for columns in rows for offset in columns]

    assert rest == [*range(30, 60, 2), *range(60, 100)]
    assert reading.position == 100


def test_leftover_segment_after_merge_is_not_read_twice(directory: Directory) -> None:
    directory.segment(0, [batch(it, step=3) for it in range(0, 55, 10)])
    kept = [ten + each for ten in range(0, 60, 10) for each in (0, 3, 6, 9)]
    assert directory.offsets(0, 100) == [*kept, *range(60, 100)]


def test_batch_is_resumed_without_repeating_records(directory: Directory) -> None:
    directory.segment(0, [batch(it) for it in (0, 10, 20, 30)] + [batch(40, 4)])
    assert directory.offsets(0, 100) == list(range(100))


def test_large_batch_is_read_completely(directory: Directory) -> None:
    large = encode_batch([Record(None, b"1" * 3_000_000)], base_offset=100)
    directory.segment(100, [large, batch(101)])
    directory.checkpoint(111)
    (columns,) = [it for it in StoredRange(directory.log, 100, 101).columns() if len(it)]
    assert len(columns.values()[0] or b"") == 3_000_000


def test_transactions_are_found_in_index_snapshot_and_batches(directory: Directory) -> None:
    """One is aborted before the snapshot, others are aborted or open after it."""
    directory.segment(
        0, [batch(0, 10, 1), marker(10, 1, False), batch(11, 9, 2), marker(20, 2, True)]
    )
    directory.segment(30, [batch(30, 10, 3), batch(40, 10, 4)])
    directory.segment(
        60, [marker(60, 3, False), batch(61, 9, 5), marker(70, 5, True), batch(71, 9, 6)]
    )
    directory.checkpoint(80)
    aborted = AbortedTransaction(1, 0, 10, 11)
    (directory.partition / file_name(0, ".txnindex")).write_bytes(aborted.to_bytes())
    states = ProducerStates()
    for (_, header), at in zip(
        iter_headers(batch(30, 10, 3) + batch(40, 10, 4)), (30, 40), strict=True
    ):
        states.update(header, at, 0)
    (directory.partition / file_name(60, ".snapshot")).write_bytes(states.to_bytes())

    stable = directory.log.stable
    committed = {"kafka.isolation.level": "read_committed"}

    assert stable.end == 40
    assert [it[:3] for it in stable.aborted] == [(1, 0, 10), (3, 30, 60)]
    assert directory.offsets(0, stable.end, **committed) == list(range(11, 20))
    partitions = FilePartitions(directory.options(**committed))
    assert partitions.resolve(Everywhere(LATEST), side="ending") == {("t", 0): 40}
    assert len(directory.offsets(0, 80)) == 10 + 9 + 20 + 9 + 9


@pytest.mark.parametrize("index", ["right", "missing", "wrong"])
def test_timestamp_is_found_despite_invalid_index(directory: Directory, index: str) -> None:
    for base in (0, 30, 60):
        path = directory.partition / file_name(base, ".timeindex")
        if index == "missing":
            path.unlink()
        elif index == "wrong":
            wrong = TimeIndex()
            wrong.append(TIME - 5, 28)
            path.write_bytes(wrong.to_bytes())
    partitions = FilePartitions(directory.options())

    def at(timestamp: int) -> int:
        found = partitions.resolve(AtTimestamps(timestamp, or_latest=True), side="starting")
        return found["t", 0]

    assert [at(TIME - 1), at(TIME + 45), at(TIME + 60), at(TIME + 99)] == [0, 45, 60, 99]
    assert at(TIME + 500) == 100
    with pytest.raises(OptionError, match="No offset matched"):
        partitions.resolve(AtTimestamps(TIME + 500, or_latest=False), side="starting")


def test_several_data_directories_are_read_together(directory: Directory, tmp_path: Path) -> None:
    other = Directory(tmp_path / "other")
    other.partition.rename(other.path / "u-3")
    (other.path / "u-3" / file_name(0, ".log")).write_bytes(batch(0))
    (other.path / HIGH_WATERMARKS).write_bytes(offsets_to_bytes({("u", 3): 10}, HIGH_WATERMARKS))
    both = SourceOptions.parse({"path": f"{directory.path}, {other.path}/"})

    ends = FilePartitions(both).resolve(Everywhere(LATEST), side="ending")

    assert ends == {("t", 0): 100, ("u", 3): 10}


def test_incomplete_file_options_are_rejected(directory: Directory) -> None:
    with pytest.raises(OptionError, match="path must name data directories"):
        FilePartitions(directory.options(path=f"{directory.path},"))
    with pytest.raises(OptionError, match=r"also needs 'kafka\.bootstrap\.servers'"):
        FilePartitions(directory.options(commitToGroup="g"))


def test_invalid_data_directory_is_rejected(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FilesError, match="is not a data directory of a broker"):
        DataDirectories([str(tmp_path)]).logs()
    (directory.path / HIGH_WATERMARKS).write_bytes(b"0\n7\nt 0 5\n")
    with pytest.raises(FilesError, match="is corrupt, so the high watermarks are unknown"):
        DataDirectories([str(directory.path)]).logs()
    directory.checkpoint(100)
    (directory.partition / (file_name(0, ".log") + ".swap")).touch()
    monkeypatch.setattr(stored, "SWAP_SECONDS", 0)
    with pytest.raises(FilesError, match="contains an interrupted compaction"):
        directory.offsets(0, 100)


def test_segments_that_broker_swaps_are_read_after_swap(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap of a running broker ends during the second pause."""
    swapped = directory.partition / (file_name(0, ".log") + ".swap")
    (directory.partition / file_name(0, ".log")).rename(swapped)
    pauses: list[float] = []

    def finish_swap(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            swapped.rename(swapped.with_suffix(""))

    monkeypatch.setattr(time, "sleep", finish_swap)
    assert directory.offsets(0, 100) == list(range(100))
    assert len(pauses) == 2


def test_old_message_formats_are_rejected(directory: Directory) -> None:
    steps = from_batches(batch(0), 1, first_offset=0, max_bytes=10_000, max_content=10_000)
    old = next(each for each in steps if each is not None).data
    directory.segment(0, [old])
    (directory.partition / file_name(0, ".index")).unlink()
    with pytest.raises(FilesError, match="messages of format 1 at byte 0"):
        directory.offsets(0, 10)


def test_files_are_opened_read_only(directory: Directory) -> None:
    before = {it: it.stat().st_mtime_ns for it in directory.path.rglob("*")}
    for path in directory.path.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    opened: list[int] = []
    real = os.open

    def watched(path: str, flags: int, *more: int) -> int:
        opened.append(flags)
        return real(path, flags, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        assert directory.offsets(0, 100) == list(range(100))
    assert opened
    assert not any(flags & (os.O_RDWR | os.O_WRONLY) for flags in opened)
    assert {it: it.stat().st_mtime_ns for it in directory.path.rglob("*")} == before
