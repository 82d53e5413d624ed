"""Looks through the records of a topic, forwards or backwards, in pieces and within a budget."""

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
from .decoding import Seen, oversized, seen
from .filters import RecordFilter
from .schemas import NEITHER, Schemas, decoded_parts

FETCH_BYTES = 512 * 1024
RECORD_BYTES_MAX = 16 * 1024 * 1024
"""A record that is larger is listed without its key and value."""
RECORDS_AT_ONCE = 32
"""Between two looks whether others are to have their turn."""
FIRST_WINDOW, WINDOW_MAX = 16, 50_000
"""Offsets that are gone back at a time."""
WINDOW_BYTES = 2 * 1024 * 1024
PART_OF_BUDGET = 0.25
"""What a window takes is at most so much of what a look may take: the last one may be in vain."""
NO_LEADER = -1


@dataclass
class Budget:
    """What one look may take; `scanned` records and bytes are what it took."""

    seconds: float
    bytes_max: int
    began_at: float = field(default_factory=trio.current_time)
    records: int = 0
    bytes: int = 0
    is_used: bool = False
    """Whether the look has come further already: one that has not goes on beyond its budget, a little."""

    @property
    def is_spent(self) -> bool:
        return self.bytes >= self.bytes_max or self.took >= self.seconds

    @property
    def took(self) -> float:
        return trio.current_time() - self.began_at


class Reader:
    """Reads batches of one topic from whoever leads its partitions."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        record_filter: RecordFilter,
        *,
        committed: bool,
        schemas: Schemas | None = None,
        duty_cycle: DutyCycle | None = None,
        record_bytes_max: int,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self.record_filter = record_filter
        self._committed = committed
        self._schemas = schemas
        self._leaders: dict[int, int] = {}
        self.duty_cycle = duty_cycle or DutyCycle(rest=REST)
        self._record_bytes_max = record_bytes_max

    async def fetch(self, index: int, offset: int) -> FetchResponse.Partition:
        """What a leader has at an offset, at once. Raises CannotRead, OSError."""
        for is_last in (False, True):
            if index not in self._leaders:
                await self._find_leader(index)
            connection = await self._cluster.node(self._leaders[index])
            answer = await connection.ask(
                self.request({index: offset}, wait_ms=0), oldest=4, newest=TOPIC_BY_NAME
            )
            row: FetchResponse.Partition = answer.responses[0].partitions[0]
            code = error_code(row.error_code)
            if not code or code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return row
            self._leaders.pop(index, None)
            if is_last or not code.retriable:
                break
        raise CannotRead(code, f"partition {index} of {self.topic} cannot be read ({code.name})")

    async def _find_leader(self, index: int) -> None:
        (node,) = await by_leader(self._cluster, [(self.topic, index)])
        if node == NO_LEADER:
            text = f"partition {index} of {self.topic} has no leader now"
            raise CannotRead(ErrorCode.LEADER_NOT_AVAILABLE, text)
        self._leaders[index] = node

    def request(self, offsets: Mapping[int, int], *, wait_ms: int) -> FetchRequest:
        """A Fetch of some partitions."""
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
            isolation_level=int(self._committed),
            topics=[FetchRequest.Topic(topic=self.topic, partitions=rows)],
        )

    def begin_of(self, row: FetchResponse.Partition, first: int) -> int:
        """From where on to look at an answer of which `first` is wanted: all of a batch is parsed anyway,
        and would be again for what is before; but where everything is wanted, each record costs more."""
        headers = () if self.record_filter.matches_all else iter_headers(row.records or b"")
        begin = next((header.base_offset for _, header in headers), first)
        return max(min(begin, first), first - WINDOW_MAX)

    async def batches(
        self, row: FetchResponse.Partition, first: int, end: int
    ) -> AsyncGenerator[tuple[BatchHeader, memoryview | None], None]:
        """The whole batches of an answer with records of a range; None instead of one in which
        nothing is wanted."""
        records = row.records or b""
        aborted: dict[int, list[int]] = {}
        for each in row.aborted_transactions or ():
            aborted.setdefault(each.producer_id, []).append(each.first_offset)
        for at, header in iter_headers(records):
            if header.base_offset >= end:
                return
            batch = memoryview(records)[at : at + header.size]
            is_aborted = self._committed and is_aborted_batch(header, batch, aborted)
            is_read = not (header.is_control or is_aborted or header.next_offset <= first)
            yield header, batch if is_read and await self._may_be_in(batch, header) else None
            await self.duty_cycle.pause()

    async def _may_be_in(self, batch: memoryview, header: BatchHeader) -> bool:
        """Return True if a batch may contain a wanted record."""
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
        """The records of a batch from an offset on, with pauses."""
        steps = stream_records(batch, header, start_offset=first, record_bytes_max=record_bytes_max)
        for number, record in enumerate(steps):
            if record is not None:
                yield record
            if record is None or not number % RECORDS_AT_ONCE:
                await self.duty_cycle.pause()

    async def wanted(
        self, row: FetchResponse.Partition, index: int, first: int, end: int, budget: Budget
    ) -> AsyncGenerator[tuple[int, Seen | None], None]:
        """The wanted records of an answer, each with the offset behind it; None behind each batch, and
        behind each record when the budget is spent: one alone may have taken long."""
        async with aclosing(self.batches(row, first, end)) as found:
            async for header, batch in found:
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
                            one = await self._looked_at(index, record, header)
                            if one is not None or budget.is_spent:
                                yield record.offset + 1, one
                yield header.next_offset, None

    async def _looked_at(
        self, index: int, record: Record | OversizedRecord, header: BatchHeader
    ) -> Seen | None:
        """A record as it is shown, if it is wanted."""
        if isinstance(record, OversizedRecord):
            self.record_filter.too_large += not self.record_filter.matches_all
            return oversized(index, record, header) if self.record_filter.matches_all else None
        if not self.record_filter.may_match(record):
            return None
        decoded = NEITHER
        if self._schemas is not None:
            decoded = await decoded_parts(self._schemas, self.topic, record)
            await self.duty_cycle.pause()
        if not self.record_filter.matches(index, record, decoded):
            return None
        return seen(self.topic, index, record, header, decoded)


def _count(header: BatchHeader, first: int, end: int) -> int:
    """About how many records of a batch are in a range: compaction may have taken some."""
    inside = min(header.next_offset, end) - max(header.base_offset, first)
    return max(min(inside, header.record_count), 0)


class LeftOf(NamedTuple):
    """What is left of a partition: from where on, to where, and how many offsets to go back at a time."""

    start: int
    end: int
    window: int = FIRST_WINDOW


class Lane:
    """One partition of a scan: what was found and not given out yet, nearest first.

    What lies between `start` and `end` is not looked at yet, but for what is in `found`. `window` is how many
    offsets it goes back at a time.
    """

    def __init__(self, index: int, start: int, end: int, window: int = FIRST_WINDOW) -> None:
        self.index = index
        self.start = start
        self.end = end
        self.window = window
        self.found: deque[Seen] = deque()

    @property
    def is_done(self) -> bool:
        return not self.found and self.start >= self.end

    async def go_on(self, reader: Reader, budget: Budget, limit: int) -> None:
        """Forwards: look at one answer more."""
        row = await reader.fetch(self.index, self.start)
        if row.error_code:  # it is deleted meanwhile
            self.start = self.end
            return
        came = self.start
        async with aclosing(reader.wanted(row, self.index, self.start, self.end, budget)) as found:
            async for behind, one in found:
                self.start = min(max(self.start, behind), self.end)
                if one is not None:
                    self.found.append(one)
                if len(self.found) >= limit or budget.is_spent:
                    return
        if self.start == came:  # what is there is not for who reads committed records only
            self.start = self.end

    async def go_back(self, reader: Reader, budget: Budget, limit: int) -> None:
        """Backwards: look at one window more; of what is in it the newest are kept."""
        before, began, end = budget.bytes, budget.took, self.end
        first = max(self.start, end - self.window)
        kept = await self._look_at(reader, budget, first, limit, widen=True)
        if kept is None and not budget.is_used:
            # A batch of much that takes long: less of it, or no look would ever come further.
            first = max(self.start, end - FIRST_WINDOW)
            kept = await self._look_at(reader, budget, first, limit, widen=False)
        if kept is None:
            self.window = max(self.window // 4, FIRST_WINDOW)
            return  # half a window is none: its newest records are missing
        self.found.extend(reversed(kept.found))
        self.end = kept.found[0].record.offset if kept.wanted > len(kept.found) else kept.first
        budget.is_used = True
        looked_at = max(end - kept.first, 1)
        size = max((budget.bytes - before) / looked_at, 1)
        seconds = max((budget.took - began) / looked_at, 1e-6)
        bytes_max = min(WINDOW_BYTES, budget.bytes_max * PART_OF_BUDGET)
        fits = int(min(bytes_max / size, budget.seconds * PART_OF_BUDGET / seconds))
        most = min(WINDOW_MAX, max(fits, FIRST_WINDOW))
        self.window = min(max(self.window * 4, limit), most)

    async def _look_at(
        self, reader: Reader, budget: Budget, first: int, limit: int, *, widen: bool
    ) -> _Window | None:
        """What is wanted from `first` on, or where `widen` from where a batch around it begins.

        None where the budget does not reach so far; a look that has come no further yet looks at a small
        window in any case.
        """
        kept: deque[Seen] = deque(maxlen=limit)
        wanted, at = 0, first
        counted = budget.records, reader.record_filter.too_large
        while at < self.end:
            row = await reader.fetch(self.index, at)
            if widen and at == first:
                first = at = max(self.start, reader.begin_of(row, first))
            came, is_small = at, self.end - first <= FIRST_WINDOW
            async with aclosing(reader.wanted(row, self.index, at, self.end, budget)) as found:
                async for behind, one in found:
                    at = max(at, behind)
                    if one is not None:
                        wanted += 1
                        kept.append(one)
                    if budget.is_spent and (budget.is_used or not is_small):
                        # They are looked at again.
                        budget.records, reader.record_filter.too_large = counted
                        return None
            if at == came:
                at = self.end
        return _Window(first, kept, wanted)


class _Window(NamedTuple):
    """A part of a partition that was looked at: from where on, the newest of what is wanted, how many."""

    first: int
    found: deque[Seen]
    wanted: int


class Scan:
    """A look through some partitions, which are merged by the times of their records."""

    def __init__(self, reader: Reader, lanes: list[Lane], *, backwards: bool) -> None:
        self._reader = reader
        self._lanes = lanes
        self._backwards = backwards

    async def run(self, budget: Budget, limit: int) -> list[Seen]:
        """Up to `limit` records; the lanes are then where the next look begins."""
        given: list[Seen] = []
        while len(given) < limit:
            hungry = [each for each in self._lanes if not each.found and not each.is_done]
            if hungry and not budget.is_spent:
                for lane in hungry:
                    if self._backwards:
                        await lane.go_back(self._reader, budget, limit)
                    else:
                        await lane.go_on(self._reader, budget, limit)
                    if budget.is_spent:
                        break
                continue
            ready = [each for each in self._lanes if each.found]
            if not ready:
                break
            pick = max if self._backwards else min
            lane = pick(ready, key=lambda it: (it.found[0].record.timestamp, -it.index))
            given.append(lane.found.popleft())
            if not len(given) % RECORDS_AT_ONCE:
                await self._reader.duty_cycle.pause()
        self._put_back()
        return given

    def _put_back(self) -> None:
        """What was found and not given out is looked for again."""
        for lane in self._lanes:
            if lane.found and self._backwards:
                lane.end = lane.found[0].record.offset + 1
            elif lane.found:
                lane.start = lane.found[0].record.offset
            lane.found.clear()

    @property
    def is_done(self) -> bool:
        return all(each.is_done for each in self._lanes)

    @property
    def places(self) -> dict[int, LeftOf]:
        """What is left of each partition."""
        return {
            each.index: LeftOf(each.start, each.end, each.window)
            for each in self._lanes
            if not each.is_done
        }
