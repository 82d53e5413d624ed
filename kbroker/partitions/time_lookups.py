"""Look-ups of records by timestamp, which read stored batches in bounded steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from functools import partial
from typing import NamedTuple

from kbroker.protocol.record_stream import first_record_since, latest_record_of
from kbroker.protocol.records import FoundRecord
from kbroker.runtime.batch_reads import BatchReads
from kbroker.runtime.disk_reads import DiskReads
from kbroker.runtime.time_slices import Wanted
from kbroker.storage.cached import Reading
from kbroker.storage.log import Log
from kbroker.storage.lookups import StoredBatch, batch_since, latest_batch


class TimeLookup(NamedTuple):
    """Look-ups of records by timestamp for one client.

    Attributes:
        disk_reads: Loads file ranges that are not in the page cache.
        batch_reads: Decompresses and parses batches.
        client: The client, for the round-robin order of work.
        charge: Called with the CPU time in seconds that a thread used for the client.
        check: Called after each wait; raises KafkaError if the log is no longer served.
    """

    disk_reads: DiskReads
    batch_reads: BatchReads
    client: Hashable
    charge: Callable[[float], None]
    check: Callable[[], None]

    def record_since(
        self, log: Log, timestamp_ms: int, limit: int
    ) -> Generator[Wanted, None, FoundRecord | None]:
        """Find the first record whose timestamp is at least `timestamp_ms`.

        Control records count, as in Kafka.

        Args:
            log: The log to search.
            timestamp_ms: Milliseconds since the epoch.
            limit: Offset after the last record that may be found.

        Returns:
            The record, or None if no record below `limit` matches.

        Raises:
            StorageError: See `Log.read`.
            KafkaError: CORRUPT_MESSAGE if a batch cannot be read, INVALID_RECORD for a record above
                `max.decompressed.message.bytes`.
        """
        offset = log.log_start_offset
        while offset < limit:
            find = partial(_batch_since, log, timestamp_ms, offset)
            batch = yield from self.disk_reads.in_pieces(find)
            if batch is None:
                return None
            begin = partial(
                first_record_since,
                batch.data,
                batch.header,
                timestamp_ms,
                start_offset=log.log_start_offset,
                max_decompressed=log.config.produce_rules.max_decompressed,
                max_record_bytes=log.config.produce_rules.max_record_bytes,
            )
            found = yield from self.batch_reads.in_pieces(begin, self.client, self.charge)
            self.check()
            if found is not None:
                return found if found.offset < limit else None
            offset = batch.header.next_offset
            yield None
        return None

    def latest_record(self, log: Log) -> Generator[Wanted, None, FoundRecord | None]:
        """Find the first record with the largest timestamp.

        Args:
            log: The log to search.

        Returns:
            The record, None if the log has no records or no timestamps.

        Raises:
            StorageError: See `Log.read`.
            KafkaError: CORRUPT_MESSAGE if a batch cannot be read, INVALID_RECORD for a record above
                `max.decompressed.message.bytes`.
        """
        latest: FoundRecord | None = None
        tried: set[int] = set()
        while True:
            newer_than = -1 if latest is None else latest.timestamp
            find = partial(_latest_batch, log, newer_than, tried)
            batch = yield from self.disk_reads.in_pieces(find)
            if batch is None:
                return latest
            tried.add(batch.segment_base)
            begin = partial(
                latest_record_of,
                batch.data,
                batch.header,
                max_decompressed=log.config.produce_rules.max_decompressed,
                max_record_bytes=log.config.produce_rules.max_record_bytes,
            )
            found = yield from self.batch_reads.in_pieces(begin, self.client, self.charge)
            self.check()
            if found is not None and (latest is None or found.timestamp > latest.timestamp):
                latest = found
            yield None


def _batch_since(log: Log, timestamp_ms: int, offset: int, reading: Reading) -> StoredBatch | None:
    return reading(batch_since, log, timestamp_ms, offset)


def _latest_batch(
    log: Log, newer_than: int, tried: set[int], reading: Reading
) -> StoredBatch | None:
    return reading(latest_batch, log, newer_than, tried)
