"""Future replicas: copies of logs that will replace them in another log directory (KIP-113).

The copy is in `<topic>-<n>.<id>-future`, as in Kafka. The mover calls `copy` until the copy has
caught up, then `finish`, and then `LogDirectories.swap` renames the directories.
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
    """A future replica of one log.

    `log` is the replica, which serves no reads. `source` serves until the replica replaces it.
    """

    def __init__(self, files: Files, data_dir: str, source: Log) -> None:
        """Start a new copy, and remove an earlier unfinished one."""
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
        self._is_started = False
        self._next = source.log_start_offset

    @property
    def lag(self) -> int:
        """Number of offsets by which the copy lags behind the source."""
        return self.source.log_end_offset - (self.log.log_end_offset if self._is_started else 0)

    def copy(self, bytes_max: int, reading: Reading = waiting, *, now_ms: int) -> bool:
        """Copy up to about `bytes_max` bytes.

        Args:
            bytes_max: Maximum number of bytes to read.
            reading: Function that reads the source, called before anything is written.
            now_ms: Current time of the log clock in ms.

        Returns:
            True if the copy has caught up.

        Raises:
            KafkaError: The source data is corrupt.
            StorageError: A file of the source or the copy cannot be read or written.
        """
        source = self.source
        start, end = source.log_start_offset, source.log_end_offset
        if self._is_started and start > self.log.log_end_offset:
            self._is_started = False  # retention deleted records that were not copied yet
        self._next = max(self._next, start)
        if self._next < end:
            found = reading(source.read, self._next, bytes_max, limit=end)
            records = found.records
            batches = records if isinstance(records, bytes) else reading(records.read)
            self._start_at(found.first_offset, now_ms)
            if batches:
                self.log.append_replicated(memoryview(batches), now_ms=now_ms)
            self._next = found.next_offset
        else:
            self._start_at(end, now_ms)
        return self._next >= source.log_end_offset

    def restart_copy(self) -> None:
        """Restart the copy after a truncation of the source: the copy may have removed records."""
        self._is_started = False
        self._next = self.source.log_start_offset

    def _start_at(self, offset: int, now_ms: int) -> None:
        if not self._is_started:
            self.log.restart_at(offset, now_ms=now_ms)
            # The copied records are as compacted as those of the source.
            self.log.first_dirty_offset = self.source.first_dirty_offset
            self._is_started = True

    def finish(self) -> Offsets:
        """Make the copy complete and durable, and close it.

        Returns:
            The offsets to checkpoint for the copy.

        Raises:
            StorageError: A write failed; the source is not affected.
        """
        log, source = self.log, self.source
        # Use the producer state of the source: it includes batches that are deleted already.
        log.producers = source.producers
        log.advance_high_watermark(source.high_watermark)
        if source.log_start_offset > log.log_start_offset:
            log.delete_records_before(source.log_start_offset)
        if source.first_dirty_offset >= 0:  # there may be offset gaps
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
        before, after = log.take_checkpoint_work()
        sync_in_order(before)
        for segment in after:
            segment.remove()
        return offsets

    def close(self) -> None:
        """Close the copy; its directory stays."""
        self.log.close(clean=False)

    def abandon(self) -> None:
        """Close and remove the copy. Raises StorageError."""
        self.close()
        self._files.rmtree(self.directory)
