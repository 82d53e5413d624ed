"""Health problems of the overview."""

from __future__ import annotations

import pytest
import trio

from kbroker.client.cluster import ClusterClient
from kbroker.client.cluster_details import Row
from kbroker.client.errors import ClientError
from kbroker.client.groups import commit_offsets
from kbroker.client.topics import NewTopic, create_topics
from kbroker.storage.producer_state import ProducerStates
from kbroker.web.console import health
from kbroker.web.console.health import lag_growth

from ...cli.test_transactions import begin
from ...wire import connected, create_topic
from .consoles import Console, console, record

STEADY = [100, 101] * 60


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([1000] * 11, None),
        ([None] * 100 + [n * 100 for n in range(12)], (0, 1100)),
        (STEADY, None),
        ([n * 1000 for n in range(120)], (60_000, 119_000)),
        ([n * 1000 for n in reversed(range(120))], None),
        ([10_000 * (n % 12) for n in range(120)], None),
        ([1_000_000 + n * 100 for n in range(120)], None),
    ],
)
def test_lag_growth_is_reported_only_if_it_is_steady(
    values: list[int | None], expected: tuple[int, int] | None
) -> None:
    assert lag_growth(values) == expected


async def test_group_with_growing_lag_is_a_problem_until_it_catches_up() -> None:
    async with console() as client:
        await client.create_topic("orders")
        await commit_offsets(client.cluster, "billing", {("orders", 0): 0})
        for _ in range(health.LAG_SAMPLES_MIN):
            await client.write("orders", *[record(b"v")] * 50)
            await client.sample()
        (problem,) = (await client.get("/overview"))["problems"]
        assert (problem["what"], problem["where"]) == ("group", "billing")
        assert problem["severity"] == "warning"
        assert problem["problem"].startswith("the lag grows: 50 records")
        assert problem["problem"].endswith("600 now; the group has no members")
        (lag,) = (await client.get("/overview"))["group_lags"]
        assert (lag["group"], lag["lag"], lag["trend"][-1]) == ("billing", 600, 600)
        await commit_offsets(client.cluster, "billing", {("orders", 0): 600})
        await client.sample()
        overview = await client.get("/overview")
        assert overview["problems"] == []
        assert overview["group_lags"] == []


async def open_transaction(client: Console, idle_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a partition have an open transaction without recent writes."""
    await client.create_topic("orders", record(b"v"))
    monkeypatch.setattr(ProducerStates, "oldest_open_idle", lambda _self, _now_ms: (7, idle_ms))


@pytest.mark.parametrize(
    ("idle_ms", "severity"), [(59_000, None), (61_000, "warning"), (1_300_000, "error")]
)
async def test_open_transaction_without_writes_is_a_problem(
    idle_ms: int, severity: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console() as client:
        await open_transaction(client, idle_ms, monkeypatch)
        problems = (await client.get("/overview"))["problems"]
        assert [each["severity"] for each in problems] == ([severity] if severity else [])
        if severity:
            assert problems[0]["where"] == "orders-0"


async def test_open_transaction_in_several_partitions_is_one_problem_with_transactional_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with console() as client:
        async with connected(client.broker.endpoint) as wire:
            producer_id = await begin(wire, "payments", await create_topic(wire, "orders"))
        for name in ("t", "u", "v"):
            await client.create_topic(name, record(b"v"))
        idle = (producer_id, 61_000)
        monkeypatch.setattr(ProducerStates, "oldest_open_idle", lambda _self, _now_ms: idle)
        (problem,) = (await client.get("/overview"))["problems"]
        assert problem["where"] == problem["transactional_id"] == "payments"
        text = problem["problem"]
        assert text.startswith("open without writes for 1 minute in "), text
        assert " and 2 more; read_committed consumers wait" in text, text
        assert problem["action"] == "let its producer commit, or abort the transaction"


async def test_broker_that_is_down_is_a_problem() -> None:
    async with console(nodes=3) as client:
        await client.create_topic("t", partitions=3)
        await client.broker.nodes[2].crash()
        with trio.fail_after(30):
            while not any(  # noqa: ASYNC110
                (each["what"], each["where"], each["severity"]) == ("broker", "3", "error")
                for each in (await client.get("/overview"))["problems"]
            ):
                await trio.sleep(0.05)


async def test_check_over_a_broken_connection_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    async def break_once(_: ClusterClient) -> list[Row]:
        calls.append(1)
        if len(calls) == 1:
            raise BrokenPipeError("the connection broke")
        return []

    monkeypatch.setattr(health, "cluster_problems", break_once)
    async with console() as client:
        assert (await client.get("/overview"))["problems"] == []
    assert len(calls) == 2


async def test_partitions_of_broker_that_is_down_are_one_problem() -> None:
    async with console(nodes=3) as client:
        await create_topics(client.cluster, [NewTopic("t", 6, 3)])
        await client.broker.nodes[2].crash()
        with trio.fail_after(30):
            while True:
                rows = (await client.get("/overview"))["problems"]
                found = [each for each in rows if each["what"] == "partition"]
                if any("broker 3 is down" in each["problem"] for each in found):
                    break
                await trio.sleep(0.05)
        (row,) = [each for each in found if each.get("count") == 6]
        assert row["problem"] == "under-replicated: broker 3 is down"
        assert sorted(row["places"]) == [f"t-{n}" for n in range(6)]
        cluster = await client.get("/cluster")
        assert [each["broker"] for each in cluster["brokers_down"]] == [3]
        response = await client.ask("/brokers/3/config")
        assert "node 3 is down" in response.text


@pytest.mark.parametrize("is_slow", [True, False])
async def test_incomplete_check_is_reported_with_problems_of_metadata(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: ClusterClient) -> list[Row]:
        if is_slow:
            await trio.sleep_forever()
        raise ClientError("node 2 closed the connection")

    monkeypatch.setattr(health, "cluster_problems", fail)
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.05)
    async with console() as client:
        (problem,) = (await client.get("/overview"))["problems"]
        assert problem["severity"] == "warning"
        reason = "took more than 0.05 s" if is_slow else "node 2 closed the connection"
        assert reason in problem["problem"]
