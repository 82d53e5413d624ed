"""The topic `_schemas` as one node reads it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.consumer import Read
from kbroker.schemas.topic import READ_BYTES_MAX, SchemaTopic

from .client import record, registry


async def test_it_is_read_in_pieces_between_which_clients_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[int] = []
    take = SchemaTopic._take

    def counted(topic: SchemaTopic, reads: Sequence[Read]) -> None:
        pieces.append(sum(len(each.record.value or b"") for each in reads))
        take(topic, reads)

    async with registry() as (broker, [client]):
        for number in range(12):
            await client.register(f"s{number}", record(f"R{number}", ("f" * 20_000, "int")))
        monkeypatch.setattr(SchemaTopic, "_take", counted)
        async with (
            open_cluster([broker.endpoint], "test") as cluster,
            trio.open_nursery() as nursery,
        ):
            topic = SchemaTopic(cluster, lambda: 0)
            nursery.start_soon(topic.run)
            await topic.catch_up()
            nursery.cancel_scope.cancel()
    assert topic.store.last_id == 12
    assert sum(pieces) > 3 * READ_BYTES_MAX
    assert max(pieces) <= READ_BYTES_MAX
