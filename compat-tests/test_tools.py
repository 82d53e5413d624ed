"""Transcripts of each command of Kafka's own tools (tools/*/*.txt), equal on both brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.brokers import Broker
from harness.places import COMPAT
from harness.tools import WITH_ACLS, Shell, Step, Tools, Transcript, fits

CLIENT = "java tools"
# Transcripts for a single broker. Those of tools/nodes are for three nodes.
TRANSCRIPTS = sorted((COMPAT / "tools").glob("[34].*/*.txt"))


@pytest.fixture(scope="module")
def shells(
    make_broker: Callable[..., Broker],
    tools: Tools,
    old_tools: Tools,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Shell]:
    """Return shells by tool version. Their broker has no topics of other tests."""
    broker = make_broker("tools", WITH_ACLS, data_dirs=2)
    broker.start()
    directory = tmp_path_factory.mktemp("transcripts")
    data, other = map(str, broker.data_dirs)
    variables = {"BROKER": broker.address, "OTHER": other, "DATA": data, "TMP": str(directory)}
    return {
        "4.4": Shell(tools, broker.name, variables),
        "3.9": Shell(old_tools, broker.name, variables),
    }


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_tool_transcript_matches(path: Path, shells: dict[str, Shell], bless: bool) -> None:
    shell = shells[path.parent.name]
    transcript = Transcript.parse(path.read_text())
    differences = []
    for step in transcript.commands():
        seen = shell.differs(step)
        if seen is not None:
            differences.append(difference(step, seen))
            step.bless(shell.broker, seen)
    if bless:
        path.write_text(transcript.text())
    assert not differences or bless, "\n\n".join(differences)


@pytest.mark.parametrize(
    ("expected", "seen", "fit"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a"], False),
        (["a"], ["a", "b"], False),
        ([r"\d+ ms (re)"], ["17 ms"], True),
        ([r"\d+ ms (re)"], ["17 ms and more"], False),
    ],
)
def test_line_patterns_match(expected: list[str], seen: list[str], fit: bool) -> None:
    assert fits(expected, seen) is fit


def test_wrong_transcript_is_reported(shells: dict[str, Shell]) -> None:
    """Guards the tests above: a wrong transcript must fail."""
    text = "$ kafka-cluster cluster-id --bootstrap-server $BROKER\nCluster ID: another\n"
    (step,) = Transcript.parse(text).commands()
    seen = shells["4.4"].differs(step)
    assert seen is not None
    assert "Cluster ID: another" in difference(step, seen)
    step.bless(shells["4.4"].broker, seen)
    assert shells["4.4"].differs(step) is None
    other = "apache" if shells["4.4"].broker == "kbroker" else "kbroker"
    assert step.expected_of(other) == ["Cluster ID: another"]


def test_failed_tool_prints_exit_status(shells: dict[str, Shell]) -> None:
    (step,) = Transcript.parse("$ kafka-topics --list\n").commands()
    seen = shells["4.4"].differs(step)
    assert seen is not None
    assert seen[-1] == "[1]"


def difference(step: Step, seen: list[str]) -> str:
    """Return the expected and the actual output. `--bless` accepts the latter."""
    lines = ["the broker's answer was:", *(f"    {line}" for line in seen)]
    return step.text() + "\n".join(lines)
