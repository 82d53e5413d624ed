"""Groups in the console."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from kbroker.client.configs import Operation, Resource, alter_configs
from kbroker.client.group_overview import group_overviews
from kbroker.client.groups import commit_offsets, list_groups
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.streams_groups import StreamsGroupTopologyDescriptionUpdateRequest
from kbroker.web.console import groups

from ...cli.test_group import member
from ...cli.test_transactions import begin
from ...coordinator.streams.test_descriptions import SOURCE, description
from ...handlers.test_streams_groups import remove_delays, streams_beat
from ...wire import Topic, connected, create_topic
from .consoles import console, record


async def test_dead_letter_queue_of_share_group_is_shown() -> None:
    async with console() as client:
        path = f"/groups/{quote('s/1', safe='')}/dead-letter-queue"
        assert await client.get(path) == {"dead_letter_queue": None}
        configs = {"errors.deadletterqueue.group.enable": "true"}
        await create_topics(client.cluster, [NewTopic("dlq.s", 1, configs=configs)])
        changes = {"errors.deadletterqueue.topic.name": (Operation.SET, "dlq.s")}
        await alter_configs(client.cluster, Resource.GROUP, "s/1", changes)
        queue = {"topic": "dlq.s", "copies_records": False, "records": 0, "problem": None}
        assert await client.get(path) == {"dead_letter_queue": queue}


async def test_topology_of_streams_group_is_shown() -> None:
    async with console() as client, connected(client.broker.endpoint) as wire:
        await client.create_topic("t")
        await remove_delays(wire)
        assert not (await streams_beat(wire, "a", 0)).error_code
        assert await client.get("/groups/g/topology") == {"status": "NOT_STORED", "nodes": []}
        request = StreamsGroupTopologyDescriptionUpdateRequest(
            group_id="g", member_id="a", topology_description=description(SOURCE)
        )
        key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
        assert not (await wire.ask(key, 0, request)).error_code
        node = {"subtopology": "0", "name": "source", "type": "source", "topics": ["orders"]}
        node |= {"stores": [], "successors": ["count"]}
        found = await client.get("/groups/g/topology")
        assert found == {"status": "AVAILABLE", "nodes": [node]}
        assert (await client.ask("/groups/nobody/topology")).status == 404


async def test_explanation_of_group_has_lag_and_time_of_last_commit() -> None:
    async with console() as client:
        await client.create_topic("orders", record(b"v"), record(b"w"))
        await commit_offsets(client.cluster, "billing", {("orders", 0): 1})
        explained = await client.get("/explain/group/billing")
        assert "last commit at " in explained["now"]
        state = "Empty means: it has no members; its committed offsets remain until they expire"
        lag = [state, "1 record is unread", "orders-0 is 1 record behind (at 1 of 2)"]
        assert explained["facts"] == lag


async def test_explanation_of_group_names_the_open_transaction_for_which_members_wait() -> None:
    async with console() as client, connected(client.broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        producer = await begin(wire, "payments", topic)
        await commit_offsets(client.cluster, "readers", {("t", 0): 0})
        async with member(client.broker, "readers", "t", 0):
            facts = (await client.get("/explain/group/readers"))["facts"]
    assert facts[0] == (
        "members with isolation.level=read_committed wait at offset 0 of t-0, because the "
        f"transaction of producer {producer} (transactional ID payments) is open"
    )


async def test_explanation_of_group_omits_open_transactions_that_members_have_not_reached() -> None:
    async with console() as client, connected(client.broker.endpoint) as wire:
        await client.create_topic("t", record(b"v"), record(b"w"), record(b"x"))
        await begin(wire, "payments", Topic("t"))
        await commit_offsets(client.cluster, "readers", {("t", 0): 0})
        async with member(client.broker, "readers", "t", 0):
            facts = (await client.get("/explain/group/readers"))["facts"]
    assert not [each for each in facts if "wait at offset" in each]


async def test_list_of_groups_has_the_lags_of_the_command_line() -> None:
    async with console() as client:
        await client.create_topic("orders", record(b"v"), record(b"w"), partitions=3)
        await Producer(client.cluster).write({("orders", 1): [record(b"x")]})
        await commit_offsets(client.cluster, "billing", {("orders", 0): 1})
        (row,) = (await client.get("/groups"))["groups"]
        (shown,) = await group_overviews(client.cluster, await list_groups(client.cluster))
        assert (row["lag"], row["without_offset"]) == (shown.lag, shown.without_offset) == (1, 1)
        details = await client.get("/groups/billing/details")
        assert (details["total_lag"], details["without_offset"]) == (1, 1)


async def test_list_of_groups_queries_only_as_many_partitions_as_the_limit_permits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "PARTITIONS_ASKED_MAX", 3)
    async with console() as client:
        await client.create_topic("orders", record(b"v"), partitions=2)
        for name in ("a", "b"):
            await commit_offsets(client.cluster, name, {("orders", 0): 0})
        await client.sample()
        rows = (await client.get("/groups"))["groups"]
        assert [(row["lag"], row["without_offset"]) for row in rows] == [(1, 0), (1, None)]
