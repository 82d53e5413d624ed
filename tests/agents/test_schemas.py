"""Messages that a schema registry decodes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from kbroker.agents.catalog import all_tools
from kbroker.agents.server import AgentServer
from kbroker.agents.tool import Session
from kbroker.cli.record_decoding import open_frame_decoder
from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.producer import Producer
from kbroker.client.schema_registry import SchemaRegistry
from kbroker.protocol.records import Record

from ..cli.registries import framed
from ..schemas.client import RegistryClient, record, registry
from .conftest import Agent

ORDER = record("Order", ("id", "int"), ("note", "string"))


@pytest.fixture
async def decoding() -> AsyncIterator[tuple[Agent, RegistryClient]]:
    """Return an agent at a broker with a schema registry and topic t."""
    async with (
        registry() as (broker, (client,)),
        open_cluster([Endpoint.parse(broker.bootstrap_servers)], "agent") as cluster,
        open_frame_decoder(SchemaRegistry(f"http://{client.endpoint}"), "test") as schemas,
    ):
        tools = [each for each in all_tools() if not each.needs_control]
        agent = Agent(AgentServer(tools, Session(cluster, schemas=schemas), print), cluster)
        await agent("create_topic", topic="t")
        yield agent, client


@pytest.mark.slow
async def test_values_with_schema_are_decoded_and_searched(
    decoding: tuple[Agent, RegistryClient],
) -> None:
    agent, client = decoding
    number = await client.register("t-value", ORDER)
    key = await client.register("t-key", '"string"')
    values = [framed(number, b"\2\4hi"), framed(number, b"\4\4yo"), b"plain", None]
    records = [Record(framed(key, b"\2k"), each, 1) for each in values]
    await Producer(agent.cluster).write({("t", 0): records})
    found = (await agent("consume_messages", topic="t"))["untrusted"]["messages"]
    assert [json.loads(each["value"]) for each in found[:2]] == [
        {"id": 1, "note": "hi"},
        {"id": 2, "note": "yo"},
    ]
    assert [each.get("value_schema_id") for each in found] == [number, number, None, None]
    assert [each["value"] for each in found[2:]] == ["plain", None]
    assert {(each["key"], each["key_schema_id"]) for each in found} == {("k", key)}
    searched = await agent("consume_messages", topic="t", value_contains='"yo"')
    assert searched["returned"] == 1


@pytest.mark.slow
async def test_value_that_cannot_be_decoded_has_its_problem(
    decoding: tuple[Agent, RegistryClient],
) -> None:
    agent, client = decoding
    number = await client.register("t-value", ORDER)
    broken, eight_bytes = framed(number, b"\2\xff"), b"\0" * 7 + b"\7"
    records = [Record(None, each, 1) for each in (broken, framed(99, b"abcd\xff"), eight_bytes)]
    await Producer(agent.cluster).write({("t", 0): records})
    found = (await agent("consume_messages", topic="t"))["untrusted"]["messages"]
    assert "does not match its schema" in found[0]["value_problem"]
    assert "value_base64" in found[0]
    assert found[1]["value_problem"] == "Schema 99 is not in the registry."
    assert "value_problem" not in found[2]
