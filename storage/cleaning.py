"""Scheduling of compaction runs, and the swap of their results into the log.

The owner of the log calls these functions from its event loop, except the blocking ones::

    task = plan(log, now_ms, ...)                      parameters of a run
    remove_leftovers(files, log.directory)             in a worker thread, before the run
    result = ...                                       `Compaction(files, task)`, in any process
    segments = prepare(files, task, result)            in a worker thread
    install(log, cleaned, segment)                     for each segment in order; after each:
    DirectorySync(files, log.directory).sync()         in a worker thread
    finish(log, result)

The swap, if for example the segments 0, 100 and 200 are merged:

1. `0.log.cleaned` is written and synced.
2. `0.replaces` is written: it records that the new segment also replaces 100 and 200, and its end
   offset.
3. `0.log.cleaned` is renamed to `0.log`. This is atomic: a crash leaves the old segments or the new
   one. The directory is synced before the next segment is swapped, so that a crash cannot keep a
   later swap without an earlier one. The later segment may lack a marker, a tombstone or an index
   entry that the records of the earlier one still need.
4. The next checkpoint syncs the directory, writes the new indexes, and removes the files of 100 and
   200, then `0.replaces`.

A start after a crash reads `0.replaces`. If `0.log` ends at the recorded offset, step 3 was done,
and 100 and 200 are removed. Otherwise it was not done. `.cleaned` files are removed. Before step 3
the log gets an entry in `cleaner-offset-checkpoint`, so that recovery accepts offset gaps even if
the cleanup policy changes later, and its checkpointed recovery point is raised to the end of the
compacted offsets: a recovery point within a gap would look like damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .checkpoints import format_lines, parse_lines
from .compaction import (
    CleanedSegment,
    CompactionResult,
    CompactionTask,
    LastEntry,
    Source,
)
from .errors import StorageError
from .files import Files
from .log import Log
from .log_config import FOREVER_MS
from .naming import CLEANED, REPLACES, file_name
from .segment import Segment
from .sync import DirectorySync


class Dirtiness(NamedTuple):
    """The amount of data in a log that waits for compaction.

    Attributes:
        clean_bytes: Bytes of the compacted part.
        dirty_bytes: Bytes of the part that can be compacted now.
        is_overdue: True if a record is dirty for longer than `max_compaction_lag_ms`.
    """

    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(log: Log) -> int:
    """Return the offset before which the log is compacted; the log start if it is out of range."""
    recorded = log.first_dirty_offset
    start = log.segments[0].base_offset if log.segments else log.log_start_offset
    return recorded if start <= recorded <= log.log_end_offset else start


def measure(log: Log, now_ms: int) -> Dirtiness:
    """Return how dirty a log is at time `now_ms` of the log clock."""
    first = first_dirty_offset(log)
    clean = dirty = 0
    earliest = -1
    for segment, end in _cleanable_segments(log, now_ms):
        if end <= first:
            clean += segment.size
            continue
        dirty += segment.size
        if earliest < 0 and log.config.max_compaction_lag_ms < FOREVER_MS:
            earliest = segment.first_timestamp()
    is_overdue = earliest >= 0 and now_ms - earliest > log.config.max_compaction_lag_ms
    return Dirtiness(clean, dirty, is_overdue)


def is_due(log: Log, dirtiness: Dirtiness) -> bool:
    """Return True if the log exceeds its minimum dirty ratio or its maximum compaction lag."""
    if not dirtiness.dirty_bytes:
        return False
    return dirtiness.is_overdue or dirtiness.ratio > log.config.min_cleanable_dirty_ratio


def _cleanable_segments(log: Log, now_ms: int) -> list[tuple[Segment, int]]:
    """Return the closed segments that can be compacted, each with its end offset.

    Excluded are segments with open transactions or records that may not be replicated or durable,
    and dirty segments with records younger than `min_compaction_lag_ms`.
    """
    limit = min(log.last_stable_offset, log.durable_offset)
    lag_ms = log.config.min_compaction_lag_ms
    first = first_dirty_offset(log)
    found = []
    for segment, end in log.segments.closed_segments():
        is_young = lag_ms > 0 and end > first and segment.max_timestamp > now_ms - lag_ms
        if end > limit or is_young:
            break
        found.append((segment, end))
    return found


def plan(
    log: Log, now_ms: int, *, key_map_bytes: int, decompressed_max: int
) -> CompactionTask | None:
    """Return the parameters of a compaction run, or None if there is nothing to compact now.

    No checkpoint of the log may be pending: it could overwrite files that the run replaces.
    """
    cleanable = _cleanable_segments(log, now_ms)
    if not cleanable or log.pending.needs_checkpoint:
        return None
    end = cleanable[-1][1]
    config = log.config
    return CompactionTask(
        directory=log.directory,
        sources=tuple(Source(it.base_offset, end, it.size) for it, end in cleanable),
        first_dirty_offset=first_dirty_offset(log),
        aborted=tuple(
            entry for it in log.segments for entry in it.aborted.entries if entry.first_offset < end
        ),
        last_entries={
            producer_id: LastEntry(
                producer.batches[-1].last_offset if producer.batches else producer.marker_offset,
                producer.epoch,
            )
            for producer_id, producer in log.producers
        },
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        rules=config.segment_rules._replace(gaps_allowed=True),
        key_map_bytes=key_map_bytes,
        decompressed_max=decompressed_max,
        max_record_bytes=config.produce_rules.max_record_bytes,
    )


def prepare(files: Files, task: CompactionTask, result: CompactionResult) -> list[Segment]:
    """Load the new segments and record the segments that they replace; blocks.

    Raises StorageError if a write fails or a new segment differs from its description.
    """
    return [_prepare_segment(files, task, cleaned) for cleaned in result.segments]


def _prepare_segment(files: Files, task: CompactionTask, cleaned: CleanedSegment) -> Segment:
    base = cleaned.sources[0].base_offset
    try:
        segment = Segment.load(files, task.directory, base, task.rules, suffix=CLEANED)
        segment.load_cleaned(
            cleaned.end_offset, cleaned.max_timestamp, cleaned.max_timestamp_offset
        )
        if segment.size != cleaned.size:
            raise StorageError(
                f"{segment.log_path}: expected {cleaned.size} bytes, found {segment.size}"
            )
        if len(cleaned.sources) > 1:
            path = f"{task.directory}/{file_name(base, REPLACES)}"
            files.write_atomic(path, replaced_to_bytes(cleaned))
    except FileNotFoundError as error:
        raise _missing_segment(error) from None
    return segment


def _missing_segment(error: FileNotFoundError) -> StorageError:
    return StorageError(f"{error.filename}: the compacted segment is missing")


def install(log: Log, cleaned: CleanedSegment, segment: Segment) -> bool:
    """Replace old segments with a new one; the next checkpoint does the cleanup.

    `LogManager.note_compaction` must have succeeded. Sync the directory before the next segment of
    the run.

    Returns:
        False, with the log unchanged, if the log has changed in a way that makes the new segment
        useless: it was truncated, or its oldest segments were deleted.

    Raises:
        StorageError: The segment could not be renamed; the log is unchanged.
    """
    replaced = _find_sources(log, cleaned.sources)
    if log.offline is not None or replaced is None:
        return False
    try:
        log.replace(replaced, segment)
    except FileNotFoundError as error:
        raise _missing_segment(error) from None
    return True


def finish(log: Log, result: CompactionResult) -> None:
    """Raise the first dirty offset after all segments of a run are installed."""
    log.first_dirty_offset = max(log.first_dirty_offset, result.end_offset)


def _find_sources(log: Log, sources: Sequence[Source]) -> list[Segment] | None:
    """Return the segments of the log that a run has read, or None if they have changed."""
    found = {segment.base_offset: (segment, end) for segment, end in log.segments.closed_segments()}
    segments = []
    for source in sources:
        segment, end = found.get(source.base_offset, (None, 0))
        if segment is None or (end, segment.size) != (source.end_offset, source.size):
            return None
        segments.append(segment)
    return segments


def discard(files: Files, task: CompactionTask, segments: Sequence[CleanedSegment]) -> None:
    """Remove new segments that were not installed; blocks. Raises StorageError."""
    bases = [cleaned.sources[0].base_offset for cleaned in segments]
    names = [file_name(base, REPLACES) for base in bases]
    _remove_replaces_files(files, task.directory, names)
    for base in bases:
        Segment(files, task.directory, base, task.rules, CLEANED).remove()


def remove_leftovers(files: Files, directory: str) -> None:
    """Remove `.replaces` files of a failed run before the next run writes segments; blocks.

    No checkpoint of the log may be pending. Raises StorageError.
    """
    _remove_replaces_files(
        files, directory, [it for it in files.listdir(directory) if it.endswith(REPLACES)]
    )


def _remove_replaces_files(files: Files, directory: str, names: Sequence[str]) -> None:
    """Remove `.replaces` files durably, so that none of them is applied to a later segment."""
    for name in names:
        files.remove(f"{directory}/{name}")
    if names:
        DirectorySync(files, directory).sync()


# -- `.replaces` files


def replaced_to_bytes(cleaned: CleanedSegment) -> bytes:
    """Return the content of a `.replaces` file.

    It holds the end offset of the new segment, then the base offsets of the other segments that it
    replaces, one per line.
    """
    bases = [source.base_offset for source in cleaned.sources[1:]]
    return format_lines(0, [str(offset) for offset in (cleaned.end_offset, *bases)])


def replaced_from_bytes(data: bytes) -> tuple[int, list[int]] | None:
    """Parse a `.replaces` file; None if it is damaged."""
    entries = parse_lines(data, 0)
    if not entries:
        return None
    try:
        end, *bases = (int(offset) for (offset,) in entries)
    except ValueError:
        return None
    return end, bases
