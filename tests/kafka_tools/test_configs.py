"""kafka-configs: secrets in its arguments."""

from __future__ import annotations

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
