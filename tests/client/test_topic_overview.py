"""Records, size and lag of many topics and groups, with few requests."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.connection import Connection
from kbroker.client.group_overview import GROUPS_PER_REQUEST, group_overviews
from kbroker.client.groups import commit_offsets, list_groups
from kbroker.client.topic_overview import topic_overviews
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest

from ..wire import batch, connected, create_topic, produce


async def fill(broker: Broker, topics: int, groups: int, prefix: str = "t") -> None:
    """Create topics with one record each, and groups that have read nothing of each topic."""
    names = [f"{prefix}{number}" for number in range(topics)]
    async with connected(broker.endpoint) as wire:
        for name in names:
            topic = await create_topic(wire, name)
            assert (await produce(wire, topic, batch())).error_code == 0
    async with open_cluster([broker.endpoint]) as cluster:
        for number in range(groups):
            await commit_offsets(cluster, f"g{number}", {(name, 0): 0 for name in names})


async def test_topic_overview_has_records_size_lag_and_groups(broker: Broker) -> None:
    await fill(broker, 2, 2)
    await broker.create_topic("unread", 1, configs={"cleanup.policy": "compact"})
    async with open_cluster([broker.endpoint]) as cluster:
        topics = [row for row in (await cluster.metadata()).topics if not row.is_internal]
        rows = {row["name"]: row for row in await topic_overviews(cluster, topics)}
    read = rows["t0"]
    assert (read["records"], read["lag"], read["groups"]) == (1, 2, ["g0", "g1"])
    assert read["bytes"] > 0
    unread = rows["unread"]
    assert (unread["records"], unread["lag"], unread["groups"]) == (0, None, [])
    assert (unread["bytes"], unread["cleanup_policy"]) == (0, "compact")


async def test_overview_sends_same_number_of_requests_for_more_topics_and_groups(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    ask = Connection.ask

    async def counted(self: Connection, message: object, **named: object) -> object:
        sent.append(message)
        return await ask(self, message, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "ask", counted)
    counts = []
    for number in (1, 11):
        await fill(broker, number, number, prefix=f"t{number}-")
        async with open_cluster([broker.endpoint]) as cluster:
            topics = [row for row in (await cluster.metadata()).topics if not row.is_internal]
            groups = await list_groups(cluster)
            sent.clear()
            assert len(await topic_overviews(cluster, topics)) >= number
            assert len(await group_overviews(cluster, groups)) == number
            counts.append(len(sent))
    assert counts[0] == counts[1]
    assert GROUPS_PER_REQUEST >= 100


async def test_topic_overview_leaves_out_values_that_broker_rejects(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker, 1, 1)
    ask = Connection.ask

    async def refused(self: Connection, message: object, **named: object) -> object:
        if isinstance(message, DescribeLogDirsRequest):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await ask(self, message, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "ask", refused)
    async with open_cluster([broker.endpoint]) as cluster:
        (row,) = await topic_overviews(cluster, await cluster.topics(["t0"]))
    assert (row["bytes"], row["records"], row["lag"]) == (None, 1, 1)
