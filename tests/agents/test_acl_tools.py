"""Tools for ACLs, and the permissions of the server's own user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kbroker.agents.catalog import all_tools
from kbroker.agents.server import AgentServer
from kbroker.agents.tool import Session
from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.security import security_of
from kbroker.testing import BrokerThread, LocalBroker

from .conftest import Agent

USERS = {"admin": "ink", "reader": "pen"}


@asynccontextmanager
async def agent_of(broker: LocalBroker, user: str) -> AsyncIterator[Agent]:
    """Yield an agent whose server authenticates as a user."""
    settings = dict(broker.client(user).java)
    address = Endpoint.parse(settings.pop("bootstrap.servers"))
    async with open_cluster([address], "agent", security=security_of(settings)) as cluster:
        tools = [each for each in all_tools() if not each.needs_control]
        yield Agent(AgentServer(tools, Session(cluster), print), cluster)


@pytest.fixture
async def secured(thread: BrokerThread) -> AsyncIterator[LocalBroker]:
    """Start a broker with ACLs, where `reader` may only describe one topic."""

    def start() -> LocalBroker:
        return LocalBroker(
            topics=["orders"],
            users=USERS,
            acls={"reader": ["DESCRIBE topic orders", "DESCRIBE_CONFIGS topic orders"]},
            super_users=["admin"],
            thread=thread,
        )

    broker = await trio.to_thread.run_sync(start)
    yield broker
    await trio.to_thread.run_sync(broker.close)


@pytest.mark.slow
async def test_acls_are_created_listed_and_deleted_only_without_preview(
    secured: LocalBroker,
) -> None:
    wanted = {
        "principal": "User:bob",
        "resource_type": "topic",
        "resource": "a",
        "operation": "read",
    }
    row = wanted | {"permission": "allow", "pattern": "prefixed", "host": "*"}
    async with agent_of(secured, "admin") as agent:
        preview = await agent("create_acl", **wanted, pattern="prefixed")
        assert preview["applied"] is False
        assert (await agent("list_acls", principal="User:bob"))["total"] == 0
        done = await agent("create_acl", **wanted, pattern="prefixed", dry_run=False)
        assert (done["applied"], done["untrusted"]) == (True, {"acl": row})
        found = await agent("list_acls", resource_type="topic", resource="abc")
        assert found["untrusted"]["acls"] == [row]
        assert (await agent("delete_acls", resource="a"))["total"] == 0  # only literal ones
        preview = await agent("delete_acls", principal="User:bob")
        assert (preview["applied"], preview["untrusted"]) == (False, {"acls": [row]})
        await agent("delete_acls", principal="User:bob", dry_run=False)
        assert (await agent("list_acls", principal="User:bob"))["total"] == 0


@pytest.mark.slow
async def test_invalid_acls_are_rejected(secured: LocalBroker) -> None:
    async with agent_of(secured, "admin") as agent:
        acl = {"principal": "User:bob", "resource_type": "group", "operation": "read"}
        found = await agent.fail("create_acl", **acl)
        assert "resource: missing" in found["message"]
        found = await agent.fail("create_acl", **acl | {"operation": "write", "resource": "g"})
        assert "write does not exist for a group" in found["message"]
        found = await agent.fail("create_acl", **acl, resource="g", permission="maybe")
        assert "permission: 'maybe' is not one of" in found["message"]
        found = await agent.fail("delete_acls", dry_run=False)
        assert "at least one of" in found["message"]


@pytest.mark.slow
async def test_changes_without_permission_are_reported_as_not_applied(
    secured: LocalBroker,
) -> None:
    await trio.to_thread.run_sync(secured.produce, "orders", b"x")
    async with agent_of(secured, "admin") as agent:
        await agent("reset_offsets", group="g", topic="orders", to="earliest", dry_run=False)
        for kind, name in (("group", "g"), ("topic", "public")):
            acl = {"principal": "User:reader", "resource_type": kind, "resource": name}
            await agent("create_acl", **acl, operation="describe", dry_run=False)
        await agent("create_topic", topic="public", configs={"retention.ms": "1000"})
    async with agent_of(secured, "reader") as agent:
        for tool, arguments in (
            ("reset_offsets", {"group": "g", "to": "latest"}),
            ("delete_records", {"topic": "orders", "all_records": True}),
        ):
            found = await agent(tool, **arguments, dry_run=False)
            assert (found["applied"], found["failed"]) == (False, 1), found
            assert "is not permitted to do this" in found["hint"]
        described = await agent("describe_topic", topic="public")
        assert (described["total"], described["untrusted"]["configs"]) == (1, None)


@pytest.mark.slow
async def test_server_has_only_permissions_of_its_user(secured: LocalBroker) -> None:
    await trio.to_thread.run_sync(secured.produce, "orders", b"x")
    async with agent_of(secured, "reader") as agent:
        assert (await agent("describe_topic", topic="orders"))["total"] == 1
        for tool, arguments, error in (
            ("consume_messages", {"topic": "orders"}, "TOPIC_AUTHORIZATION_FAILED"),
            ("describe_topic", {"topic": "users"}, "TOPIC_AUTHORIZATION_FAILED"),
            (
                "produce_messages",
                {"topic": "orders", "messages": [{"value": "x"}]},
                "TOPIC_AUTHORIZATION_FAILED",
            ),
            ("delete_topic", {"topic": "orders", "dry_run": False}, "TOPIC_AUTHORIZATION_FAILED"),
            ("describe_group", {"group": "g"}, "GROUP_AUTHORIZATION_FAILED"),
            ("list_acls", {}, "CLUSTER_AUTHORIZATION_FAILED"),
        ):
            found = await agent.fail(tool, **arguments)
            assert found["error"] == error, (tool, found)
            assert "is not permitted to do this" in found["hint"]
