"""Command lines that cannot be understood: what is printed holds no secret that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import click
import pytest

from kbroker.broker import Broker
from kbroker.cli import main
from kbroker.cli.kafka_tools import TOOLS
from kbroker.cli.kafka_tools.configs import without_secrets

from .conftest import Cli, invoke

SECRET = "hunter2"
NOWHERE = "127.0.0.1:1"
BAD_PAIRS = (
    SECRET,
    f"basic.auth.user.info:alice:{SECRET}",
    f"ssl.key.password {SECRET}=x",
    f"sasl.jaas.config:Plain required user=a password={SECRET};",
)
"""Items of options that take NAME=VALUE, with typing errors."""


def said_by(*words: str) -> str:
    """Return what a command line that fails prints."""
    try:
        done = invoke(*words, status=2)
    except AssertionError:
        done = invoke(*words, status=1)
    return done.output


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))
            else:
                yield (*path, name), command


def bad_lines(command: click.Command) -> Iterator[list[str]]:
    """Return words that a command cannot understand, whatever it does."""
    if any(each.type is click.UNPROCESSED for each in command.params):
        return  # the words are for another program
    yield [f"--no-such-option={SECRET}"]
    for each in command.params:
        if each.metavar == "KEY=VALUE":
            yield from ([each.opts[0], pair] for pair in BAD_PAIRS)
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if all(each.nargs == 1 for each in arguments):
        yield [*["x"] * len(arguments), SECRET]


def test_usage_errors_of_no_command_show_a_secret() -> None:
    lines = [[*path, *words] for path, command in commands(main) for words in bad_lines(command)]
    for words in lines:
        assert SECRET not in said_by(*words), words
    assert len(lines) > 150


@pytest.mark.parametrize("tool", [name for name in TOOLS if name != "kafka-run-class"])
def test_usage_errors_of_no_kafka_tool_show_a_secret(tool: str) -> None:
    for words in (
        ["--no-such-option", SECRET],
        [f"--no-such-option={SECRET}"],
        [f"-no-such-option={SECRET}"],
        [f"--he={SECRET}"],
        [f"--b={SECRET}"],
        ["--command-property", f"ssl.key.password:{SECRET}"],
        ["--command-property", f'sasl.jaas.config=Plain required password="{SECRET}";', "--nope"],
        *(["--property", pair] for pair in BAD_PAIRS),
        *(["--override", pair] for pair in BAD_PAIRS),
        [SECRET, SECRET, SECRET],
    ):
        line = ["compat", tool, *words, "--bootstrap-server", NOWHERE]
        assert SECRET not in said_by(*line), line


async def test_kafka_configs_shows_no_password(cli: Cli, broker: Broker) -> None:
    server = ("compat", "kafka-configs", "--bootstrap-server", broker.bootstrap_servers, "--alter")
    for words in (
        ("--user", "alice", "--add-config", f"SCRAM-SHA-256=[iterations=20000,password={SECRET}]"),
        ("--user", "alice", f"--add-config=SCRAM-SHA-256=[iterations=1,password={SECRET}]"),
        ("--user", "alice", "--add-config", f"SCRAM-SHA-256=[password={SECRET}],SCRAM-SHA-512=[x]"),
        ("--user", "alice", "--add-config", f"SCRAM-SHA-256={SECRET}"),
        ("--user", "alice", "--add-config", f"SCRAM-SHA-256=password=a,{SECRET}"),
        ("--user", "alice", "--add-config", f"SCRAM-SHA-256=password=a,{SECRET}=b"),
        ("--broker", "1", "--add-config", f"ssl.keystore.password={SECRET}"),
        ("--broker", "1", "--add-config", f"ssl.key.password=a,{SECRET}=b"),
        ("--broker", "1", "--add-conf", f"listener.name.no.ssl.key.password={SECRET},num.io=x"),
        ("--topic", "t", "--add-config", f"ssl.key.passwort={SECRET}"),
        ("--topic", "t", f"--add-c=sasl.jaas.config=[a b=\"{SECRET}\"]"),
    ):  # fmt: skip
        assert SECRET not in (await cli(*server, *words, status=1)).output, words


def test_kafka_configs_shows_words_as_they_are_or_hides_their_values(
    pytestconfig: pytest.Config,
) -> None:
    """Public settings stay readable; one secret anywhere in --add-config hides all of its text."""
    random = Random(pytestconfig.getoption("--seed"))
    public = ("retention.ms=7", "cleanup.policy=[compact,delete]", "num.io.threads=2")
    secret = (f"ssl.key.password={SECRET}", f"SCRAM-SHA-256=[password={SECRET}]", SECRET)
    for _ in range(200):
        texts = [
            ",".join(random.choice(public) for _ in range(random.randint(1, 3))) for _ in range(2)
        ]
        hides = [random.random() < 0.5 for _ in texts]
        given, expected = [], []
        for text, is_hidden in zip(texts, hides, strict=True):
            whole = f"{text},{random.choice(secret)}" if is_hidden else text
            option = random.choice(("--add-config", "--add-co", "--add-config=", "--add="))
            shown = "[hidden]" if is_hidden else text
            if option.endswith("="):
                given.append(option + whole)
                expected.append(option + shown)
            else:
                given += [option, whole]
                expected += [option, shown]
        before, behind = ["--alter", "--topic", "a"], ["--add-config-file", "f"]
        assert without_secrets([*before, *given, *behind]) == " ".join(
            [*before, *expected, *behind]
        )


def test_settings_that_cannot_be_read_show_no_secret() -> None:
    for pair in BAD_PAIRS:
        assert SECRET not in said_by("-X", pair, "topic", "list")
        assert SECRET not in said_by("config", "set", pair, "--default", "-b", NOWHERE)
