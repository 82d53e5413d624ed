"""Look-ups of records by timestamp, which open stored batches within bounded steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from functools import partial
from typing import NamedTuple

from kbroker.protocol.record_stream import first_record_since, latest_record_of
from kbroker.protocol.records import FoundRecord
from kbroker.runtime.batch_reads import BatchReads
from kbroker.runtime.disk_reads import DiskReads
from kbroker.runtime.slices import Wanted
from kbroker.storage.cached import Reading
from kbroker.storage.log import Log
from kbroker.storage.lookups import StoredBatch, batch_since, latest_batch


class TimeLookup(NamedTuple):
    """How records are looked up for one client.

    Attributes:
        disk_reads: loads what is not in memory.
        batch_reads: opens batches.
        client: for whom it is done.
        charge: is told the seconds that a thread worked for it.
        check: raises KafkaError if the log is served no longer; called after each wait.
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
            log: the log to search.
            timestamp_ms: in ms since the epoch.
            limit: a record at this offset or behind it is not found.

        Raises:
            StorageError: as `Log.read`.
            KafkaError: CORRUPT_MESSAGE if a batch cannot be read.
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
            )
            found = yield from self.batch_reads.in_pieces(begin, self.client, self.charge)
            self.check()
            if found is not None:
                return found if found.offset < limit else None
            offset = batch.header.next_offset
            yield None
        return None

    def latest_record(self, log: Log) -> Generator[Wanted, None, FoundRecord | None]:
        """Find the first record with the greatest timestamp; None without records or timestamps.

        Raises:
            StorageError: as `Log.read`.
            KafkaError: CORRUPT_MESSAGE if a batch cannot be read.
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
