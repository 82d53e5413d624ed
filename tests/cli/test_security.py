"""`kbroker security user`: list, add, remove."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cli.target import ENVIRONMENT
from kbroker.security.scram import ScramMechanism

from ..brokers import started
from ..commands import Cli, ReadJson
from ..security.scram_logins import SHA_256, SHA_512, logs_in
from ..security.test_login import guarded
from .test_completion import proposed

SETTINGS = (
    "security.protocol=SASL_PLAINTEXT",
    "sasl.mechanism=PLAIN",
    'sasl.jaas.config=a.PlainLoginModule required username="admin" password="hush";',
)
LOGIN = tuple(word for each in SETTINGS for word in ("-X", each))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start a broker that requires authentication."""
    async with guarded() as broker:
        yield broker


async def test_user_can_be_added_listed_and_removed(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    assert await read_json("security", "user", "list", *LOGIN) == []
    made = await cli("security", "user", "add", "bob", *LOGIN, stdin="brush\n")
    assert made.stdout == "user bob can authenticate with SCRAM-SHA-256, SCRAM-SHA-512\n"
    for mechanism in ScramMechanism:
        assert await logs_in(broker, "bob", "brush", mechanism)
    assert not await logs_in(broker, "bob", "brush\n")
    options = (
        "--mechanism",
        "scram-sha-256",
        "--mechanism",
        "SCRAM-SHA-512",
        "--iterations",
        "8192",
    )
    made = await cli("security", "user", "add", "carol", *options, *LOGIN, stdin="crayon")
    assert made.stdout == "user carol can authenticate with SCRAM-SHA-256, SCRAM-SHA-512\n"
    for mechanism in ScramMechanism:
        assert await logs_in(broker, "carol", "crayon", mechanism)
    assert await read_json("security", "user", "list", *LOGIN) == [
        {"user": "bob", "iterations": {SHA_256: 4096, SHA_512: 4096}},
        {"user": "carol", "iterations": {SHA_256: 8192, SHA_512: 8192}},
    ]
    listed = await cli("security", "user", "list", "carol", "--json", *LOGIN)
    assert [json.loads(line)["user"] for line in listed.stdout.splitlines()] == ["carol"]
    shown = await cli("security", "user", "list", *LOGIN)
    assert shown.stderr == "users in the settings of a listener are not listed\n"
    table = shown.stdout.splitlines()
    assert table[0].split() == ["USER", "ITERATIONS"]
    assert table[1].split() == ["bob", "SCRAM-SHA-256=4096,SCRAM-SHA-512=4096"]
    await cli("security", "user", "add", "bob", *LOGIN, stdin="another one")
    assert not await logs_in(broker, "bob", "brush")
    assert await logs_in(broker, "bob", "another one")
    one = ("--mechanism", "SCRAM-SHA-256")
    output = await cli("security", "user", "remove", "--yes", "carol", *one, *LOGIN)
    assert output.stdout == "user carol can no longer authenticate with SCRAM-SHA-256\n"
    assert not await logs_in(broker, "carol", "crayon")
    assert await logs_in(broker, "carol", "crayon", SHA_512)
    second_output = await cli(
        "security", "user", "remove", "--yes", "carol", *one, *LOGIN, status=1
    )
    assert "user 'carol' does not exist or lacks this mechanism" in second_output.stderr
    await cli("security", "user", "remove", "--yes", "bob", "carol", *LOGIN)
    assert await read_json("security", "user", "list", *LOGIN) == []


@pytest.mark.parametrize(
    ("settings", "usable", "stored"),
    [
        (["sasl.enabled.mechanisms=SCRAM-SHA-512"], [SHA_512], [SHA_512]),
        (["sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256"], [SHA_256], [SHA_256]),
        (["sasl.enabled.mechanisms=PLAIN"], [], [SHA_256]),
    ],
)
async def test_added_user_gets_mechanisms_of_the_broker(
    settings: list[str],
    usable: list[ScramMechanism],
    stored: list[ScramMechanism],
    cli: Cli,
    read_json: ReadJson,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The user is added through a second listener without authentication."""
    options = "listeners=SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    async with guarded(options, *settings) as broker:
        endpoint = next(at for each, at in broker.server.endpoints() if each.name == "PLAINTEXT")
        monkeypatch.setenv(ENVIRONMENT, str(endpoint))
        made = await cli("security", "user", "add", "bob", stdin="brush")
        (row,) = await read_json("security", "user", "list")
        assert [*row["iterations"]] == stored
        for mechanism in ScramMechanism:
            assert await logs_in(broker, "bob", "brush", mechanism) is (mechanism in usable)
    if usable:
        assert made.stdout == f"user bob can authenticate with {', '.join(usable)}\n"
    else:
        assert "but no listener of the brokers enables SCRAM" in made.stdout


async def test_user_add_says_for_which_mechanisms_it_replaces_the_password(
    broker: Broker, cli: Cli
) -> None:
    add = ("security", "user", "add", "bob", *LOGIN)
    await cli(*add, "--mechanism", SHA_256.value, stdin="brush\n")
    changed = await cli(*add, stdin="crayon\n")
    assert changed.stdout.splitlines() == [
        "user bob can authenticate with SCRAM-SHA-256, SCRAM-SHA-512",
        "the password for SCRAM-SHA-256 was replaced; existing connections stay authenticated",
    ]
    assert await logs_in(broker, "bob", "crayon", SHA_256)


async def test_added_user_gets_mechanisms_of_the_listener_of_the_admin(cli: Cli) -> None:
    own = "listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512"
    async with guarded(own) as broker:
        arguments = ("--bootstrap", broker.bootstrap_servers, *LOGIN)
        made = await cli("security", "user", "add", "bob", *arguments, stdin="brush")
        assert await logs_in(broker, "bob", "brush", SHA_512)
    assert made.stdout == "user bob can authenticate with SCRAM-SHA-512\n"


async def test_user_add_warns_of_mechanism_without_listener(cli: Cli) -> None:
    async with started() as broker:
        arguments = ("--bootstrap", broker.bootstrap_servers, "--mechanism", "SCRAM-SHA-512")
        made = await cli("security", "user", "add", "bob", *arguments, stdin="brush")
    assert "no listener of the brokers enables SCRAM-SHA-512" in made.stdout
    assert "can authenticate" not in made.stdout


async def test_user_add_reads_password_from_file(broker: Broker, cli: Cli, tmp_path: Path) -> None:
    """A final line break is optional."""
    file = tmp_path / "password"
    for text in ("brush", "crayon\n", "chalk\r\n", " with spaces "):
        file.write_text(text)
        await cli("security", "user", "add", "bob", "--password-file", str(file), *LOGIN)
        assert await logs_in(broker, "bob", text.strip("\r\n"))
    await cli("security", "user", "add", "bob", "--password-file", "-", *LOGIN, stdin="pen\n")
    assert await logs_in(broker, "bob", "pen")


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n"])
async def test_user_add_rejects_invalid_password(text: str, cli: Cli) -> None:
    output = await cli("security", "user", "add", "bob", *LOGIN, stdin=text, status=2)
    assert "exactly one non-empty line" in output.stderr


async def test_user_commands_reject_invalid_arguments(cli: Cli) -> None:
    nobody = await cli("security", "user", "list", "nobody", *LOGIN, status=1)
    assert "user 'nobody' does not exist" in nobody.stderr
    assert "`kbroker security user list`" in nobody.stderr
    few = ("--iterations", "4095")
    output = await cli("security", "user", "add", "bob", *few, *LOGIN, stdin="brush", status=2)
    assert "4096<=x<=16384" in output.stderr
    output = await cli("security", "user", "add", "", *LOGIN, stdin="brush", status=1)
    assert "User name must not be empty" in output.stderr
    for option in ("--password", "--password=brush"):
        output = await cli("security", "user", "add", "bob", option, *LOGIN, status=2)
        assert "No such option" in output.stderr


async def test_user_add_does_not_echo_password_on_terminal(broker: Broker) -> None:
    """The password must be entered twice."""
    command = [sys.executable, "-m", "kbroker", "security", "user", "add", "bob", *LOGIN]

    def run_in_terminal() -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command, "-b", broker.bootstrap_servers],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,  # detach from the terminal of the test run
        )
        os.close(theirs)
        seen = b""
        for prompt in (b"Password: ", b"Repeat for confirmation: "):
            while prompt not in seen:
                seen += os.read(ours, 1000)
            os.write(ours, b"brush\n")
        while b"can authenticate" not in seen:
            seen += os.read(ours, 1000)
        assert process.wait(30) == 0
        os.close(ours)
        return seen.decode()

    with trio.fail_after(60):
        seen = await trio.to_thread.run_sync(run_in_terminal, abandon_on_cancel=True)
    assert "brush" not in seen
    assert await logs_in(broker, "bob", "brush")


async def test_completion_proposes_user_names(broker: Broker, cli: Cli) -> None:
    for name in ("bob", "barbara", "alice"):
        await cli("security", "user", "add", name, *LOGIN, stdin="brush")
    for verb in ("list", "remove"):
        arguments = "security", "user", verb, *LOGIN[:5], f"'{LOGIN[5]}'"
        found = await trio.to_thread.run_sync(lambda: proposed(*arguments, incomplete="b"))  # noqa: B023
        assert found == ["barbara", "bob"]


async def test_user_commands_accept_patterns(cli: Cli, read_json: ReadJson) -> None:
    for name in ("app-a", "app-b", "bob"):
        await cli("security", "user", "add", name, *LOGIN, stdin="brush")
    rows = await read_json("security", "user", "list", "app-*", *LOGIN)
    assert [row["user"] for row in rows] == ["app-a", "app-b"]
    nothing = await cli("security", "user", "remove", "ap*-c", "--yes", *LOGIN, status=1)
    assert "pattern 'ap*-c' matches no user; similar names: 'app-" in nothing.stderr
    await cli("security", "user", "remove", "--regex", "app-.", "--yes", *LOGIN)
    assert [row["user"] for row in await read_json("security", "user", "list", *LOGIN)] == ["bob"]


async def test_command_without_credentials_names_missing_authentication(
    broker: Broker, cli: Cli
) -> None:
    address = str(broker.endpoint)
    for command in (("topic", "list"), ("health",)):
        output = (await cli(*command, "-b", address, status=1)).stderr
        assert "the listener may require authentication: set security.protocol" in output
        assert "docs/how-to/authentication.md" in output
        assert "running" not in output


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (SETTINGS[2].replace("hush", "wrong"), "cannot authenticate as admin"),
        ("sasl.mechanism=SCRAM-SHA-512", "SASL mechanism SCRAM-SHA-512 is not enabled (valid:"),
    ],
)
async def test_command_with_rejected_credentials_names_the_reason(
    cli: Cli, setting: str, expected: str
) -> None:
    async with guarded("sasl.enabled.mechanisms=PLAIN") as broker:
        address = str(broker.endpoint)
        for command in (("topic", "list"), ("health",)):
            wrong = (*command, *LOGIN, "-X", setting, "-b", address)
            output = (await cli(*wrong, status=1)).stderr
            assert expected in output
            assert "running" not in output
