"""Stored batches for consumers older than they are: Fetch 0 to 3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kbroker.protocol.message_sets import MessageSet, from_batches
from kbroker.runtime.batch_reads import charge_nobody
from kbroker.storage.cached import Reading
from kbroker.storage.files import FileRange
from kbroker.storage.log import Log
from kbroker.storage.segment import Slice

from .context import Context

CONTENT_BYTES_MAX = 4 << 20
"""How many uncompressed bytes one fetch gets, give or take a batch. 4 MiB of records take 25 ms at
1 kB each, 0.1 s at 100 B and 0.4 s at 10 B, in which answers to others are up to 15 ms late."""


class DownConversion:
    """Converts what one Fetch request reads, within a bound for all of its partitions.

    `max_bytes` is that of the answer. The last batch may make it larger.
    """

    __slots__ = (
        "_bytes_left",
        "_charge",
        "_client",
        "_content_left",
        "_disk_reads",
        "_magic",
        "_reads",
    )

    def __init__(self, ctx: Context, magic: int, max_bytes: int) -> None:
        self._reads = ctx.node.context.batch_reads
        self._disk_reads = ctx.node.context.disk_reads
        self._client = ctx.peer
        self._charge = (
            charge_nobody if ctx.quota_charge is None else ctx.quota_charge.worked_in_thread
        )
        self._magic = magic
        self._bytes_left = max(max_bytes, 1)
        self._content_left = CONTENT_BYTES_MAX

    async def convert(self, log: Log, found: Slice, first_offset: int, max_bytes: int) -> bytes:
        """The batches of `found` as a message set; see `from_batches`.

        Reads on where they hold nothing that an old consumer sees (control batches), or it would
        ask for them forever. Empty when nothing follows, or the request has had its share.

        Raises what `Log.read` and `from_batches` raise.
        """
        while found.size and self._content_left > 0 and self._bytes_left > 0:
            most = min(max_bytes, self._bytes_left)
            data = await self._disk_reads.read(partial(_whole, found))
            converted = await self._reads.read(
                partial(self._from_batches, data, first_offset, most), self._client, self._charge
            )
            assert converted is not None
            self._content_left -= converted.content_bytes
            self._bytes_left -= len(converted.data)
            if converted.data:
                return converted.data
            read = partial(_read_on, log, found.next_offset, max_bytes)
            found = await self._disk_reads.read(read)
        return b""

    def _from_batches(
        self, records: bytes, first_offset: int, max_bytes: int
    ) -> Iterator[MessageSet | None]:
        return from_batches(
            records,
            self._magic,
            first_offset=first_offset,
            max_bytes=max_bytes,
            max_content=self._content_left,
        )


def _whole(found: Slice, reading: Reading) -> bytes:
    records = found.records
    return reading(records.read) if isinstance(records, FileRange) else records


def _read_on(log: Log, offset: int, max_bytes: int, reading: Reading) -> Slice:
    return reading(log.read, offset, max_bytes, limit=log.high_watermark)
