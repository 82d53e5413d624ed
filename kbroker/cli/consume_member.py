"""`kbroker topic consume --group`: reads as a group member, and leaves the group at the end."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from kbroker.client.consumer import FOREVER, ReadBatch, reading_records
from kbroker.client.groups import committed_offsets
from kbroker.client.member import Member
from kbroker.client.offset_spec import START, OffsetSpec, find

from .output import say

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition

# Interval between commits in seconds: the default of Kafka's consumers.
COMMIT_SECONDS = 5
# Time to finish printing records when the process is stopped, in seconds.
PRINT_SECONDS = 1
# Time limit of the last commit, before the member leaves the group, in seconds.
LAST_COMMIT_SECONDS = 5

# Prints the records that pass the filter, and returns all processed records.
Print = Callable[[Sequence[ReadBatch]], Sequence[ReadBatch]]
# Gets the positions of the first assignment, and its partitions with a committed offset.
OnStart = Callable[[Mapping["Partition", int], Collection["Partition"]], Awaitable[None]]


async def end_on_signal(scope: trio.CancelScope, on_signal: Callable[[int], None]) -> None:
    """Cancel a scope on SIGINT or SIGTERM, so that its clean-up code runs."""
    if threading.current_thread() is not threading.main_thread():
        return
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            on_signal(number)
            scope.cancel()
            return


class MemberReader:
    """Reader of a group member's partitions.

    After each rebalance, it continues with the new assignment.

    Args:
        is_enough: Returns True if the requested number of records is printed.
        first: Start offset of partitions without a committed offset.
        last: End offset of each partition, or None to read without an end.
        decode: Returns the records as they are printed; None to print them unchanged.
        on_start: Called once with the first positions and the partitions with a committed offset.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        member: Member,
        print_: Print,
        is_enough: Callable[[], bool],
        first: OffsetSpec,
        last: Mapping[Partition, int] | None,
        *,
        committed: bool,
        control: bool,
        decode: Callable[[Sequence[ReadBatch]], Awaitable[Sequence[ReadBatch]]] | None = None,
        on_start: OnStart | None = None,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._member = member
        self._print = print_
        self._is_enough = is_enough
        self._first = first
        self._last = last
        self._committed = committed
        self._control = control
        self._decode = decode
        self._on_start = on_start
        self._positions: dict[Partition, int] = {}  # next offsets that are not committed yet
        self._commit_at = math.inf

    async def run(self) -> None:
        """Read until all end offsets or the requested count are reached, and commit at the end.

        Raises:
            ClientError: The group or its topics cannot be read.
            KafkaError: A broker rejected a request.
            OSError: The cluster cannot be reached.
        """
        try:
            while not await self._read_until_rebalance(await self._member.join()):
                await self._commit()
        finally:
            with trio.move_on_after(LAST_COMMIT_SECONDS, shield=True):
                await self._commit()

    async def _read_until_rebalance(self, assigned: Sequence[Partition]) -> bool:
        """Read until a rebalance; return True if nothing is left to read."""
        decode = self._decode
        ranges = await self._ranges(assigned)
        if not ranges:
            if self._last is None:
                await self._member.wait_for_rebalance()
            return self._last is not None
        async with reading_records(
            self._cluster, ranges, committed=self._committed, control=self._control
        ) as channel:
            while (found := await self._receive(channel)) is not None:
                await self._print_in_thread(found if decode is None else await decode(found))
                if self._is_enough():
                    return True
        return not self._member.is_rebalancing

    async def _print_in_thread(self, found: Sequence[ReadBatch]) -> None:
        """Print in a thread, so that a blocked pipe does not delay the member's heartbeats.

        On cancellation, printing may finish for up to PRINT_SECONDS, so that these records are
        committed.
        """
        printing = trio.CancelScope(shield=True)

        async def work() -> None:
            with printing:
                printed = await trio.to_thread.run_sync(self._print, found, abandon_on_cancel=True)
                self._add_positions(
                    {batch.partition: batch.records[-1].offset + 1 for batch in printed}
                )
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                await trio.sleep_forever()
            finally:
                printing.deadline = trio.current_time() + PRINT_SECONDS

    async def _receive(
        self, channel: trio.MemoryReceiveChannel[list[ReadBatch]]
    ) -> list[ReadBatch] | None:
        """Return the next records, or None at the end or when a rebalance begins."""
        while not self._member.is_rebalancing:
            with self._member.until_rebalance() as scope:
                scope.deadline = self._commit_at
                try:
                    return await channel.receive()
                except trio.EndOfChannel:
                    return None
            if trio.current_time() >= self._commit_at:
                await self._commit()
        return None

    async def _ranges(self, assigned: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Return start and end offsets; partitions without a committed offset start at `first`."""
        known = await committed_offsets(self._cluster, self._group)
        starts = await find(self._cluster, assigned, START)
        begin = {one: max(known[one], starts[one]) for one in assigned if one in known}
        new = [one for one in assigned if one not in known]
        found = await find(self._cluster, new, self._first, committed=self._committed)
        # Commit these start offsets: otherwise the next member could start later and skip records.
        self._add_positions(found)
        begin |= found
        if assigned and self._on_start is not None:
            on_start, self._on_start = self._on_start, None
            await on_start(begin, [one for one in assigned if one in known])
        ends = dict.fromkeys(assigned, FOREVER) if self._last is None else self._last
        return {one: (at, ends[one]) for one, at in begin.items() if one in ends and at < ends[one]}

    def _add_positions(self, positions: Mapping[Partition, int]) -> None:
        if positions and not self._positions:
            self._commit_at = trio.current_time() + COMMIT_SECONDS
        self._positions.update(positions)

    async def _commit(self) -> None:
        positions, self._positions, self._commit_at = self._positions, {}, math.inf
        try:
            is_committed = not positions or await self._member.commit(positions)
        except BaseException:  # also a cancellation: the commit at the end repeats this one
            self._positions = positions
            raise
        if not is_committed:
            say(
                f"kbroker: group {self._group!r} rebalanced before the last records that were read "
                "were committed; another member reads them again",
                err=True,
            )
