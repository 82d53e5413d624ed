"""`kbroker topic consume --group`: read as a member of a group, and leave it in order."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from kbroker.client.consumer import FOREVER, Read, reading
from kbroker.client.groups import committed_offsets
from kbroker.client.member import Member
from kbroker.client.offset_spec import START, OffsetSpec, find

from .output import say

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topics import Partition

COMMIT_SECONDS = 5
"""Kafka's default for consumers that commit by themselves."""
PRINT_SECONDS = 1
GOODBYE_SECONDS = 5

Print = Callable[[Sequence[Read]], Sequence[Read]]
"""Prints what is wanted, and returns the records that are done with."""


async def end_on_signal(scope: trio.CancelScope, ended: Callable[[int], None]) -> None:
    """Leave a scope when the process is told to end, so that what must be done at last is done."""
    if threading.current_thread() is not threading.main_thread():
        return
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            ended(number)
            scope.cancel()
            return


class MemberReader:
    """Reads what a member is assigned, from one rebalance to the next.

    Parameters: `is_enough` says whether all is printed that was asked for; `first` is where partitions begin in which the group has committed nothing, `last`
    where all end (None: never).
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
        self._positions: dict[Partition, int] = {}
        """Where reading goes on, as far as that is not committed."""
        self._commit_at = math.inf

    async def run(self) -> None:
        """Read until all ends are reached, or enough is printed; commits at last.

        Raises ClientError, KafkaError, OSError.
        """
        try:
            while not await self._generation(await self._member.join()):
                await self._commit()
        finally:
            with trio.move_on_after(GOODBYE_SECONDS, shield=True):
                await self._commit()

    async def _generation(self, assigned: Sequence[Partition]) -> bool:
        """Read until a rebalance; True when there is nothing more to do."""
        ranges = await self._ranges(assigned)
        if not ranges:
            if self._last is None:
                await self._member.wait_for_rebalance()
            return self._last is not None
        async with reading(
            self._cluster, ranges, committed=self._committed, control=self._control
        ) as channel:
            while (found := await self._next(channel)) is not None:
                await self._print_some(found)
                if self._is_enough():
                    return True
        return not self._member.is_rebalancing

    async def _print_some(self, found: Sequence[Read]) -> None:
        """Print in a thread: a pipe that nobody reads from must not keep the member from its beats.

        What is being printed when it is told to end is finished, if that is soon, so that it is
        committed.
        """
        printing = trio.CancelScope(shield=True)

        async def work() -> None:
            with printing:
                printed = await trio.to_thread.run_sync(self._print, found, abandon_on_cancel=True)
                self._note({read.partition: read.record.offset + 1 for read in printed})
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                await trio.sleep_forever()
            finally:
                printing.deadline = trio.current_time() + PRINT_SECONDS

    async def _next(self, channel: trio.MemoryReceiveChannel[list[Read]]) -> list[Read] | None:
        """The next records; None at the end, or when a rebalance begins."""
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
        """Where to begin and end; what the group has not read yet begins at the place asked for."""
        known = await committed_offsets(self._cluster, self._group)
        starts = await find(self._cluster, assigned, START)
        begin = {one: max(known[one], starts[one]) for one in assigned if one in known}
        new = [one for one in assigned if one not in known]
        found = await find(self._cluster, new, self._first, committed=self._committed)
        # Committed as well: else records that come before the next rebalance could be left out.
        self._note(found)
        begin |= found
        ends = dict.fromkeys(assigned, FOREVER) if self._last is None else self._last
        return {one: (at, ends[one]) for one, at in begin.items() if one in ends and at < ends[one]}

    def _note(self, positions: Mapping[Partition, int]) -> None:
        if positions and not self._positions:
            self._commit_at = trio.current_time() + COMMIT_SECONDS
        self._positions.update(positions)

    async def _commit(self) -> None:
        positions, self._positions, self._commit_at = self._positions, {}, math.inf
        if positions and not await self._member.commit(positions):
            say(
                f"kbroker: group {self._group!r} went on without this member: its last records are "
                "read once more",
                err=True,
            )
