"""Debug logs of Java's clients 4.4 with kbroker, compared with those with Apache Kafka 4.4.

Every client of the library and Kafka Streams run against both brokers. They must send the same
requests in the same versions, get the same errors, and log the same warnings.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.brokers import Broker, FixedQuorumBroker, KbrokerBroker
from harness.clients import eventually
from harness.java import command_line
from harness.places import COMPAT
from harness.streams import PROTOCOL_SETTINGS, StreamsApplication
from harness.traffic import Feeder, Reader, Record, create_topics, topics

CLIENT = "java"
SECONDS = 180.0
RESULTS = 50
NOW_MS = int(time.time() * 1000)
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
}
SECTION = re.compile(r"== (.*)")
RESULT = re.compile(r"result (\w+) (.*)")
REQUEST = re.compile(r"Sending (\w+) request with header RequestHeader\(.*?apiVersion=(\d+)")
RESPONSE = re.compile(r"Received (\w+) response from node \S+ for request .*?\): (\w+\(.*)")
ERROR_CODE = re.compile(r"rrorCode=(-?\d+)")
COMPLAINT = re.compile(r"(?:WARN|ERROR) (\w+): (.*)")
# Words of a log line that differ between any two runs.
GENERATED = re.compile(r"[\w-]*\d[\w.:-]*")
# Codes that a client gets if it asks too early: a coordinator loads, a leader or an ID is missing,
# a transaction ends, a group rebalances.
TOO_EARLY = {3, 5, 14, 15, 16, 27, 51, 100}
# Warnings of such codes and states, of the directory of this test, and with kbroker's own words.
IGNORED_COMPLAINTS = (
    "CONCURRENT_TRANSACTIONS",
    "Membership is in the following statuses",
    "Resolved state.dir",
    "Unregister broker request",
)
# Requests that only one broker asks for: kbroker stores topology descriptions, and Kafka does so
# only with a plugin.
OTHER_REQUESTS = {("streams", "STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE", 0)}
# Configuration of logs of what network clients send and receive.
LOGS = "log4j2-clients.properties"


@dataclass(slots=True)
class ClientLog:
    """Activity of a client, by the name of its section."""

    requests: set[tuple[str, str, int]] = field(default_factory=set)
    errors: set[tuple[str, str, int]] = field(default_factory=set)
    complaints: set[tuple[str, str]] = field(default_factory=set)
    results: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[str], section: str = "") -> ClientLog:
        """Parse the log of a client."""
        log = cls()
        for line in lines:
            if match := SECTION.match(line):
                section = match[1]
            elif match := RESULT.match(line):
                # The words of an error are not compared, only its class.
                log.results.append((match[1], match[2].partition(":")[0]))
            elif match := REQUEST.search(line):
                log.requests.add((section, match[1], int(match[2])))
            elif match := RESPONSE.search(line):
                codes = set(map(int, ERROR_CODE.findall(match[2]))) - TOO_EARLY - {0}
                log.errors |= {(section, match[1], code) for code in codes}
            elif any(each in line for each in IGNORED_COMPLAINTS):
                continue
            elif match := COMPLAINT.match(line):
                text = GENERATED.sub("#", f"{match[1]}: {match[2]}")
                log.complaints.add((section, text))
        return log

    def differences(self, other: ClientLog) -> Iterator[str]:
        """Yield what differs from the log of the same client with Apache Kafka."""
        for what in ("requests", "errors", "complaints"):
            ours, theirs = getattr(self, what) - OTHER_REQUESTS, getattr(other, what)
            yield from (f"{what}: only with kbroker: {row}" for row in sorted(ours - theirs))
            yield from (f"{what}: only with Kafka: {row}" for row in sorted(theirs - ours))
        for mine, its in zip(self.results, other.results, strict=True):
            if mine != its:
                yield f"results: kbroker {mine}, Kafka {its}"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """Start kbroker and Apache Kafka."""
    both = (
        KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES),
        FixedQuorumBroker(tmp_path_factory.mktemp("apache"), PROPERTIES),
    )
    try:
        for broker in both:
            broker.start()
        yield both
    finally:
        for broker in both:
            broker.kill()


def test_clients_do_the_same_as_with_kafka(brokers: tuple[Broker, Broker], tmp_path: Path) -> None:
    source = str(COMPAT / "java" / "LoggedClients.java")
    logs = []
    for broker in brokers:
        command = command_line("kafka-4.4", source, broker.address, logs=LOGS)
        path = tmp_path / f"{broker.name}.log"
        with path.open("wb") as file:
            subprocess.run(command, stdout=file, stderr=file, timeout=SECONDS, check=True)
        logs.append(ClientLog.of(path.read_text(errors="replace").splitlines()))
    ours, theirs = logs
    print(f"\nfigures: {len(ours.requests)} requests by client, {len(ours.results)} results")
    assert len(theirs.requests) > 50
    differences = list(ours.differences(theirs))
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("protocol", PROTOCOL_SETTINGS)
def test_streams_do_the_same_as_with_kafka(
    brokers: tuple[Broker, Broker], tmp_path: Path, protocol: str
) -> None:
    ours, theirs = (_count_words(broker, tmp_path / broker.name, protocol) for broker in brokers)
    assert len(theirs.requests) > 10
    differences = list(ours.differences(theirs))
    assert not differences, "\n".join(differences)


def wait_for_results(application: StreamsApplication, count: Callable[[], int]) -> None:
    """Wait until a running application has written results."""

    def check_and_count() -> int:
        application.check()
        return count()

    eventually(check_and_count, lambda found: found > RESULTS, "results", SECONDS)


def _count_words(broker: Broker, directory: Path, protocol: str) -> ClientLog:
    """Count words until there are results, and return the log of the application."""
    directory.mkdir()
    missing = {"lines", "counts"} - topics(broker.address)
    if missing:
        create_topics(broker.address, 2, *missing)
    feeder = Feeder(broker.address, lambda step: [Record("lines", None, f"a b {step}", NOW_MS)])
    feeder.start()
    application = StreamsApplication(
        "words",
        broker.address,
        directory,
        settings={"application.id": f"words-{protocol}"},
        protocol=protocol,
        logs=LOGS,
    )
    reader = Reader(broker.address)
    before = len(reader.read("counts"))
    application.start()
    try:
        eventually(
            lambda: len(reader.read("counts")), lambda n: n > before + 50, "results", SECONDS
        )
        feeder.stop()
        application.stop()
    finally:
        feeder.stop()
        application.kill()
    log = (directory / "streams.log").read_text(errors="replace")
    return ClientLog.of(log.splitlines(), protocol)
