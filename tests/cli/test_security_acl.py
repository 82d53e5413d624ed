"""`kbroker security acl`: list, add, remove, explain."""

from __future__ import annotations

import json
import os
import pty
import random
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.client.acls import add_acls
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acls import AclOperation, AuthorizerSettings, Resource, decide
from kbroker.security.rights import Permission, check_permission

from ..commands import Cli, ReadJson
from ..security.test_access import DENIED, TOPIC, guarded, user
from ..security.test_acls import (
    NAMES,
    acl,
    book,
    client,
    random_acl,
)
from ..wire import batch, create_topic, fetch, produce, request

LOGIN_OF = (
    "security.protocol=SASL_PLAINTEXT",
    "sasl.mechanism=PLAIN",
    'sasl.jaas.config=a.PlainLoginModule required username="%s" password="hush";',
)


def login(name: str = "admin") -> tuple[str, ...]:
    return tuple(word for each in LOGIN_OF for word in ("-X", each.replace("%s", name)))


LOGIN = login()
ADMIN = Security(None, Credentials("PLAIN", "admin", "hush"))
READ = ("--operation", "read")
BOB = ("--principal", "bob")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start a broker that enforces ACLs."""
    async with guarded() as broker:
        yield broker


async def test_acl_can_be_added_listed_and_removed(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    assert await read_json("security", "acl", "list", *LOGIN) == []
    orders = ("--topic", "orders")
    read_and_write = (*READ, "--operation", "WRITE")
    made = await cli("security", "acl", "add", *BOB, *read_and_write, *orders, *LOGIN)
    assert made.stdout.splitlines() == [
        "ALLOW User:bob READ on topic orders from *",
        "ALLOW User:bob WRITE on topic orders from *",
    ]
    more = ("--deny", "--prefixed", "--host", "10.0.0.1", "--cluster", "--group", "g")
    await cli(
        *("security", "acl", "add", "--principal", "User:*", "--operation", "describe"),
        *(*more, *LOGIN),
    )
    rows = await read_json("security", "acl", "list", *LOGIN)
    assert {
        (row["principal"], row["resource_type"], row["pattern"], row["permission"], row["host"])
        for row in rows
    } == {
        ("User:bob", "topic", "literal", "allow", "*"),
        ("User:*", "group", "prefixed", "deny", "10.0.0.1"),
        ("User:*", "cluster", "literal", "deny", "10.0.0.1"),
    }
    listed = (await cli("security", "acl", "list", *BOB, *LOGIN)).stdout.splitlines()
    assert listed[0].split()[:3] == ["PRINCIPAL", "PERMISSION", "OPERATION"]
    assert listed[1].split() == ["User:bob", "allow", "read", "topic", "orders", "literal", "*"]
    lines = (await cli("security", "acl", "list", "--deny", "--json", *LOGIN)).stdout.splitlines()
    assert [json.loads(line)["principal"] for line in lines] == ["User:*", "User:*"]
    output = await cli("security", "acl", "remove", *BOB, *READ, *LOGIN, status=2)
    assert "ALLOW User:bob READ on topic orders" in output.stderr
    assert "add --yes" in output.stderr
    removed = await read_json("security", "acl", "remove", *BOB, *READ, "--yes", *LOGIN)
    assert [row["operation"] for row in removed] == ["read"]
    assert len(broker.node.cluster.acls) == 3
    assert await read_json("security", "acl", "remove", *BOB, *READ, *LOGIN) == []


async def test_acl_list_matches_patterns_and_remove_matches_literally(
    cli: Cli, read_json: ReadJson
) -> None:
    for arguments in (
        ["orders"],
        ["ord", "--prefixed"],
        ["*"],
        ["order"],
        ["orders", "--prefixed"],
    ):
        await cli("security", "acl", "add", *BOB, *READ, "--topic", *arguments, *LOGIN)
    orders = ("--topic", "orders")

    def names(rows: Any) -> list[tuple[str, str]]:
        return [(row["resource"], row["pattern"]) for row in rows]

    assert names(await read_json("security", "acl", "list", *orders, *LOGIN)) == [
        ("*", "literal"),
        ("orders", "literal"),
        ("ord", "prefixed"),
        ("orders", "prefixed"),
    ]
    prefixed = await read_json("security", "acl", "list", *orders, "--prefixed", *LOGIN)
    assert names(prefixed) == [("orders", "prefixed")]
    removed = await read_json("security", "acl", "remove", *orders, "--yes", *LOGIN)
    assert names(removed) == [("orders", "literal")]
    assert len(await read_json("security", "acl", "list", "--prefixed", *LOGIN)) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["add", *READ, "--topic", "t"], "add --principal NAME"),
        (["add", *BOB, *READ], "no operation"),
        (["add", *BOB, "--topic", "t"], "no operation"),
        (
            ["add", *BOB, "--operation", "write", "--group", "g"],
            "invalid operation write on a group",
        ),
        (["add", *BOB, "--producer"], "--producer needs --topic"),
        (["add", *BOB, "--consumer", "--topic", "t"], "--consumer needs --topic NAME and --group"),
        (["remove", "--yes"], "at least one filter"),
        (["explain", *READ, "--topic", "t"], "exactly one --principal"),
        (["explain", "--principal", "*", *READ, "--topic", "t"], "exactly one --principal"),
        (["explain", *BOB, "--operation", "all", "--topic", "t"], "not an operation of a request"),
    ],
)
async def test_acl_commands_reject_invalid_options(
    arguments: list[str], expected: str, cli: Cli
) -> None:
    assert expected in (await cli("security", "acl", *arguments, *LOGIN, status=2)).stderr


async def test_denied_acl_command_suggests_next_action(broker: Broker, cli: Cli) -> None:
    output = await cli("security", "acl", "list", *login("bob"), status=1)
    assert "User:bob may not DESCRIBE cluster" in output.stderr
    assert "`kbroker security acl explain`" in output.stderr
    output = await cli("security", "acl", "add", *BOB, *READ, "--topic", "", *LOGIN, status=1)
    assert "should not be empty" in output.stderr
    assert not len(broker.node.cluster.acls)


async def test_producer_and_consumer_shortcuts_grant_required_operations(
    broker: Broker, cli: Cli
) -> None:
    """Clients work with exactly these ACLs, and `explain` confirms it."""
    orders, group = ("--topic", "orders"), ("--group", "g")
    produces = ("--producer", *orders, "--transactional-id", "tx")
    consumes = ("--consumer", *orders, *group)
    async with user(broker, "admin") as admin, user(broker, "bob") as bob:
        topic = await create_topic(admin, "orders")
        for work, count in ((produces, 4), (consumes, 4)):
            output = await cli("security", "acl", "explain", *BOB, *work, *LOGIN)
            lines = output.stdout.splitlines()
            assert sum(line.startswith("denied: ") for line in lines) == count
        assert (await produce(bob, topic, batch())).error_code == DENIED[TOPIC]
        await cli("security", "acl", "add", *BOB, *produces, "--idempotent", *LOGIN)
        assert (await produce(bob, topic, batch())).error_code == 0
        init = request(ApiKey.INIT_PRODUCER_ID, transactional_id="tx", transaction_timeout_ms=1000)
        assert (await bob.ask(ApiKey.INIT_PRODUCER_ID, 4, init)).error_code != 53
        assert (await fetch(bob, topic)).error_code == DENIED[TOPIC]
        await cli("security", "acl", "add", *BOB, *consumes, *LOGIN)
        assert (await fetch(bob, topic)).error_code == 0
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
        (row,) = (await bob.ask(ApiKey.FIND_COORDINATOR, 4, find)).coordinators
        assert row.error_code == 0
        output = await cli(
            *("security", "acl", "explain", *BOB, *produces, *group, "--consumer", "--idempotent"),
            *LOGIN,
        )
        assert "denied" not in output.stdout
        assert len(output.stdout.splitlines()) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "question", "allowed", "rule", "commands"),
    [
        (
            [],
            [*READ, "--topic", "my orders"],
            False,
            "the resource has no ACL",
            ["add --principal User:bob --operation read --topic 'my orders'"],
        ),
        (
            [["--principal", "al", *READ, "--topic", "t"]],
            [*READ, "--topic", "t"],
            False,
            "no ACL of the resource allows it",
            ["add --principal User:bob --operation read --topic t"],
        ),
        (
            [[*BOB, *READ, "--topic", "t"]],
            ["--operation", "describe", "--topic", "tt"],
            False,
            "the resource has no ACL",
            ["add --principal User:bob --operation describe --topic tt"],
        ),
        (
            [[*BOB, *READ, "--topic", "t", "--prefixed"]],
            ["--operation", "describe", "--topic", "tt"],
            True,
            "ALLOW User:bob READ on prefixed topic t from *, as READ allows DESCRIBE",
            [],
        ),
        (
            [[*BOB, "--operation", "all", "--cluster"]],
            ["--operation", "alter", "--cluster"],
            True,
            "ALLOW User:bob ALL on cluster kafka-cluster from *",
            [],
        ),
        (
            [["--principal", "*", "--operation", "all", "--topic", "*", "--deny"]],
            [*READ, "--topic", "t"],
            False,
            "DENY User:* ALL on topic * from *",
            [
                "remove --principal 'User:*' --deny --operation all --topic '*' --host '*'",
                "add --principal User:bob --operation read --topic t",
            ],
        ),
        (
            [[*BOB, *READ, "--topic", "t", "--host", "10.0.0.1"]],
            [*READ, "--topic", "t", "--host", "10.0.0.1"],
            True,
            "ALLOW User:bob READ on topic t from 10.0.0.1",
            [],
        ),
        (
            [[*BOB, "--operation", "write", "--topic", "t"]],
            ["--operation", "idempotent-write", "--cluster", "--idempotent"],
            True,
            "it has WRITE on some topic, which is enough",
            [],
        ),
        ([], ["--principal", "admin", *READ, "--group", "g"], True, "a super user", []),
    ],
)
async def test_acl_explain_names_rule_and_commands(
    given: list[list[str]],
    question: list[str],
    allowed: bool,
    rule: str,
    commands: list[str],
    cli: Cli,
    read_json: ReadJson,
) -> None:
    """The printed commands are sufficient."""
    for command_line in given:
        await cli("security", "acl", "add", *command_line, *LOGIN)
    principal = [] if "--principal" in question else BOB
    why = ("security", "acl", "explain", *principal, *question, *LOGIN)
    (row,) = await read_json(*why)
    assert (row["allowed"], row["rule"]) == (allowed, rule)
    assert row["commands"] == [f"kbroker security acl {each}" for each in commands]
    for command in row["commands"]:
        arguments = shlex.split(command)[1:]
        if arguments[2] == "remove":
            arguments.append("--yes")
        await cli(*arguments, *LOGIN)
    (row,) = await read_json(*why)
    assert row["allowed"]


async def test_acl_explain_reports_unknown_rules(cli: Cli) -> None:
    await cli("security", "acl", "add", *BOB, *READ, "--topic", "t", "--host", "::1", *LOGIN)
    await cli(
        *("security", "acl", "add", "--principal", "bob", "--operation", "describe", "--cluster"),
        *LOGIN,
    )
    arguments = ("security", "acl", "explain", *BOB, *READ, "--topic", "t")
    assert "Other ACLs apply to --host ::1." in (await cli(*arguments, *LOGIN)).stdout
    output = (await cli(*arguments, *login("bob"))).stdout
    assert "does not expose its super.users and allow.everyone.if.no.acl.found" in output


async def test_acl_explain_reports_allow_everyone_setting(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded("allow.everyone.if.no.acl.found=true") as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
        arguments = ("security", "acl", "explain", *BOB, *READ, "--topic", "t")
        output = (await cli(*arguments, *LOGIN)).stdout
        assert "and allow.everyone.if.no.acl.found is true" in output


def test_commands_of_acl_explain_grant_permission() -> None:
    """With random ACLs, the proposed changes are necessary and sufficient."""
    changed = 0
    for seed in range(2000):
        rng = random.Random(seed)
        rules = AuthorizerSettings(allows_without_acls=rng.random() < 0.5)
        known = [random_acl(rng) for _ in range(rng.randrange(12))]
        permission = Permission(
            AclOperation(rng.randrange(3, 16)), Resource(TOPIC, rng.choice(NAMES[:-1]))
        )
        verdict = check_permission(book(*known), rules, client(), permission)
        assert verdict.allowed is decide(book(*known), rules, client(), *permission).allowed
        assert bool(verdict.changes) is not verdict.allowed
        for change in verdict.changes:
            assert not decide(book(*known), rules, client(), *permission).allowed
            if change.verb == "add":
                known.append(change.acl)
            else:
                known = [each for each in known if each != change.acl]
            changed += 1
        assert decide(book(*known), rules, client(), *permission).allowed
    assert changed > 1000


@pytest.mark.slow
async def test_acl_remove_asks_for_confirmation_on_terminal(broker: Broker) -> None:
    """The command shows the matching ACLs first."""
    async with open_cluster([broker.endpoint], security=ADMIN) as cluster:
        await add_acls(cluster, [acl(principal="User:bob")])
    command = [sys.executable, "-m", "kbroker", "security", "acl", "remove", *BOB, *LOGIN]

    def run_in_terminal(answered: bytes) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command, "-b", broker.bootstrap_servers],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        seen = b""
        while b"Remove 1 ACL?" not in seen:
            seen += os.read(ours, 1000)
        os.write(ours, answered)
        try:
            while more := os.read(ours, 1000):
                seen += more
        except OSError:  # the other end is closed
            pass
        process.wait(30)
        os.close(ours)
        return seen.decode()

    with trio.fail_after(60):
        for answered, left in ((b"n\n", 1), (b"y\n", 0)):
            work = trio.to_thread.run_sync(run_in_terminal, answered, abandon_on_cancel=True)
            assert "ALLOW User:bob READ on topic orders from *" in await work
            assert len(broker.node.cluster.acls) == left


async def test_acl_list_selects_names_by_pattern(cli: Cli, read_json: ReadJson) -> None:
    add = ("security", "acl", "add", *READ)
    for name in ("orders-eu", "orders-us", "users"):
        await cli(*add, *BOB, "--topic", name, *LOGIN)
    await cli(*add, "--principal", "bart", "--topic", "orders-us", *LOGIN)
    await cli(*add, "--principal", "*", "--topic", "*", *LOGIN)

    async def listed(*arguments: str) -> list[tuple[str, str]]:
        rows = await read_json("security", "acl", "list", *arguments, *LOGIN)
        return sorted((row["principal"], row["resource"]) for row in rows)

    expected = [("User:bart", "orders-us"), ("User:bob", "orders-eu"), ("User:bob", "orders-us")]
    assert await listed("--topic", "orders-*") == expected
    assert await listed("--topic", "orders-(eu|us)", "--regex") == expected
    assert await listed("--topic", "orders-*", "--principal", "ba*") == expected[:1]
    assert await listed("--principal", "User:bart|bill", "--regex") == expected[:1]
    assert await listed("--principal", "*") == [("User:*", "*")]
    assert await listed("--topic", "users") == [("User:*", "*"), ("User:bob", "users")]
    nothing = await cli("security", "acl", "list", "--topic", "oders-*", *LOGIN, status=1)
    assert "pattern 'oders-*' matches no resource of an ACL; similar names: 'or" in nothing.stderr


@pytest.mark.parametrize(
    ("command", "operation", "resource", "option"),
    [
        (("topic", "produce", "orders", "x"), "write", "topic orders", "--topic orders"),
        (("topic", "consume", "orders", "-o", ":end"), "read", "topic orders", "--topic orders"),
        (("cluster", "health"), "describe", "cluster", "--cluster"),
    ],
)
async def test_denied_command_names_user_operation_and_explanation(
    broker: Broker, cli: Cli, command: tuple[str, ...], operation: str, resource: str, option: str
) -> None:
    await cli("topic", "create", "orders", *LOGIN)
    output = (await cli(*command, *login("bob"), status=1)).stderr
    assert f"User:bob may not {operation.upper()} {resource} (" in output
    explain = f"kbroker security acl explain --principal User:bob --operation {operation} {option}"
    assert f"run `{explain}`" in output
    explained = await cli(*explain.split()[1:], *LOGIN)
    assert explained.stdout.startswith("denied: ")


async def test_acl_of_misspelt_user_has_suggestion(broker: Broker, cli: Cli) -> None:
    await cli("security", "user", "add", "carol", *LOGIN, stdin="brush")
    add = ("security", "acl", "add", *READ, "--topic", "orders", *LOGIN)
    output = (await cli(*add, "--principal", "caroll", "--principal", "zoe")).stderr
    assert output == "note: no SCRAM user 'caroll' exists; did you mean 'carol'?\n"
    assert (await cli(*add, "--principal", "carol")).stderr == ""
