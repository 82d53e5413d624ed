"""A log on its way to another data directory: the copy that is made there while the first one serves.

The copy lies in `<topic>-<n>.<id>-future`, as in Kafka (KIP-113). Whoever moves a log calls `copy`
until it has caught up, then `finish`, and then lets the two directories change their names
(`LogDirectories.swap`).
"""

from __future__ import annotations

from .cached import Reading, waiting
from .checkpoints import Offsets
from .errors import StorageError
from .files import Files
from .log import Log
from .naming import future_directory_name
from .sync import sync_in_order


class FutureLog:
    """The copy of one log.

    `log` is the copy itself; nobody reads it. `source` serves until the copy takes its place.
    """

    def __init__(self, files: Files, data_dir: str, source: Log) -> None:
        """Begin anew, whatever an earlier attempt left."""
        self._files = files
        self.source = source
        self.data_dir = data_dir
        name = future_directory_name(source.topic, source.partition, source.topic_id)
        self.directory = f"{data_dir}/{name}"
        files.rmtree(self.directory)
        self.log = Log(
            files,
            data_dir,
            source.topic,
            source.partition,
            source.topic_id,
            source.config,
            directory=name,
        )
        self._begun = False
        self._next = source.log_start_offset

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        return self.source.log_end_offset - (self.log.log_end_offset if self._begun else 0)

    def copy(self, bytes_max: int, reading: Reading = waiting, *, now_ms: int) -> bool:
        """Copy up to about `bytes_max` bytes; returns whether the copy has caught up.

        Parameters: `reading` is how the source is read, before anything is written.

        Raises:
            KafkaError: what is read is damaged.
            StorageError: one of the two directories refuses.
        """
        source = self.source
        start, end = source.log_start_offset, source.log_end_offset
        if self._begun and start > self.log.log_end_offset:
            self._begun = False  # retention was quicker
        self._next = max(self._next, start)
        if self._next < end:
            found = reading(source.read, self._next, bytes_max, limit=end)
            records = found.records
            batches = records if isinstance(records, bytes) else reading(records.read)
            self._begin_at(found.first_offset, now_ms)
            if batches:
                self.log.append_replicated(memoryview(batches), now_ms=now_ms)
            self._next = found.next_offset
        else:
            self._begin_at(end, now_ms)
        return self._next >= source.log_end_offset

    def begin_again(self) -> None:
        """Copy everything anew: the source was cut, and the copy may have what is gone."""
        self._begun = False
        self._next = self.source.log_start_offset

    def _begin_at(self, offset: int, now_ms: int) -> None:
        if not self._begun:
            self.log.restart_at(offset, now_ms=now_ms)
            # What is compacted there by now is compacted in the copy; later runs make it no worse.
            self.log.first_dirty_offset = self.source.first_dirty_offset
            self._begun = True

    def finish(self) -> Offsets:
        """Make the copy complete and durable, and close it; returns what a checkpoint says of it.

        Raises StorageError; the source is not affected.
        """
        log, source = self.log, self.source
        # A producer may send batches again whose records are gone; no copy tells of those.
        log.producers = source.producers
        log.advance_high_watermark(source.high_watermark)
        if source.log_start_offset > log.log_start_offset:
            log.delete_records_before(source.log_start_offset)
        if source.first_dirty_offset >= 0:  # there may be gaps
            log.first_dirty_offset = max(log.first_dirty_offset, 0)
        log.save()
        offsets = Offsets(
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.first_dirty_offset,
        )
        if not log.close(clean=True):
            raise StorageError(log.offline or "the copy cannot be synced")
        before, after = log.unsettled()
        sync_in_order(before)
        for segment in after:
            segment.remove()
        return offsets

    def close(self) -> None:
        """Let go of the copy; its directory stays."""
        self.log.close(clean=False)

    def abandon(self) -> None:
        """Give the copy up, and remove it. Raises StorageError."""
        self.close()
        self._files.rmtree(self.directory)
