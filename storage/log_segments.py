"""The segments of one log and their directory.

This module finds segments by offset, adds a segment, and removes segments after truncation,
retention or compaction. It manages files only; offsets such as the high watermark and the log start
belong to the log. Nothing is on disk before the first segment is created.

A few recently used closed segments keep their indexes in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kbroker.protocol.records import BatchHeader

from .batches import BEGINNING, Position
from .checkpoints import PartitionMetadata
from .files import Files
from .naming import (
    CLEANED,
    OFFSET_INDEX,
    PARTITION_METADATA,
    REPLACES,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from .open_segments import OpenSegments
from .pending import Pending
from .producer_state import ProducerStates
from .segment import Segment, SegmentRules
from .snapshots import Snapshots
from .sync import (
    DirectorySync,
    FileClosing,
    FileRemoval,
    FileSync,
    OrderedItems,
    SegmentRemoval,
    SyncItem,
)

# Maximum number of closed segments with indexes in memory.
_LOADED_INDEXES_MAX = 8


class LogSegments:
    """Consecutive segments; the last one is active.

    `snapshots` are the producer snapshots at segment boundaries.

    Args:
        files: File system of the directory.
        directory: Path of the partition directory.
        identity: Identity to write into a new directory.
        pending: Queues for disk work.
        open_segments: Limits the open files of many logs; None for no limit.
    """

    __slots__ = (
        "_bases",
        "_directory",
        "_files",
        "_identity",
        "_indexed",
        "_open_segments",
        "_pending",
        "_segments",
        "directory_exists",
        "snapshots",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        identity: PartitionMetadata,
        pending: Pending,
        open_segments: OpenSegments | None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._identity = identity
        self._pending = pending
        self._open_segments = open_segments
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._indexed: list[Segment] = []  # closed segments whose indexes are in memory
        self.snapshots = Snapshots(files, directory)
        self.directory_exists = False

    def adopt(self, segments: list[Segment], snapshots: Snapshots) -> None:
        """Set the segments that were loaded from disk."""
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.snapshots = snapshots
        self.directory_exists = True

    # -- access

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    @property
    def size(self) -> int:
        """Total size of the records in bytes."""
        return sum(segment.size for segment in self._segments)

    def closed_segments(self) -> Iterator[tuple[Segment, int]]:
        """Return all segments except the last, each with its end offset."""
        return zip(self._segments, self._bases[1:], strict=False)

    def number_of(self, offset: int) -> int:
        """Return the index of the segment that holds an offset, 0 if all segments are after it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def since(self, offset: int) -> list[Segment]:
        """Return the segment that holds an offset, and all later ones."""
        return self._segments[self.number_of(offset) :]

    # -- batches

    def headers_since(self, offset: int) -> Iterator[tuple[Segment, Position, BatchHeader]]:
        """Yield segment, position and header of the batches from an offset on.

        Raises CorruptLogError.
        """
        for segment in self.since(offset):
            start, _ = segment.find(offset) if offset > segment.base_offset else (BEGINNING, 0)
            for position, header in segment.headers(start):
                yield segment, position, header

    def headers_before(self, offset: int, bytes_max: int) -> Iterator[BatchHeader]:
        """Yield the headers of the batches in the last `bytes_max` bytes before an offset.

        Raises CorruptLogError.
        """
        starts: list[tuple[Segment, Position]] = []
        left = bytes_max
        for segment in reversed(self._segments[: bisect_left(self._bases, offset)]):
            stop, _ = segment.find(offset)
            start, _ = segment.find_boundary(
                BEGINNING, Position(max(stop - left, 0)), at_least_one=False
            )
            starts.append((segment, start))
            left -= stop - start
            if segment is not self._segments[-1]:
                self.keep_indexes(segment)
            if left <= 0:
                break
        for segment, start in reversed(starts):
            for _, header in segment.headers(start):
                if header.base_offset >= offset:
                    return
                yield header

    def keep_indexes(self, segment: Segment) -> None:
        """Keep the indexes of a closed segment in memory, and release the oldest indexes."""
        indexed = self._indexed
        if segment not in indexed:
            indexed.append(segment)
            if len(indexed) > _LOADED_INDEXES_MAX:
                indexed.pop(0).release_indexes()

    # -- the directory

    def _create_directory(self) -> None:
        self._files.mkdir(self._directory)
        path = f"{self._directory}/{PARTITION_METADATA}"
        file = self._files.open(path, create=True)
        if file.size:
            file.truncate(0)
        file.append([self._identity.to_bytes()])
        file.close()
        self._pending.must_sync(FileSync(self._files, path))
        self._schedule_parent_sync()
        self.directory_exists = True

    def sync_directory(self) -> None:
        """Make the names of the files durable. Raises StorageError."""
        self._files.sync_dir(self._directory)

    def schedule_directory_sync(self) -> None:
        """Sync the file names of the directory with the next sync."""
        self._pending.must_sync(DirectorySync(self._files, self._directory))

    def schedule_all_directory_syncs(self) -> None:
        """Sync the directory and its parent with the next sync, in case the last owner did not."""
        self.schedule_directory_sync()
        self._schedule_parent_sync()

    def _schedule_parent_sync(self) -> None:
        self._pending.must_sync(DirectorySync(self._files, self._directory.rpartition("/")[0]))

    # -- the last segment

    def start_segment(self, base_offset: int, rules: SegmentRules) -> Segment:
        """Create a new segment and close the previous one for appends.

        Raises StorageError; nothing is changed then.
        """
        if self._segments:  # otherwise the new segment could overwrite an existing file
            last = self._segments[-1]
            assert base_offset > last.base_offset, "two segments start at the same offset"
            assert base_offset >= last.end_offset, "a segment starts within the previous one"
            last.file.truncate_torn()
        if not self.directory_exists:
            self._create_directory()
        segment = Segment.create(
            self._files, self._directory, base_offset, rules, open_segments=self._open_segments
        )
        self.close_for_appends(self._segments[-1:])
        self._segments.append(segment)
        self._bases.append(base_offset)
        return segment

    def close_for_appends(self, segments: Sequence[Segment]) -> None:
        """Close segments for appends and queue saving their indexes."""
        for segment in segments:
            self._pending.queue_for_checkpoint(segment.close_for_appends())
            self.keep_indexes(segment)

    def open_for_append(self, segment: Segment) -> None:
        """Make a loaded segment the active one. Raises CorruptLogError."""
        segment.open_for_append(self._open_segments)

    def save_snapshot(self, producers: ProducerStates, offset: int) -> list[SyncItem]:
        """Return the writes that save the producer state before `offset`."""
        return self.snapshots.save(producers, offset, self._bases)

    # -- truncation and replacement

    def drop_before(self, offset: int) -> None:
        """Drop the segments that are completely before an offset; a checkpoint deletes them."""
        while len(self._bases) > 1 and self._bases[1] <= offset:
            base = self._bases.pop(0)
            segment = self._segments.pop(0)
            self._pending.schedule_removal(segment)
            if segment in self._indexed:
                self._indexed.remove(segment)
            self._pending.queue_for_checkpoint(self.snapshots.drop(base))

    def remove_after(self, number: int) -> None:
        """Delete all segments after segment `number` (-1: all) at once. Raises StorageError."""
        for segment in self._segments[number + 1 :]:
            segment.remove()
        del self._segments[number + 1 :], self._bases[number + 1 :]
        self._indexed.clear()

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace consecutive closed segments with a compacted one.

        The next checkpoint deletes the old files. Raises StorageError; nothing is changed then.
        """
        index = self._segments.index(old[0])
        end = index + len(old)
        assert list(old) == self._segments[index:end], "the replaced segments are not consecutive"
        assert end < len(self._segments), "the active segment is replaced"
        assert old[0].base_offset == new.base_offset, "records before the new segment are dropped"
        assert new.end_offset <= self._bases[end], "the new segment overlaps the next one"
        replaced = self._keep_blocks(old[0])
        new.move_to_final_name()
        new.seen_ms = max(segment.seen_ms for segment in old)
        for segment in old:
            segment.close()
            if segment in self._indexed:
                self._indexed.remove(segment)
        self._segments[index:end] = [new]
        self._bases[index:end] = [new.base_offset]
        self.keep_indexes(new)
        self._pending.queue_for_checkpoint(
            [OrderedItems([*self._cleanup_after_replace(old[1:], new), *replaced])]
        )

    def _keep_blocks(self, segment: Segment) -> list[SyncItem]:
        """Open the file of a replaced segment, and return the item that closes it.

        The rename then does not free the blocks of the file. Freeing them takes long for a large
        file, so it is left to the checkpoint thread.
        """
        with suppress(FileNotFoundError):  # there are no blocks to free
            return [FileClosing(self._files.open(segment.log_path))]
        return []

    def _cleanup_after_replace(self, old: Sequence[Segment], new: Segment) -> list[SyncItem]:
        """Return the ordered work that is left after a compacted segment was renamed."""
        path = f"{self._directory}/{file_name(new.base_offset, '')}"
        directory = DirectorySync(self._files, self._directory)
        items: list[SyncItem] = [directory, *new.unsaved()]
        if not new.aborted.entries:
            items.append(FileRemoval(self._files, path + TXN_INDEX))
        for segment in old:
            items.append(SegmentRemoval(segment))
            items += self.snapshots.drop(segment.base_offset)
        items.append(directory)
        leftovers = (OFFSET_INDEX + CLEANED, TIME_INDEX + CLEANED, TXN_INDEX + CLEANED, REPLACES)
        return items + [FileRemoval(self._files, path + kind) for kind in leftovers]
