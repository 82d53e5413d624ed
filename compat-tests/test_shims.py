"""Transcripts of Kafka's own tools (tools/4.4/*.txt), run by `kbroker compat`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import pytest
from harness.brokers import Broker
from harness.places import COMPAT
from harness.shims import Shims, is_noise
from harness.tools import WITH_ACLS, Shell, Step, Tools, Transcript

from kbroker.kafka_tools import REPLACEMENTS, TOOLS

CLIENT = "kbroker compat"
# Commands whose output differs from Kafka's tools, with kbroker's output.
DIFFERENT_OUTPUT = {
    # kbroker's tool commits no leader epochs.
    "--offsets --verbose": [
        "GROUP TOPIC PARTITION LEADER-EPOCH CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID",
        "groups-one groups-b 0 - 10 10 0 - - -",
        "Consumer group 'groups-one' has no active members.",
    ],
    "OffsetsMessageFormatter": [],
    # kbroker's tool prints no warning.
    "--to-datetime 2099": [
        "GROUP TOPIC PARTITION NEW-OFFSET",
        "groups-one groups-b 0 10",
    ],
    # kbroker's tool exits with status 1.
    "--topic groups-missing --to-earliest": [
        "Error: Executing consumer group command failed due to This server does not host this topic-partition.",
        "[1]",
    ],
}
NAMES = (
    "topics",
    "consumer-groups",
    "configs",
    "console",
    "offsets",
    "cluster",
    "users",
    "quotas",
    "acls",
    "records",
)
COMMANDS = {*TOOLS, *REPLACEMENTS}
# Minimum number of supported commands per transcript.
COMMANDS_MIN = {
    "topics": 30,
    "consumer-groups": 40,
    "configs": 25,
    "console": 10,
    "offsets": 15,
    "cluster": 2,
    "users": 15,
    "quotas": 25,
    "acls": 20,
    "records": 14,
}
# Errors that Kafka's tool detects itself, with the error that the broker returns.
BROKER_ERRORS = {
    "Unknown topic config name: retention.mss": "Unknown topic config name: retention.mss; did you mean retention.ms?",
    "Invalid value soon for configuration retention.ms: Not a number of type LONG": "Invalid value soon for configuration retention.ms: expected an integer of at least -1",
}
# Arguments that kbroker's tool hides in errors unless all settings are known not to be secret.
SECRET_ARGUMENT = re.compile(
    r"(?<=with args ')(.*)--add-config (retention\.mss|no\.such|SCRAM-)[^']*"
)


@pytest.fixture(scope="module")
def listed(make_broker: Callable[..., Broker]) -> Broker:
    """Return a broker without other users, because transcripts list its topics and groups."""
    one = make_broker("shims", WITH_ACLS)
    one.start()
    return one


@pytest.mark.parametrize("name", NAMES)
def test_output_is_same_as_of_kafka_tools(
    name: str, listed: Broker, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("shims")
    variables = {"BROKER": listed.address, "TMP": str(directory)}
    shims = Shims(tools)
    shell = Shell(cast(Tools, shims), listed.name, variables)
    # Creates __consumer_offsets, which `kafka-topics --list` then lists.
    shims.run(
        "kafka-consumer-groups",
        "--bootstrap-server",
        listed.address,
        "--describe",
        "--group",
        "any",
    )
    transcript = Transcript.parse((COMPAT / f"tools/4.4/{name}.txt").read_text())
    differences = []
    for step in transcript.commands():
        if (tool := step.command.split()[0]) not in COMMANDS and tool != "write":
            break
        step.expected = [
            _said(line, listed.name)
            for line in step.expected
            if not is_noise(line.removeprefix(f"{listed.name}> "))
        ]
        for command, lines in DIFFERENT_OUTPUT.items():
            step.expected = lines if command in step.command else step.expected
        seen = shell.differs(step)
        if seen is not None:
            differences.append(_difference(step, seen))
    print(f"{name}: {shims.done} commands; left to Kafka's own tools: {len(shims.refused)}")
    print(*shims.refused, sep="\n")
    assert not differences, "\n\n".join(differences)
    assert shims.done >= COMMANDS_MIN[name]


def _said(line: str, broker: str) -> str:
    line = SECRET_ARGUMENT.sub(r"\1--add-config [hidden]", line)
    if broker == "kbroker" and not line.startswith("apache> "):
        for theirs, ours in BROKER_ERRORS.items():
            line = line.replace(theirs, ours) if line.endswith(theirs) else line
    return line


def _difference(step: Step, seen: list[str]) -> str:
    return step.text() + "\n".join(["the answer was:", *(f"    {line}" for line in seen)])
