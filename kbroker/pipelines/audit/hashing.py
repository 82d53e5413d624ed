"""Hashes of the identities of a topic's records."""

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
    """Read a topic once and add the hashes of its records to a spill.

    Args:
        reader: Reader of the topic.
        identity: Identity of records.
        spill: Receives the hashes.
        seen: Called with all rows before they are hashed.

    Raises:
        ClientError: The topic cannot be read, or exceeds the limits of the spill.
        KafkaError: The broker returned an error.
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
