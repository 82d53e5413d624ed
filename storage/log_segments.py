"""The segments of one log, oldest first, and the directory that they are in.

Which segment has an offset, which begins next, what goes when the log is cut at either end or when
compaction replaces some. Offsets that mean something to readers (high watermark, log start) are the
log's; here is what lies on disk. Nothing is on disk before the first segment begins.

Sealed segments that somebody looked something up in keep their indexes in memory, a few of them.
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
from .sync import Closing, DirectorySync, FileSync, InOrder, Removal, SegmentRemoval, SyncItem

_LOADED_INDEXES_MAX = 8


class LogSegments:
    """Segments that follow each other; the last one is appended to.

    `snapshots` are those of the producers at the borders of segments.

    Parameters:
        files: where they are.
        directory: of the partition.
        identity: written into the directory when it is made.
        pending: what is to be done on disk goes there.
        open_segments: bounds the open files of many logs; None for no bound.
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
        self._indexed: list[Segment] = []  # sealed segments whose indexes are in memory
        self.snapshots = Snapshots(files, directory)
        self.directory_exists = False

    def adopt(self, segments: list[Segment], snapshots: Snapshots) -> None:
        """Take over what was found on disk."""
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.snapshots = snapshots
        self.directory_exists = True

    # -- which there are

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(segment.size for segment in self._segments)

    def sealed(self) -> Iterator[tuple[Segment, int]]:
        """All segments but the last, each with the offset where the next begins."""
        return zip(self._segments, self._bases[1:], strict=False)

    def number_of(self, offset: int) -> int:
        """Number of the segment that has an offset; 0 for one before all of them."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def since(self, offset: int) -> list[Segment]:
        """The segment that has an offset, and all after it."""
        return self._segments[self.number_of(offset) :]

    # -- batches

    def headers_since(self, offset: int) -> Iterator[tuple[Segment, Position, BatchHeader]]:
        """Of the batches from an offset on: segment, position and header. Raises CorruptLogError."""
        for segment in self.since(offset):
            start, _ = segment.find(offset) if offset > segment.base_offset else (BEGINNING, 0)
            for position, header in segment.headers(start):
                yield segment, position, header

    def headers_before(self, offset: int, bytes_max: int) -> Iterator[BatchHeader]:
        """Of the batches that end within the last `bytes_max` bytes before an offset.

        Raises CorruptLogError.
        """
        places: list[tuple[Segment, Position]] = []
        left = bytes_max
        for segment in reversed(self._segments[: bisect_left(self._bases, offset)]):
            stop, _ = segment.find(offset)
            start, _ = segment.cut(BEGINNING, Position(max(stop - left, 0)), at_least_one=False)
            places.append((segment, start))
            left -= stop - start
            if segment is not self._segments[-1]:
                self.keep_indexes(segment)
            if left <= 0:
                break
        for segment, start in reversed(places):
            for _, header in segment.headers(start):
                if header.base_offset >= offset:
                    return
                yield header

    def keep_indexes(self, segment: Segment) -> None:
        """Let a sealed segment have its indexes in memory, and the one used longest ago not."""
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
        self._distrust_parent()
        self.directory_exists = True

    def sync_directory(self) -> None:
        """Make the names of the files durable. Raises StorageError."""
        self._files.sync_dir(self._directory)

    def distrust_names(self) -> None:
        """Let the next sync make the names of the files durable."""
        self._pending.must_sync(DirectorySync(self._files, self._directory))

    def distrust_all_names(self) -> None:
        """That of the directory as well: the last owner may not have come to that."""
        self.distrust_names()
        self._distrust_parent()

    def _distrust_parent(self) -> None:
        self._pending.must_sync(DirectorySync(self._files, self._directory.rpartition("/")[0]))

    # -- the last segment

    def begin(self, base_offset: int, rules: SegmentRules) -> Segment:
        """Begin a new segment, and seal the one before. Raises StorageError, with nothing changed."""
        if self._segments:  # or the files of another segment would be made anew, empty
            last = self._segments[-1]
            assert base_offset > last.base_offset, "two segments begin at one offset"
            assert base_offset >= last.end_offset, "a segment begins within the one before"
            last.file.cut_torn()
        if not self.directory_exists:
            self._create_directory()
        segment = Segment.create(
            self._files, self._directory, base_offset, rules, open_segments=self._open_segments
        )
        self.complete(self._segments[-1:])
        self._segments.append(segment)
        self._bases.append(base_offset)
        return segment

    def complete(self, segments: Sequence[Segment]) -> None:
        """Seal segments, and queue what of their indexes is in memory alone."""
        for segment in segments:
            self._pending.settle(segment.seal())
            self.keep_indexes(segment)

    def open_for_append(self, segment: Segment) -> None:
        """Go on with a segment that was loaded. Raises CorruptLogError."""
        segment.open_for_append(self._open_segments)

    def save_snapshot(self, producers: ProducerStates, offset: int) -> list[SyncItem]:
        """What saves the producers as they are before `offset`."""
        return self.snapshots.save(producers, offset, self._bases)

    # -- cutting and replacing

    def drop_before(self, offset: int) -> None:
        """Give up what lies before an offset as a whole; a checkpoint removes it."""
        while len(self._bases) > 1 and self._bases[1] <= offset:
            base = self._bases.pop(0)
            segment = self._segments.pop(0)
            self._pending.schedule_removal(segment)
            if segment in self._indexed:
                self._indexed.remove(segment)
            self._pending.settle(self.snapshots.drop(base))

    def cut_after(self, number: int) -> None:
        """Remove all segments after that one (-1: all of them), at once. Raises StorageError."""
        for segment in self._segments[number + 1 :]:
            segment.remove()
        del self._segments[number + 1 :], self._bases[number + 1 :]
        self._indexed.clear()

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Let a compacted segment take the place of sealed ones that follow each other.

        The old files go with the next checkpoint. Raises StorageError, with nothing changed.
        """
        index = self._segments.index(old[0])
        end = index + len(old)
        assert list(old) == self._segments[index:end], "what is replaced does not hang together"
        assert end < len(self._segments), "the segment that is appended to is replaced"
        assert old[0].base_offset == new.base_offset, "records before the new segment are dropped"
        assert new.end_offset <= self._bases[end], "the new segment reaches into the next one"
        replaced = self._held(old[0])
        new.take_place()
        new.seen_ms = max(segment.seen_ms for segment in old)
        for segment in old:
            segment.close()
            if segment in self._indexed:
                self._indexed.remove(segment)
        self._segments[index:end] = [new]
        self._bases[index:end] = [new.base_offset]
        self.keep_indexes(new)
        self._pending.settle([InOrder([*self._cleaning_up(old[1:], new), *replaced])])

    def _held(self, segment: Segment) -> list[SyncItem]:
        """Open the file of a segment, so that it outlives its name until the item is done.

        Giving back the room of a large file takes long, and whoever cleans up has the time.
        """
        with suppress(FileNotFoundError):  # then there is nothing to give back
            return [Closing(self._files.open(segment.log_path))]
        return []

    def _cleaning_up(self, old: Sequence[Segment], new: Segment) -> list[SyncItem]:
        """What is left to do when a compacted segment is in its place, in this order."""
        path = f"{self._directory}/{file_name(new.base_offset, '')}"
        directory = DirectorySync(self._files, self._directory)
        items: list[SyncItem] = [directory, *new.unsaved()]
        if not new.aborted.entries:
            items.append(Removal(self._files, path + TXN_INDEX))
        for segment in old:
            items.append(SegmentRemoval(segment))
            items += self.snapshots.drop(segment.base_offset)
        items.append(directory)
        leftovers = (OFFSET_INDEX + CLEANED, TIME_INDEX + CLEANED, TXN_INDEX + CLEANED, REPLACES)
        return items + [Removal(self._files, path + kind) for kind in leftovers]
