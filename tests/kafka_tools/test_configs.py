"""kafka-configs: secrets in its arguments, and levels of loggers."""

from __future__ import annotations

import logging
from random import Random

import pytest

from kbroker.broker import Broker
from kbroker.kafka_tools.configs import without_secrets

from ..cli.secret_words import SECRET
from ..commands import Cli


async def test_kafka_configs_hides_passwords(cli: Cli, broker: Broker) -> None:
    server = ("compat", "kafka-configs", "--bootstrap-server", broker.bootstrap_servers, "--alter")
    for arguments in (
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
        assert SECRET not in (await cli(*server, *arguments, status=1)).output, arguments


def test_kafka_configs_error_hides_arguments_unless_public(
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


async def test_kafka_configs_changes_levels_of_loggers(cli: Cli, broker: Broker) -> None:
    tool = ("compat", "kafka-configs", "--bootstrap-server", broker.bootstrap_servers)
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    levels = "kbroker.net=WARN,kbroker.node.node=TRACE"
    network, node = logging.getLogger("kbroker.net"), logging.getLogger("kbroker.node.node")
    changed = await cli(*tool, "--alter", *loggers, "--add-config", levels)
    assert changed.stdout == "Completed updating config for broker-logger 1.\n"
    assert (network.level, node.level) == (logging.WARNING, 5)
    first, *lines = (await cli(*tool, "--describe", "--broker-logger", "1")).stdout.splitlines()
    assert first == "Dynamic configs for broker-logger 1 are:"
    assert "  kbroker.net=WARN sensitive=false synonyms={}" in lines
    await cli(*tool, "--alter", *loggers, "--delete-config", "kbroker.net,kbroker.node.node")
    assert (network.level, node.level) == (logging.NOTSET, logging.NOTSET)
    missing = await cli(*tool, "--describe", "--broker-logger", "7")
    assert missing.stdout == (
        "The broker-logger '7' doesn't exist and doesn't have dynamic config.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--describe --entity-type broker-loggers", "must be specified with --describe of broker-"),
        (
            "--alter --entity-type broker-loggers --entity-default --add-config root=INFO",
            "An entity name must be specified with --alter of broker-loggers",
        ),
        (
            "--alter --broker-logger x --add-config root=INFO",
            "The entity name for broker-loggers must be a valid integer broker id, but it is: x",
        ),
        (
            "--alter --broker-logger 1 --add-config kbroker.x=INFO,x=DEBUG --delete-config y",
            "Invalid broker logger(s): y,kbroker.x,x",
        ),
        ("--alter --broker-logger 1 --add-config root=LOUD", "Invalid log level 'LOUD' of root"),
        ("--alter --broker-logger 1 --delete-config root", "root logger is not allowed"),
    ],
)
async def test_kafka_configs_rejects_invalid_changes_of_loggers(
    cli: Cli, broker: Broker, arguments: str, message: str
) -> None:
    tool = ("compat", "kafka-configs", "--bootstrap-server", broker.bootstrap_servers)
    error = (await cli(*tool, *arguments.split(), status=1)).stderr
    assert message in error
    assert "[hidden]" not in error
