"""Topologies of Kafka Streams 4.4 (KIP-1331) on kbroker, and on Apache Kafka with a plugin.

The plugin keeps topology descriptions in memory, because Apache Kafka comes without one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from harness.brokers import ApacheBroker, Broker, KbrokerBroker
from harness.clients import eventually
from harness.java import java
from harness.places import COMPAT, jars
from harness.streams import SHORT_SESSIONS, StreamsApplication
from harness.tools import COMMANDS

from kbroker.cli import main

CLIENT = "topology descriptions"
GROUP = "words"
PROPERTIES = SHORT_SESSIONS | {"offsets.topic.num.partitions": "1"}
PLUGIN = "TopologyDescriptions"
AVAILABLE_SECONDS = 60.0
DRAWING = """\
Subtopology 0
  KSTREAM-SOURCE-0000000000 (source: lines)
  -> KSTREAM-FLATMAPVALUES-0000000001
  -> words
  -> words-repartition-filter
  -> words-repartition-sink (sink: words-words-repartition)
Subtopology 1
  words-repartition-source (source: words-words-repartition)
  -> KSTREAM-AGGREGATE-0000000003 (stores: counts)
  -> KTABLE-TOSTREAM-0000000007
  -> KSTREAM-MAPVALUES-0000000008
  -> KSTREAM-SINK-0000000009 (sink: counts)
"""


class BrokerWithPlugin(ApacheBroker):
    """Apache Kafka with a plugin for topology descriptions."""

    def _prepare(self) -> None:
        super()._prepare()
        source = COMPAT / "java" / f"{PLUGIN}.java"
        command = ["javac", "-cp", jars("kafka-4.4"), "-d", str(self.directory), str(source)]
        subprocess.run(command, check=True)
        # The tool that formats the data directory would not find the class.
        with (self.directory / "server.properties").open("a") as file:
            file.write(f"group.streams.topology.description.plugin.class={PLUGIN}\n")

    def _command(self) -> list[str]:
        return [
            f"{each}:{self.directory}" if each == jars("kafka-4.4") else each
            for each in super()._command()
        ]


def ask(broker: Broker, *args: str) -> str:
    """Return the output of a command against a broker."""
    environ = {"KBROKER_BOOTSTRAP": broker.address, "KBROKER_PROFILES": "/nonexistent"}
    done = CliRunner(env=environ).invoke(main, args, catch_exceptions=False)
    return done.stdout


def described(broker: Broker) -> Any:
    """Return the topology description, or None while the group does not exist."""
    printed = ask(broker, "group", "describe", GROUP, "-o", "json")
    return json.loads(printed)[0]["topology_description"] if printed else None


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """Yield kbroker and Apache Kafka, each with a running application."""
    directory = tmp_path_factory.mktemp("topologies")
    both = (
        KbrokerBroker(directory / "kbroker", PROPERTIES),
        BrokerWithPlugin(directory / "apache", PROPERTIES),
    )
    applications: list[StreamsApplication] = []
    try:
        for broker in both:
            broker.start()
            for topic in ("lines", "counts"):
                ask(broker, "topic", "create", topic, "-p", "2")
            application = StreamsApplication(
                GROUP, broker.address, broker.directory, "at_least_once", protocol="streams"
            )
            application.start()
            applications.append(application)
        for broker in both:
            eventually(
                lambda broker=broker: described(broker),  # type: ignore[misc]
                lambda found: found is not None and found["status"] == "AVAILABLE",
                f"topology description of {broker.name}",
                AVAILABLE_SECONDS,
            )
        yield both
    finally:
        for application in applications:
            application.kill()
        for broker in both:
            broker.kill()


def test_described_topologies_are_equal(brokers: tuple[Broker, Broker]) -> None:
    ours, theirs = map(described, brokers)
    assert ours == theirs


def test_topology_is_drawn_from_source_to_sink(brokers: tuple[Broker, Broker]) -> None:
    for broker in brokers:
        assert DRAWING in ask(broker, "group", "describe", GROUP), broker.name


def test_kafka_tool_prints_equal_topologies(brokers: tuple[Broker, Broker]) -> None:
    ours, theirs = (
        java(
            "kafka-4.4",
            COMMANDS["kafka-streams-groups"],
            *("--bootstrap-server", broker.address, "--describe", "--topology", "--group", GROUP),
        )
        for broker in brokers
    )
    assert ours == theirs
    assert "Sub-topology: 1" in ours
