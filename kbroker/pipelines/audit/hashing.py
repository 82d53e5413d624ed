"""What identifies each record of a topic, as hashes in a `Spill`."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.client.errors import ClientError

from .identity import Identity
from .reader import TopicReader
from .rows import Rows
from .spill import Spill


async def spill_hashes(
    reader: TopicReader,
    identity: Identity,
    spill: Spill,
    seen: Callable[[Rows], None] = lambda rows: None,
) -> None:
    """Read a topic once; `seen` is called with all rows before they are hashed.

    Raises ClientError or KafkaError; ClientError also for a value that has no such identity.
    """

    def watch(partition: int, rows: Rows) -> None:
        seen(rows)
        try:
            spill.add(partition, rows.offsets, identity.hashes(rows))
        except ValueError as error:
            raise ClientError(f"{reader.source.topic}: {error}") from None

    for facts in reader.facts:
        async with reader.pieces(facts, watch) as pieces:
            async for _ in pieces:
                pass
