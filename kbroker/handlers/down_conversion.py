"""Down-conversion of stored batches to message sets for Fetch 0 to 3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kbroker.protocol.message_sets import MessageSet, from_batches
from kbroker.runtime.batch_reads import ignore_cpu_time
from kbroker.storage.cached import Reading
from kbroker.storage.files import FileRange
from kbroker.storage.log import Log
from kbroker.storage.segment import Slice

from .context import Context

# Maximum number of uncompressed bytes that one Fetch converts, plus at most one batch. Converting
# 4 MiB takes 25 ms for records of 1 kB, 0.1 s for 100 B and 0.4 s for 10 B. Responses to other
# clients are up to 15 ms late in that time.
CONTENT_BYTES_MAX = 4 << 20


class DownConversion:
    """Converter for the records of one Fetch request, with a bound over all of its partitions.

    Args:
        ctx: Context of the request.
        magic: Magic value of the message sets, 0 or 1.
        max_bytes: Maximum size of the converted records. The last batch may exceed it.
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
            ignore_cpu_time if ctx.quota_charge is None else ctx.quota_charge.add_thread_time
        )
        self._magic = magic
        self._bytes_left = max(max_bytes, 1)
        self._content_left = CONTENT_BYTES_MAX

    async def convert(self, log: Log, found: Slice, first_offset: int, max_bytes: int) -> bytes:
        """Convert batches of one partition to a message set; see `from_batches`.

        Control batches convert to nothing. In that case, read and convert the batches after them;
        otherwise the consumer would fetch the same offset forever.

        Args:
            log: The log.
            found: Batches that were read from the log.
            first_offset: Fetch offset.
            max_bytes: Maximum size of the message set, and of each further read.

        Returns:
            The message set; empty if no records follow or the request's bound is reached.

        Raises:
            KafkaError: `Log.read` or `from_batches` failed.
        """
        while found.size and self._content_left > 0 and self._bytes_left > 0:
            most = min(max_bytes, self._bytes_left)
            data = await self._disk_reads.read(partial(_read_slice, found))
            converted = await self._reads.read(
                partial(self._from_batches, data, first_offset, most), self._client, self._charge
            )
            assert converted is not None
            self._content_left -= converted.content_bytes
            self._bytes_left -= len(converted.data)
            if converted.data:
                return converted.data
            read = partial(_read_following, log, found.next_offset, max_bytes)
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


def _read_slice(found: Slice, reading: Reading) -> bytes:
    records = found.records
    return reading(records.read) if isinstance(records, FileRange) else records


def _read_following(log: Log, offset: int, max_bytes: int, reading: Reading) -> Slice:
    return reading(log.read, offset, max_bytes, limit=log.high_watermark)
