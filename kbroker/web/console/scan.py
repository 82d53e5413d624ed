"""Scans of a topic's records, forwards or backwards, in steps and within a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import TOPIC_BY_NAME, is_aborted_batch
from kbroker.client.errors import CannotRead, error_code
from kbroker.client.topics import by_leader
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.record_stream import OversizedRecord, may_contain, stream_records
from kbroker.protocol.records import BatchHeader, Record, iter_headers
from kbroker.runtime.time_slices import DutyCycle

from .answers import REST
from .decoding import ShownRecord, TransactionState, oversized, truncate_record
from .filters import Columns, RecordFilter
from .schemas import NOT_DECODED, Schemas, decoded_parts

FETCH_BYTES = 512 * 1024
# Maximum size of a record that is read; a larger one is listed without its key and value.
RECORD_BYTES_MAX = 16 * 1024 * 1024
# Records between two checks for a pause.
RECORDS_AT_ONCE = 32
# Initial and maximum number of offsets of a backward window.
FIRST_WINDOW, WINDOW_MAX = 16, 50_000
# Maximum size of a backward window, by the average size of the records before it.
WINDOW_BYTES = 2 * 1024 * 1024
# Maximum fraction of the budget for one window, because the work on the last window may be lost.
WINDOW_BUDGET_FRACTION = 0.25
# The same if windows begin inside a batch: each window reads the beginning of the batch again.
SPLIT_WINDOW_BUDGET_FRACTION = 0.75
NO_LEADER = -1


@dataclass
class Budget:
    """Limits of one scan request, and the amount of work done so far.

    Attributes:
        seconds: Maximum duration of the scan.
        bytes_max: Maximum number of scanned bytes.
        records: Number of scanned records.
        bytes: Number of scanned bytes.
        has_progress: True after a completed window. Until then a scan may exceed its budget slightly.
    """

    seconds: float
    bytes_max: int
    began_at: float = field(default_factory=trio.current_time)
    records: int = 0
    bytes: int = 0
    has_progress: bool = False

    @property
    def is_spent(self) -> bool:
        return self.bytes >= self.bytes_max or self.took >= self.seconds

    @property
    def took(self) -> float:
        return trio.current_time() - self.began_at


class ScannedBatch(NamedTuple):
    """A batch of a response; `records` is None if it cannot contain a matching record."""

    header: BatchHeader
    records: memoryview | None
    transaction: TransactionState


class Reader:
    """Reads batches of one topic from the leaders of its partitions."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        record_filter: RecordFilter,
        *,
        columns: Columns | None = None,
        committed: bool,
        aborted: bool = False,
        schemas: Schemas | None = None,
        duty_cycle: DutyCycle | None = None,
        record_bytes_max: int,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self.record_filter = record_filter
        self._columns = columns
        self._committed = committed
        self._aborted = aborted
        self._schemas = schemas
        self._leaders: dict[int, int] = {}
        self.duty_cycle = duty_cycle or DutyCycle(rest=REST)
        self._record_bytes_max = record_bytes_max

    async def fetch(self, index: int, offset: int) -> FetchResponse.Partition:
        """Fetch from a leader without waiting for data. Raises CannotRead or OSError.

        The response contains the aborted transactions, unless it begins at the last stable offset or
        after it: brokers return them only for committed reads.
        """
        without_waits = self.duty_cycle.without_waits
        row = await without_waits(self._fetch(index, offset, committed=True))
        is_unstable = row.last_stable_offset <= offset < row.high_watermark
        if self._committed or row.error_code or not is_unstable:
            return row
        return await without_waits(self._fetch(index, offset, committed=False))

    async def _fetch(self, index: int, offset: int, *, committed: bool) -> FetchResponse.Partition:
        for is_last in (False, True):
            if index not in self._leaders:
                await self._find_leader(index)
            connection = await self._cluster.node(self._leaders[index])
            answer = await connection.ask(
                self.request({index: offset}, wait_ms=0, committed=committed),
                oldest=4,
                newest=TOPIC_BY_NAME,
            )
            row: FetchResponse.Partition = answer.responses[0].partitions[0]
            code = error_code(row.error_code)
            if not code or code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return row
            self._leaders.pop(index, None)
            if is_last or not code.retriable:
                break
        raise CannotRead(code, f"partition {index} of {self.topic}: cannot be read ({code.name})")

    async def _find_leader(self, index: int) -> None:
        (node,) = await by_leader(self._cluster, [(self.topic, index)])
        if node == NO_LEADER:
            text = f"partition {index} of {self.topic} has no leader"
            raise CannotRead(ErrorCode.LEADER_NOT_AVAILABLE, text)
        self._leaders[index] = node

    def request(self, offsets: Mapping[int, int], *, wait_ms: int, committed: bool) -> FetchRequest:
        """Return a Fetch request for some partitions."""
        rows = [
            FetchRequest.Partition(
                partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
            )
            for index, offset in offsets.items()
        ]
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=2 * FETCH_BYTES,
            isolation_level=int(committed),
            topics=[FetchRequest.Topic(topic=self.topic, partitions=rows)],
        )

    def scan_start(self, row: FetchResponse.Partition, first: int) -> int:
        """Return the offset at which to start in a response fetched for offset `first`.

        With a filter, start at the beginning of the batch: the whole batch is parsed anyway, and would
        be parsed again for the records before `first`. Without a filter each record is costly.
        """
        headers = () if self.record_filter.matches_all else iter_headers(row.records or b"")
        begin = next((header.base_offset for _, header in headers), first)
        return max(min(begin, first), first - WINDOW_MAX)

    async def batches(
        self, row: FetchResponse.Partition, first: int, end: int
    ) -> AsyncGenerator[ScannedBatch, None]:
        """Yield the complete batches of a response in a range."""
        records = row.records or b""
        aborted: dict[int, list[int]] = {}
        for each in row.aborted_transactions or ():
            aborted.setdefault(each.producer_id, []).append(each.first_offset)
        for at, header in iter_headers(records):
            if header.base_offset >= end:
                return
            batch = memoryview(records)[at : at + header.size]
            is_aborted = is_aborted_batch(header, batch, aborted)
            is_skipped = header.is_control or (self._committed if is_aborted else self._aborted)
            is_read = not (is_skipped or header.next_offset <= first)
            wanted = batch if is_read and await self._may_be_in(batch, header) else None
            yield ScannedBatch(header, wanted, _transaction_state(header, row, is_aborted))
            await self.duty_cycle.pause()

    async def _may_be_in(self, batch: memoryview, header: BatchHeader) -> bool:
        """Return True if a batch may contain a matching record."""
        if not self.record_filter.needles:
            return True
        for found in may_contain(batch, header, self.record_filter.needles):
            if found is not None:
                return found
            await self.duty_cycle.pause()
        return False

    async def records(
        self, batch: memoryview, header: BatchHeader, first: int, record_bytes_max: int
    ) -> AsyncGenerator[Record | OversizedRecord, None]:
        """Yield the records of a batch from an offset on, with pauses."""
        steps = stream_records(batch, header, start_offset=first, record_bytes_max=record_bytes_max)
        for number, record in enumerate(steps):
            if record is not None:
                yield record
            if record is None or not number % RECORDS_AT_ONCE:
                await self.duty_cycle.pause()

    async def matches(
        self, row: FetchResponse.Partition, index: int, first: int, end: int, budget: Budget
    ) -> AsyncGenerator[tuple[int, ShownRecord | None], None]:
        """Yield the matching records of a response, each with the offset after it.

        None is yielded after each batch, and after each record once the budget is spent, because a
        single record may take long.
        """
        async with aclosing(self.batches(row, first, end)) as found:
            async for header, batch, transaction in found:
                budget.bytes += header.size
                if batch is None:
                    budget.records += _count(header, first, end)
                else:
                    steps = self.records(batch, header, first, self._record_bytes_max)
                    async with aclosing(steps) as records:
                        async for record in records:
                            if record.offset >= end:
                                break
                            budget.records += 1
                            one = await self._match(index, record, header)
                            if one is not None and transaction:
                                one = one._replace(transaction=transaction)
                            if one is not None or budget.is_spent:
                                yield record.offset + 1, one
                yield header.next_offset, None

    async def _match(
        self, index: int, record: Record | OversizedRecord, header: BatchHeader
    ) -> ShownRecord | None:
        """Return a record for display if it matches, else None."""
        if not self.record_filter.is_in_time_range(record.timestamp):
            return None
        if isinstance(record, OversizedRecord):
            self.record_filter.too_large += not self.record_filter.matches_all
            return oversized(index, record, header) if self.record_filter.matches_all else None
        if not self.record_filter.may_match(record):
            return None
        decoded = NOT_DECODED
        if self._schemas is not None:
            decoded = await self.duty_cycle.without_waits(
                decoded_parts(self._schemas, self.topic, record)
            )
            await self.duty_cycle.pause()
        if not self.record_filter.matches(index, record, decoded):
            return None
        shown = truncate_record(self.topic, index, record, header, decoded)
        if self._columns:
            shown = shown._replace(fields=self._columns.values(index, record, decoded))
            await self.duty_cycle.pause()
        return shown


def _transaction_state(
    header: BatchHeader, row: FetchResponse.Partition, is_aborted: bool
) -> TransactionState:
    """Return the state of a batch's transaction, from the response that contains the batch."""
    if not header.is_transactional:
        return ""
    if header.base_offset >= row.last_stable_offset:
        return "open"
    if row.aborted_transactions is None:
        return ""
    return "aborted" if is_aborted else "committed"


def _count(header: BatchHeader, first: int, end: int) -> int:
    """Estimate how many records of a batch are in a range: compaction may have removed some."""
    inside = min(header.next_offset, end) - max(header.base_offset, first)
    return max(min(inside, header.record_count), 0)


class Remaining(NamedTuple):
    """Unread rest of a partition: an offset range, and the windows of backward steps.

    Attributes:
        start: First unread offset.
        end: Offset after the last unread one.
        window: Number of offsets of a window.
        splits_batches: True if windows may begin inside a batch; see `PartitionScan`.
    """

    start: int
    end: int
    window: int = FIRST_WINDOW
    splits_batches: bool = False


class PartitionScan:
    """Scan of one partition, with matches that have not been returned yet, nearest first.

    Offsets from `start` to `end` have not been scanned, except for the records in `found`. `window` is
    the number of offsets of a backward step. Windows begin at a batch, so that each batch is decoded
    once. With `splits_batches`, because a batch took longer than the budget, they begin anywhere.
    """

    def __init__(
        self,
        index: int,
        start: int,
        end: int,
        window: int = FIRST_WINDOW,
        splits_batches: bool = False,
    ) -> None:
        self.index = index
        self.start = start
        self.end = end
        self.window = window
        self.splits_batches = splits_batches
        # Number of records of the last window that was discarded.
        self.wasted = 0
        self.found: deque[ShownRecord] = deque()

    @property
    def is_done(self) -> bool:
        return not self.found and self.start >= self.end

    async def scan_forward(self, reader: Reader, budget: Budget, limit: int) -> None:
        """Scan one more response forwards."""
        row = await reader.fetch(self.index, self.start)
        if row.error_code:  # deleted concurrently
            self.start = self.end
            return
        previous = self.start
        async with aclosing(reader.matches(row, self.index, self.start, self.end, budget)) as found:
            async for next_offset, one in found:
                self.start = min(max(self.start, next_offset), self.end)
                if one is not None:
                    self.found.append(one)
                if len(self.found) >= limit or budget.is_spent:
                    return
        if self.start == previous:  # only uncommitted records are left
            self.start = self.end

    async def scan_backward(self, reader: Reader, budget: Budget, limit: int) -> None:
        """Scan one more window backwards and keep its newest matches."""
        end, window = self.end, 0
        first = max(self.start, end - self.window)
        before, began = budget.bytes, budget.took
        kept = await self._scan_window(reader, budget, first, limit, widen=not self.splits_batches)
        if kept is None and not budget.has_progress:
            # An expensive batch: retry with a small window, or the scan would never make progress.
            self.splits_batches, window = True, max(self.wasted // 2, FIRST_WINDOW)
            first = max(self.start, end - FIRST_WINDOW)
            kept = await self._scan_window(reader, budget, first, limit, widen=False)
        if kept is None:
            self.window = max(self.window // 4, self.wasted // 2, FIRST_WINDOW)
            return  # discard the window: it is incomplete and lacks its newest records
        self.found.extend(reversed(kept.found))
        self.end = kept.found[0].record.offset if kept.matches > len(kept.found) else kept.first
        budget.has_progress = True
        offsets_scanned = max(end - kept.first, 1)
        size = max((budget.bytes - before) / offsets_scanned, 1)
        seconds = max((budget.took - began) / offsets_scanned, 1e-6)
        self.window = window or self._next_window(budget, size, seconds, limit)

    def _next_window(self, budget: Budget, size: float, seconds: float, limit: int) -> int:
        """Return the window after one with this size and duration per offset."""
        if self.splits_batches:  # most of the bytes are those of one batch
            fits = int(budget.seconds * SPLIT_WINDOW_BUDGET_FRACTION / seconds)
        else:
            bytes_max = min(WINDOW_BYTES, budget.bytes_max * WINDOW_BUDGET_FRACTION)
            seconds_max = budget.seconds * WINDOW_BUDGET_FRACTION
            fits = int(min(bytes_max / size, seconds_max / seconds))
        return min(max(self.window * 4, limit), WINDOW_MAX, max(fits, FIRST_WINDOW))

    async def _scan_window(
        self, reader: Reader, budget: Budget, first: int, limit: int, *, widen: bool
    ) -> _Window | None:
        """Scan from `first` to the end; with `widen` from the beginning of the batch around `first`.

        Returns None if the budget does not suffice. A scan without progress always completes a small
        window.
        """
        kept: deque[ShownRecord] = deque(maxlen=limit)
        matches, at = 0, first
        counted = budget.records, reader.record_filter.too_large
        while at < self.end:
            row = await reader.fetch(self.index, at)
            if widen and at == first:
                first = at = max(self.start, reader.scan_start(row, first))
            previous, is_small = at, self.end - first <= FIRST_WINDOW
            async with aclosing(reader.matches(row, self.index, at, self.end, budget)) as found:
                async for next_offset, one in found:
                    at = max(at, next_offset)
                    if one is not None:
                        matches += 1
                        kept.append(one)
                    if budget.is_spent and (budget.has_progress or not is_small):
                        # The records will be scanned again.
                        self.wasted = budget.records - counted[0]
                        budget.records, reader.record_filter.too_large = counted
                        return None
            if at == previous:
                at = self.end
        return _Window(first, kept, matches)


class _Window(NamedTuple):
    """A scanned window: its first offset, its newest matches, and the number of matches."""

    first: int
    found: deque[ShownRecord]
    matches: int


class Scan:
    """Scan of several partitions, merged by record timestamp."""

    def __init__(self, reader: Reader, partitions: list[PartitionScan], *, backwards: bool) -> None:
        self._reader = reader
        self._partitions = partitions
        self._backwards = backwards

    async def run(self, budget: Budget, limit: int) -> list[ShownRecord]:
        """Return up to `limit` records; afterwards `remaining` is the input of the next scan."""
        self._reader.duty_cycle.restart()  # the scan may have waited for its turn
        returned: list[ShownRecord] = []
        while len(returned) < limit:
            empty = [each for each in self._partitions if not each.found and not each.is_done]
            if empty and not budget.is_spent:
                for partition in empty:
                    if self._backwards:
                        await partition.scan_backward(self._reader, budget, limit)
                    else:
                        await partition.scan_forward(self._reader, budget, limit)
                    if budget.is_spent:
                        break
                continue
            ready = [each for each in self._partitions if each.found]
            if not ready:
                break
            pick = max if self._backwards else min
            partition = pick(ready, key=lambda it: (it.found[0].record.timestamp, -it.index))
            returned.append(partition.found.popleft())
            if not len(returned) % RECORDS_AT_ONCE:
                await self._reader.duty_cycle.pause()
        self._rewind()
        return returned

    def _rewind(self) -> None:
        """Reset the partitions so that the next scan finds the matches that were not returned."""
        for partition in self._partitions:
            if partition.found and self._backwards:
                partition.end = partition.found[0].record.offset + 1
            elif partition.found:
                partition.start = partition.found[0].record.offset
            partition.found.clear()

    @property
    def is_done(self) -> bool:
        return all(each.is_done for each in self._partitions)

    @property
    def remaining(self) -> dict[int, Remaining]:
        """Return the unread rest by partition."""
        return {
            each.index: Remaining(each.start, each.end, each.window, each.splits_batches)
            for each in self._partitions
            if not each.is_done
        }
