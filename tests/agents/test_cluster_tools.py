"""Tools for the cluster and for configurations."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.agents import cluster_tools
from kbroker.broker import Broker
from kbroker.client.transaction_problems import transaction_problem

from .conftest import Agent


async def test_cluster_is_described_with_brokers_and_counts(agent: Agent, broker: Broker) -> None:
    await agent("create_topic", topic="t", partitions=3)
    found = await agent("describe_cluster")
    assert (found["topics"], found["partitions"]) == (1, 3)
    assert [f"{each['host']}:{each['port']}" for each in found["brokers"]] == [
        broker.bootstrap_servers
    ]


async def test_healthy_cluster_has_no_problems(agent: Agent) -> None:
    found = await agent("check_health")
    assert (found["healthy"], found["untrusted"]) == (True, {"problems": []})


async def test_transactions_are_listed_by_state(agent: Agent) -> None:
    assert (await agent("list_transactions", states=["Ongoing"]))["total"] == 0


async def test_transactions_of_unknown_state_are_rejected_with_valid_states(agent: Agent) -> None:
    found = await agent.fail("list_transactions", states=["ongoing"])
    assert "'ongoing' is not one of" in found["message"]
    assert "'Ongoing'" in found["message"]


async def test_long_transaction_is_a_warning_of_healthy_cluster(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(_: object, __: int) -> list[dict[str, object]]:
        return [transaction_problem("pay", "open for 2 minutes in t-0")]

    monkeypatch.setattr(cluster_tools, "long_transaction_problems", found)
    document = await agent("check_health")
    (problem,) = document["untrusted"]["problems"]
    assert (document["healthy"], problem["where"]) == (True, "pay")


async def configs(agent: Agent, **arguments: Any) -> dict[str, str | None]:
    found = await agent("describe_configs", **arguments)
    return {each["name"]: each["value"] for each in found["untrusted"]["configs"]}


async def test_configs_change_only_without_preview(agent: Agent) -> None:
    await agent("create_topic", topic="t", configs={"retention.ms": "1000"})
    changes = {"set": {"segment.bytes": "2MB"}, "reset": ["retention.ms"]}
    preview = await agent("alter_configs", name="t", **changes)
    assert preview["applied"] is False
    assert preview["numbers"] == {"segment.bytes": "2000000 (2MB)"}
    assert await configs(agent, name="t") == {"retention.ms": "1000"}
    assert (await agent("alter_configs", name="t", **changes, dry_run=False))["applied"] is True
    assert await configs(agent, name="t") == {"segment.bytes": "2000000"}
    everything = await configs(agent, name="t", only_overridden=False)
    assert everything["retention.ms"] == "604800000"


async def test_configs_of_brokers_and_groups_are_changed(agent: Agent) -> None:
    for kind, name, key, given in (
        ("broker", "1", "message.max.bytes", "50kB"),
        ("group", "g", "consumer.session.timeout.ms", "50s"),
    ):
        where = {"resource_type": kind, "name": name}
        await agent("alter_configs", **where, set={key: given}, dry_run=False)
        assert (await configs(agent, **where))[key] == "50000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "t"}, "give `set` or `reset`"),
        ({"name": "t", "set": {"retention.ms": "2w"}}, "unknown unit 'w' (valid: ms, s, m, h, d"),
        ({"name": "t", "set": {"a": "1"}, "reset": ["a"]}, "'a' is in both"),
        ({"name": "one", "resource_type": "broker", "set": {"a": "1"}}, "'one' is not a broker ID"),
    ],
)
async def test_invalid_change_of_configs_is_rejected(
    agent: Agent, arguments: dict[str, Any], message: str
) -> None:
    assert message in (await agent.fail("alter_configs", **arguments))["message"]


async def test_unknown_config_is_an_error_with_similar_name(agent: Agent) -> None:
    await agent("create_topic", topic="t")
    found = await agent.fail("alter_configs", name="t", set={"retention.m": "1"})
    assert found["error"] == "INVALID_CONFIG"
    assert "did you mean retention.ms" in found["untrusted"]["message"]
    assert (await agent.fail("describe_configs", name="u"))["error"] == "NO_SUCH_TOPIC"
