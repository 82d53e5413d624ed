"""Errors of unsupported or invalid command lines."""

from __future__ import annotations

import pytest

from kbroker.kafka_tools import TOOLS

from ..cli.secret_words import BAD_PAIRS, NOWHERE, SECRET, output_of_failing
from ..commands import invoke


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("kafka-topics", "--list", "--what"), "--what; use `kbroker topic`"),
        (("kafka-topics", "--list"), "--bootstrap-server HOST:PORT is missing"),
        (("kafka-topics", "--list", "--bootstrap-server", "localhost:1"), "refuses the connection"),
        (("kafka-log-dirs.sh", "--list"), "use `kbroker cluster logdirs`"),
        (("kafka-run-class", "kafka.Mine"), "'kafka.Mine' is not supported"),
        (("kafka-whatever",), "unknown tool 'kafka-whatever'"),
        (("kafka-configs", "--describe", "--user", "a", "--ip", "b"), "name a user, a client"),
    ],
)
def test_unsupported_request_prints_alternative(arguments: tuple[str, ...], expected: str) -> None:
    assert expected in invoke("compat", *arguments, status=1).output


@pytest.mark.slow
@pytest.mark.parametrize("tool", [name for name in TOOLS if name != "kafka-run-class"])
def test_usage_errors_of_kafka_tools_hide_secrets(tool: str) -> None:
    for arguments in (
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
        line = ["compat", tool, *arguments, "--bootstrap-server", NOWHERE]
        assert SECRET not in output_of_failing(*line), line
