"""`kbroker explain` and the tools of `kbroker mcp` on Apache Kafka 4.4 and on kbroker.

An administrator and a user with few permissions call them all. Both brokers must give the same
sentences, results and error codes.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from harness.brokers import Broker
from harness.logins import ADMIN, client_settings, secured_brokers
from mcp.types import TextContent

from kbroker.agents.catalog import all_tools
from kbroker.agents.results import RESULT_LENGTH_MAX
from kbroker.agents.server import AgentServer
from kbroker.agents.tool import Session
from kbroker.cli import main
from kbroker.client import explanations
from kbroker.client.cluster import TRANSACTION, ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.member import open_member
from kbroker.client.security import security_of
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
)
from kbroker.protocol.records import Record, encode_batch

BOT = "bot"
SECONDS = 60
TRANSACTION_MS = 900_000
# Permissions of the user with few permissions.
PERMITTED = (
    ("topic", "orders", "read"),
    ("topic", "public", "describe"),
    ("group", "readers", "describe"),
    ("group", "shared", "describe"),
)
EXPLAINED = (
    *(("group", name) for name in ("readers", "live", "shared", "hidden", "missing")),
    *(("share", name, "orders", "0") for name in ("shared", "readers", "missing")),
    *(("partition", name, "0") for name in ("orders", "secret", "missing")),
    ("partition", "orders", "9"),
    *(("transaction", name) for name in ("payments", "missing")),
    *(("client", name) for name in (ADMIN, "missing")),
)
Calls = list[tuple[str, dict[str, Any]]]
APPLIED: dict[str, Any] = {"dry_run": False}
NEW_ACL = {
    "principal": "User:new",
    "resource_type": "topic",
    "resource": "x",
    "operation": "read",
}
READING: Calls = [
    *((name, {}) for name in ("describe_cluster", "check_health", "list_topics", "list_groups")),
    *((name, {}) for name in ("list_transactions", "list_acls")),
    ("list_transactions", {"states": ["Ongoing"]}),
    *(("describe_topic", {"topic": name}) for name in ("orders", "public", "secret", "missing")),
    *(("describe_group", {"group": name}) for name in ("readers", "live", "shared", "hidden")),
    ("describe_group", {"group": "missing"}),
    *(("describe_configs", {"name": name}) for name in ("public", "secret", "missing")),
    ("describe_configs", {"resource_type": "group", "name": "readers"}),
    ("describe_configs", {"resource_type": "broker", "name": "1"}),
    ("describe_configs", {"resource_type": "broker", "name": "9"}),
    *(("consume_messages", {"topic": name}) for name in ("orders", "public", "secret", "missing")),
    ("consume_messages", {"topic": "secret", "read_committed": True}),
    ("consume_messages", {"topic": "orders", "since": "1970-01-01"}),
    ("consume_messages", {"topic": "orders", "partitions": [9]}),
    ("consume_messages", {"topic": "orders", "offsets": {"0": 9}}),
]
WRITING: Calls = [
    ("create_topic", {"topic": "new"}),
    ("create_topic", {"topic": "a/b"}),
    ("create_topic", {"topic": "two", "replication_factor": 2}),
    ("create_partitions", {"topic": "orders", "total": 4}),
    ("produce_messages", {"topic": "orders", "messages": [{"value": "x", "partition": 0}]}),
    ("produce_messages", {"topic": "orders", "messages": [{"value": "x", "partition": 9}]}),
    ("alter_configs", {"name": "orders", "set": {"retention.ms": "-1"}, **APPLIED}),
    ("alter_configs", {"name": "orders", "set": {"retention.ms": "soon"}, **APPLIED}),
    ("reset_offsets", {"group": "readers", "to": "latest"}),
    ("reset_offsets", {"group": "readers", "to": "latest", **APPLIED}),
    ("reset_offsets", {"group": "live", "to": "latest", "topic": "orders", **APPLIED}),
    ("reset_offsets", {"group": "missing", "to": "latest"}),
    ("delete_records", {"topic": "orders", "before_offsets": {"0": 1}, **APPLIED}),
    *(("delete_group", {"group": name, **APPLIED}) for name in ("live", "hidden", "missing")),
    ("create_acl", {**NEW_ACL, **APPLIED}),
    ("delete_acls", {"principal": "User:bot", "resource": "public", **APPLIED}),
    *(("delete_topic", {"topic": name, **APPLIED}) for name in ("public", "secret", "missing")),
]
# Values that differ between any two clusters.
VOLATILE_FIELDS = {"topic_id", "cluster_id", "port", "member_id", "bytes", "timestamp"}
VOLATILE = re.compile(r"127\.0\.0\.1:\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|open for \d+ s")
# Messages of a broker follow the name of its error.
BROKER_MESSAGE = re.compile(r"\b([A-Z]+(?:_[A-Z]+)*_FAILED)(?:: [^;]*)?(; .*)?", re.DOTALL)


@dataclass
class Agent:
    """The tools of one user."""

    server: AgentServer
    cluster: ClusterClient

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document of a call; its size must be bounded."""
        (content,) = (await self.server.call(tool, arguments)).content
        assert isinstance(content, TextContent)
        assert len(content.text) < 2 * RESULT_LENGTH_MAX
        document: dict[str, Any] = json.loads(content.text)
        return document


@asynccontextmanager
async def agent_of(broker: Broker, user: str) -> AsyncIterator[Agent]:
    security = security_of(client_settings(user))
    async with open_cluster([Endpoint.parse(broker.address)], user, security=security) as cluster:
        tools = [each for each in all_tools() if not each.needs_control]
        yield Agent(AgentServer(tools, Session(cluster), lambda _: None), cluster)


async def open_transaction(cluster: ClusterClient, name: str, topic: str) -> None:
    """Write a record in a transaction that stays open."""
    init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TRANSACTION_MS)
    with trio.fail_after(SECONDS):
        while True:  # The broker creates the transaction log on first use.
            coordinator = await cluster.coordinator(name, TRANSACTION)
            producer = await coordinator.ask(init, newest=4)
            if not producer.error_code:
                break
            await trio.sleep(0.1)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name=topic, partitions=[0])],
    )
    await coordinator.ask(add, newest=3)
    batch = encode_batch(
        [Record(None, b"x", 0)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    rows = [ProduceRequest.Partition(index=0, records=batch)]
    request = ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.Topic(name=topic, partition_data=rows)],
    )
    written = await coordinator.ask(request, newest=11)
    assert not written.responses[0].partition_responses[0].error_code, written


async def share(cluster: ClusterClient, group: str, topic: str) -> None:
    """Add a member to a share group, with an assignment."""
    member, epoch = str(uuid.uuid4()), 0
    with trio.fail_after(SECONDS):
        while True:
            coordinator = await cluster.coordinator(group)
            beat = ShareGroupHeartbeatRequest(
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                subscribed_topic_names=[topic],
            )
            answer = await coordinator.ask(beat)
            if answer.assignment and answer.assignment.topic_partitions:
                return
            epoch = answer.member_epoch
            await trio.sleep(0.1)


async def prepare(agent: Agent) -> None:
    """Create the topics, groups, transactions and ACLs of the test."""
    for name, partitions in (("orders", 3), ("public", 1), ("secret", 1)):
        configs = {"retention.ms": "-1"}
        await agent.call(
            "create_topic", {"topic": name, "partitions": partitions, "configs": configs}
        )
        messages = [{"value": "x", "partition": 0, "timestamp": at} for at in range(4)]
        await agent.call("produce_messages", {"topic": name, "messages": messages})
    for group, topic in (("readers", "orders"), ("readers", "secret"), ("hidden", "orders")):
        reset = {"group": group, "topic": topic, "to": "earliest", **APPLIED}
        assert (await agent.call("reset_offsets", reset))["applied"]
    await open_transaction(agent.cluster, "payments", "secret")
    await share(agent.cluster, "shared", "orders")
    for kind, name, operation in PERMITTED:
        acl = {"principal": f"User:{BOT}", "resource_type": kind, "resource": name}
        assert (await agent.call("create_acl", {**acl, "operation": operation, **APPLIED}))[
            "applied"
        ]


def explain(broker: Broker, user: str, words: tuple[str, ...]) -> str:
    """Return exit status and output of a command."""
    settings = client_settings(user).items()
    options = [word for key, value in settings for word in ("-X", f"{key}={value}")]
    environ = {"KBROKER_BOOTSTRAP": broker.address, "KBROKER_PROFILES": "/nonexistent"}
    command = ["explain", words[0], *options, *words[1:]]
    done = CliRunner(env=environ).invoke(main, command, catch_exceptions=False)
    return f"{done.exit_code}\n{done.stdout}{done.stderr}"


def comparable(value: Any) -> Any:
    """Return a value without what differs between clusters and in messages of brokers."""
    if isinstance(value, str):
        return BROKER_MESSAGE.sub(r"\1\2", VOLATILE.sub("...", value))
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "error" in value and "message" in (value.get("untrusted") or {}):
        is_own = value["error"].startswith(("NO_SUCH", "NO_OFFSETS", "OFFSET_OUT", "CLIENT"))
        value = value if is_own else {"error": value["error"], "hint": value.get("hint")}
    return {key: comparable(each) for key, each in value.items() if key not in VOLATILE_FIELDS}


async def results_of(broker: Broker) -> dict[str, Any]:
    """Return the results of all commands and calls of both users."""
    found: dict[str, Any] = {}
    async with agent_of(broker, ADMIN) as admin, agent_of(broker, BOT) as bot:
        await prepare(admin)
        async with open_member(admin.cluster, "live", ["orders"]) as member:
            await member.join()
            for words in EXPLAINED:
                for user in (ADMIN, BOT):
                    output = await trio.to_thread.run_sync(partial(explain, broker, user, words))
                    found[f"{user}: explain {' '.join(words)}"] = output
            for name, agent in ((BOT, bot), (ADMIN, admin)):
                for tool, arguments in READING + WRITING:
                    result = await agent.call(tool, arguments)
                    found[f"{name}: {tool} {json.dumps(arguments)}"] = result
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Return the results on kbroker and on Apache Kafka."""
    directories = [tmp_path_factory.mktemp(each) for each in ("kbroker", "apache")]
    brokers = secured_brokers(*directories, [BOT], {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explanations, "COMMIT_SECONDS", 0)
        try:
            for broker in brokers:
                broker.start()
            yield [trio.run(results_of, broker) for broker in brokers]
        finally:
            for broker in brokers:
                broker.kill()


def test_explanations_and_tools_have_same_results_on_both_brokers(
    results: list[dict[str, Any]],
) -> None:
    ours, theirs = results
    different = [
        f"{call}\n  kbroker {ours[call]}\n  Apache  {theirs[call]}"
        for call in ours
        if comparable(ours[call]) != comparable(theirs[call])
    ]
    assert not different, "\n".join(different)


def test_every_tool_is_called(results: list[dict[str, Any]]) -> None:
    called = {call.split()[1] for call in results[0]}
    offered = {each.name for each in all_tools() if not each.needs_control}
    assert called == {*offered, "explain"}


def test_restricted_user_gets_no_false_statement(results: list[dict[str, Any]]) -> None:
    for found in results:
        listed = found[f"{BOT}: list_topics {{}}"]["untrusted"]["topics"]
        assert [(each["name"], each["records"], each["bytes"]) for each in listed] == [
            ("orders", 4, None),
            ("public", 4, None),
        ]
        shared = found[f"{BOT}: explain group shared"]
        assert "no lag is known for orders-0" in shared
        assert "has read all records" not in shared
        clients = found[f"{BOT}: explain client {ADMIN}"]
        assert "of group shared at" in clients
        assert "of group live at" not in clients
        for call, result in found.items():
            if call.startswith(f"{BOT}: ") and isinstance(result, dict) and result.get("failed"):
                assert result["applied"] is False, call
                assert "is not permitted to do this" in result["hint"], call
