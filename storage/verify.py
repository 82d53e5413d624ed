"""Offline, read-only check of the files of a partition.

Each batch is read to check its CRC, its offsets and its leader epoch. In the same pass each index
entry is compared with its batch, and each producer snapshot with the batches before it. Missing
indexes are not reported, because they can be rebuilt. Offset gaps are not reported either:
compaction leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import BatchHeader, check_crc, read_header, read_marker

from .batches import BEGINNING, Position, walk
from .checkpoints import MetaProperties, PartitionMetadata, offsets_from_bytes
from .epochs import UNDEFINED, LeaderEpochs
from .errors import CorruptLogError, StorageError
from .files import File, Files
from .index import AbortedTransaction, OffsetIndex, TimeIndex, aborted_from_bytes
from .naming import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    OFFSET_INDEX,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_directory_name,
    parse_file_name,
)
from .producer_state import ProducerStates

T = TypeVar("T")


class Problem(NamedTuple):
    """A problem in a file, at a byte position (None: the whole file)."""

    path: str
    position: int | None
    reason: str


@dataclass(slots=True)
class Report:
    """Content and problems of a partition. Offsets are -1 without records."""

    directory: str
    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    start_offset: int = -1
    end_offset: int = -1
    gaps: int = 0
    problems: list[Problem] = field(default_factory=list)


Progress = Callable[[int], None]


def verify_partition(files: Files, directory: str, progress: Progress = lambda _: None) -> Report:
    """Check the directory of one partition.

    Args:
        files: File system of the directory.
        directory: Path of the partition directory.
        progress: Called with the total number of bytes read so far.

    Raises:
        StorageError: A file cannot be read.
    """
    return _Verification(files, directory, progress).run()


def verify_checkpoints(files: Files, data_dir: str, reports: Iterable[Report]) -> list[Problem]:
    """Check the checkpoint files of a log directory against its partitions.

    Args:
        files: File system of the directory.
        data_dir: Path of the log directory.
        reports: Reports of all its partitions.

    Raises:
        StorageError: A file cannot be read.
    """
    problems = []
    ends = {
        parse_directory_name(each.directory.rpartition("/")[2]): each.end_offset for each in reports
    }
    for name in (LOG_STARTS, RECOVERY_POINTS, HIGH_WATERMARKS):
        path = f"{data_dir}/{name}"
        try:
            offsets = offsets_from_bytes(files.read_bytes(path), name)
        except FileNotFoundError:
            continue
        if offsets is None:
            problems.append(Problem(path, None, "it is damaged"))
            continue
        for (topic, index), offset in sorted(offsets.items()):
            end = ends.get((topic, index), -1)
            if offset > end >= 0:
                reason = f"offset {offset} for {topic}-{index}, but its records end at {end}"
                problems.append(Problem(path, None, reason))
    path = f"{data_dir}/{META_PROPERTIES}"
    if files.exists(path):
        try:
            MetaProperties.from_bytes(files.read_bytes(path), path)
        except StorageError as error:
            problems.append(Problem(path, None, str(error.message)))
    return problems


class _Verification:
    """Check of one partition, in a single pass over its batches."""

    def __init__(self, files: Files, directory: str, progress: Progress) -> None:
        self._files = files
        self.directory = directory
        self._progress = progress
        self._report = Report(directory)
        self._epochs = LeaderEpochs()
        self._producers = ProducerStates()
        self._snapshots: list[int] = []

    def run(self) -> Report:
        numbered = sorted(filter(None, map(parse_file_name, self._files.listdir(self.directory))))
        bases = [offset for offset, suffix in numbered if suffix == LOG]
        self._snapshots = [offset for offset, suffix in numbered if suffix == SNAPSHOT]
        self._read_small_files()
        for base, next_base in zip(bases, [*bases[1:], None], strict=True):
            self._check_segment(base, next_base)
        self._check_snapshots(None)
        return self._report

    def report_problem(self, path: str, position: int | None, reason: str) -> None:
        self._report.problems.append(Problem(path, position, reason))

    def read(self, name: str) -> bytes | None:
        try:
            return self._files.read_bytes(f"{self.directory}/{name}")
        except FileNotFoundError:
            return None

    def _read_small_files(self) -> None:
        data = self.read(LEADER_EPOCHS)
        epochs = LeaderEpochs.from_bytes(data) if data is not None else self._epochs
        if epochs is None:
            self.report_problem(f"{self.directory}/{LEADER_EPOCHS}", None, "it is damaged")
        else:
            self._epochs = epochs
        data = self.read(PARTITION_METADATA)
        if data is not None and PartitionMetadata.from_bytes(data) is None:
            self.report_problem(f"{self.directory}/{PARTITION_METADATA}", None, "it is damaged")

    # -- segments

    def _check_segment(self, base: int, next_base: int | None) -> None:
        path = f"{self.directory}/{file_name(base, LOG)}"
        file = self._files.open(path)
        size = file.size
        report = self._report
        report.segments += 1
        indexes = _Indexes(self, base, size)
        expected = base
        try:
            for place in walk(file, BEGINNING, Position(size)):
                header = self._check_batch(file, place.position, place.size)
                if header is None:
                    break
                self._check_offsets(path, place.position, header, expected, next_base)
                expected = header.next_offset
                self._follow_producer(file, place.position, header)
                indexes.compare(place.position, header)
        except CorruptLogError as error:
            self.report_problem(path, error.position, error.reason)
        except KafkaError as error:
            self.report_problem(path, None, str(error))
        else:
            indexes.finish()
        report.bytes += size
        self._progress(report.bytes)

    def _check_batch(self, file: File, position: int, size: int) -> BatchHeader | None:
        """Return the header of a valid batch, or report a problem and return None."""
        data = file.read(position, size)
        header = read_header(data)
        if not check_crc(data, 0, header):
            self.report_problem(file.path, position, "a batch does not match its CRC")
            return None
        epoch = self._epochs.epoch_at(header.base_offset)
        if epoch not in (UNDEFINED, header.leader_epoch):
            reason = f"leader epoch {header.leader_epoch}, but {LEADER_EPOCHS} says {epoch}"
            self.report_problem(file.path, position, reason)
        return header

    def _check_offsets(
        self, path: str, position: int, header: BatchHeader, expected: int, next_base: int | None
    ) -> None:
        report = self._report
        self._check_snapshots(header.base_offset)
        if header.base_offset < expected:
            self.report_problem(
                path, position, f"expected offset {expected}, found {header.base_offset}"
            )
        if next_base is not None and header.last_offset >= next_base:
            reason = f"offset {header.last_offset}, but the next segment starts at {next_base}"
            self.report_problem(path, position, reason)
        if report.start_offset < 0:
            report.start_offset = header.base_offset
        elif header.base_offset > report.end_offset:
            report.gaps += 1
        report.end_offset = header.next_offset
        report.batches += 1
        report.records += header.record_count

    # -- producers

    def _follow_producer(self, file: File, position: int, header: BatchHeader) -> None:
        if header.producer_id < 0:
            return
        if not header.is_control:
            self._producers.update(header, header.base_offset, 0)
            return
        batch = file.read(position, header.size)
        marker = next(map(read_marker, batch_records(batch, header)), None)
        if marker is not None:
            self._producers.end_transaction(header, marker, header.base_offset, 0)

    def _check_snapshots(self, offset: int | None) -> None:
        """Compare the snapshots up to an offset (None: all) with the batches so far."""
        while self._snapshots and (offset is None or self._snapshots[0] <= offset):
            at = self._snapshots.pop(0)
            name = file_name(at, SNAPSHOT)
            for reason in self._find_snapshot_errors(self.read(name) or b""):
                self.report_problem(f"{self.directory}/{name}", None, reason)

    def _find_snapshot_errors(self, data: bytes) -> Iterator[str]:
        states = ProducerStates.from_bytes(data, 0)
        if states is None:
            yield "it is damaged"
            return
        for producer_id, saved in states:
            seen = self._producers.get(producer_id)
            if seen is None or not saved.batches or not seen.batches:
                continue  # its batches were deleted, or it wrote only markers
            last, ours = saved.batches[-1], seen.batches[-1]
            if (saved.epoch, last.last_sequence, last.last_offset) != (
                seen.epoch,
                ours.last_sequence,
                ours.last_offset,
            ):
                yield (
                    f"producer {producer_id}: epoch {saved.epoch}, sequence {last.last_sequence} "
                    f"at offset {last.last_offset}; expected epoch {seen.epoch}, sequence "
                    f"{ours.last_sequence} at offset {ours.last_offset}"
                )


class _Indexes:
    """The three indexes of one segment, compared with its batches in order."""

    def __init__(self, parent: _Verification, base: int, size: int) -> None:
        self._parent = parent
        self._base = base
        self._offsets = self._load(
            OFFSET_INDEX, lambda data: OffsetIndex.from_bytes(data, size), OffsetIndex()
        )
        self._times = self._load(TIME_INDEX, TimeIndex.from_bytes, TimeIndex())
        empty: list[AbortedTransaction] = []
        self._aborted = list(self._load(TXN_INDEX, aborted_from_bytes, empty))
        self._at_offset = self._at_time = 0
        self._latest = -1

    def _path(self, suffix: str) -> str:
        return f"{self._parent.directory}/{file_name(self._base, suffix)}"

    def _load(self, suffix: str, parse: Callable[[bytes], T | None], empty: T) -> T:
        data = self._parent.read(file_name(self._base, suffix))
        if data is None:
            return empty
        parsed = parse(data)
        if parsed is None:
            self._parent.report_problem(self._path(suffix), None, "it is damaged")
            return empty
        return parsed

    def compare(self, position: int, header: BatchHeader) -> None:
        """Compare the index entries of the next batch with it."""
        self._latest = max(self._latest, header.max_timestamp)
        self._follow_offsets(position, header)
        self._follow_times(header)
        self._follow_aborted(header)

    def _follow_offsets(self, position: int, header: BatchHeader) -> None:
        index = self._offsets
        while self._at_offset < len(index) and index.positions[self._at_offset] <= position:
            at, offset = index.positions[self._at_offset], index.offsets[self._at_offset]
            if at != position or offset + self._base != header.last_offset:
                self._report_entry(
                    OFFSET_INDEX,
                    f"entry {self._at_offset} names byte {at}, where no matching batch starts",
                )
            self._at_offset += 1

    def _follow_times(self, header: BatchHeader) -> None:
        index = self._times
        while (
            self._at_time < len(index)
            and index.offsets[self._at_time] + self._base <= header.last_offset
        ):
            time = index.timestamps[self._at_time]
            if time != self._latest:
                reason = (
                    f"entry {self._at_time} has timestamp {time}, expected the maximum so far, "
                    f"{self._latest}"
                )
                self._report_entry(TIME_INDEX, reason)
            self._at_time += 1

    def _follow_aborted(self, header: BatchHeader) -> None:
        while self._aborted and self._aborted[0].last_offset <= header.last_offset:
            entry = self._aborted.pop(0)
            if not header.is_control or entry.producer_id != header.producer_id:
                self._report_entry(
                    TXN_INDEX, f"there is no abort marker at offset {entry.last_offset}"
                )

    def finish(self) -> None:
        """Report the remaining entries, which have no batch."""
        if self._at_offset < len(self._offsets):
            self._report_entry(OFFSET_INDEX, f"entry {self._at_offset} is after the last batch")
        if self._at_time < len(self._times):
            self._report_entry(TIME_INDEX, f"entry {self._at_time} is after the last batch")
        if self._aborted:
            self._report_entry(TXN_INDEX, "an entry names a marker after the last batch")

    def _report_entry(self, suffix: str, reason: str) -> None:
        self._parent.report_problem(self._path(suffix), None, f"{reason}")
