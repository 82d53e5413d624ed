"""Trends and merged data of the overview."""

from __future__ import annotations

from kbroker.client.groups import commit_offsets
from kbroker.web.console.overview import merged_samples

from .consoles import console, record


async def test_overview_contains_traffic_and_response_times() -> None:
    async with console() as client:
        await client.create_topic("orders", record(b"v"))
        await client.sample()
        await client.write("orders", record(b"x" * 100_000))
        assert len((await client.get("/topics/orders/messages"))["records"]) == 2
        await client.sample()
        overview = await client.get("/overview")
        assert overview["sampled_at_ms"] > 1_700_000_000_000
        assert overview["bytes_in_per_second"][-1] > 0
        assert overview["bytes_out_per_second"][-1] > 0
        assert overview["requests_per_second"][-1] > 0
        assert overview["produce_us"]["p50"][-1] > 0
        assert overview["request_us"]["p99"][-1] >= overview["request_us"]["p50"][-1] > 0
        assert overview["silent_nodes"] == overview["other_nodes"] == []
        assert {each["node"] for each in overview["disks"]} == {1}


async def test_overview_counts_the_topics_that_the_list_shows() -> None:
    async with console() as client:
        await client.create_topic("orders", record(b"v"))
        await commit_offsets(client.cluster, "billing", {("orders", 0): 1})
        assert "__consumer_offsets" in client.broker.node.cluster.topics
        assert len((await client.get("/topics"))["topics"]) == 1
        assert (await client.get("/overview"))["topics"] == 1


async def test_own_data_of_a_process_has_no_data_of_the_cluster() -> None:
    async with console() as client:
        own = await client.get("/overview", own=1)
        assert own["requests_per_second"]
        assert "problems" not in own
        assert "topics" not in own


def test_samples_of_processes_are_merged_from_the_newest() -> None:
    rows = [[1, None, 3], [10, 20], None, "x"]
    assert merged_samples(rows, sum) == [1, 10, 23]
    assert merged_samples([[None], [None]], max) == [None]
    assert merged_samples([[4, 2], [3, 5]], max) == [4, 5]
