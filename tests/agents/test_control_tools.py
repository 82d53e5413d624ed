"""Tools for the control port: explanations, faults and snapshots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kbroker.agents.catalog import all_tools
from kbroker.agents.control import ControlPort
from kbroker.agents.server import AgentServer
from kbroker.agents.tool import Session
from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.testing.control import run_controlled_broker

from .conftest import Agent


async def prepare(_: Broker) -> None:
    """Add nothing to the broker."""


@pytest.fixture
async def controlled() -> AsyncIterator[Agent]:
    """Return an agent with all tools, at a broker with a control port."""
    async with run_controlled_broker(0, None, prepare) as (broker, found):
        port = ControlPort(Endpoint.parse(found.address), Path(found.token_file))
        async with open_cluster([Endpoint.parse(broker.bootstrap_servers)], "agent") as cluster:
            server = AgentServer([*all_tools()], Session(cluster, port), print)
            yield Agent(server, cluster)


@pytest.mark.slow
async def test_injected_fault_hits_requests_until_disarmed(controlled: Agent) -> None:
    await controlled("create_topic", topic="t")
    fault = {"api": "ListOffsets", "error": "TOPIC_AUTHORIZATION_FAILED", "times": 9}
    number = (await controlled("inject_fault", **fault))["fault"]
    found = await controlled.fail("consume_messages", topic="t")
    assert "TOPIC_AUTHORIZATION_FAILED" in found["untrusted"]["message"]
    assert (await controlled("get_fault_hits", fault=number))["hits"] > 0
    await controlled("disarm_fault", fault=number)
    assert (await controlled("consume_messages", topic="t"))["returned"] == 0
    await controlled("disarm_fault", all=True)


@pytest.mark.slow
async def test_snapshot_restores_topics_only_without_preview(controlled: Agent) -> None:
    await controlled("create_topic", topic="t")
    number = (await controlled("take_snapshot"))["snapshot"]
    await controlled("delete_topic", topic="t", dry_run=False)
    assert (await controlled("restore_snapshot", snapshot=number))["applied"] is False
    assert (await controlled("list_topics"))["total"] == 0
    await controlled("restore_snapshot", snapshot=number, dry_run=False)
    assert (await controlled("list_topics"))["total"] == 1


@pytest.mark.slow
async def test_explanation_is_untrusted_text(controlled: Agent) -> None:
    await controlled("create_topic", topic="t")
    found = await controlled("explain", topic="t")
    assert "t-0" in found["untrusted"]["explanation"]
    failed = await controlled.fail("explain", group="g", client_id="c")
    assert "give one of group, topic" in failed["message"]


@pytest.mark.slow
async def test_invalid_faults_are_rejected(controlled: Agent) -> None:
    for arguments in ({}, {"error": "X", "effect": "delay"}):
        found = await controlled.fail("inject_fault", **arguments)
        assert "either `error` or `effect`" in found["message"]
    found = await controlled.fail("inject_fault", error="NO_SUCH_ERROR")
    assert found["error"] == "CONTROL_FAILED"
    assert "NO_SUCH_ERROR" in found["untrusted"]["message"]
    assert "either `fault`" in (await controlled.fail("disarm_fault"))["message"]


async def test_unusable_control_port_is_an_error_with_next_action(
    agent: Agent, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    port = ControlPort(Endpoint("127.0.0.1", 1), token)
    server = AgentServer([*all_tools()], Session(agent.cluster, port), print)
    controlled = Agent(server, agent.cluster)
    found = await controlled.fail("take_snapshot")
    assert "cannot read the control token" in found["untrusted"]["message"]
    token.write_text("x")
    found = await controlled.fail("take_snapshot")
    assert "is the broker running with --control-port?" in found["untrusted"]["message"]
