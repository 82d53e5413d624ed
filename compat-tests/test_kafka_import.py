"""`kbroker log import` of a data directory of Apache Kafka 4.4, compared with that Kafka.

A stopped Kafka's directory is imported. Then Kafka starts again on it, kbroker starts on the
imported one, and clients must read the same from both and continue in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from harness.brokers import ApacheBroker, Broker, KbrokerBroker
from harness.imported_state import (
    KAFKA_ONLY,
    PROPERTIES,
    Author,
    Members,
    continuations,
    observe,
)

from kbroker.cli import main

CLIENT = "command line"
NETWORKS = ("10.0.0.0/8", "2001:db8::/32", "127.0.0.1", "*")


def ask(*words: str, broker: Broker | None = None) -> str:
    """Run a command of kbroker and return its output."""
    environ = {"KBROKER_PROFILES": "/nonexistent"}
    if broker is not None:
        environ["KBROKER_BOOTSTRAP"] = broker.address
    done = CliRunner(env=environ).invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def secure(broker: Broker, directory: Path) -> None:
    """Create SCRAM users, ACLs for addresses and networks, and quotas of all entities."""
    password = directory / "password"
    password.write_text("a long password")
    for name, mechanism in (("bob", "256"), ("bob", "512"), ("carol", "256")):
        words = ("--mechanism", f"SCRAM-SHA-{mechanism}", "--password-file", str(password))
        ask("security", "user", "add", name, *words, broker=broker)
    ask("security", "user", "remove", "--yes", "carol", broker=broker)
    for host in NETWORKS:
        bob = ("--principal", "bob", "--host", host, "--operation", "read")
        ask("security", "acl", "add", *bob, "--topic", "codecs", broker=broker)
    deny = ("--deny", "--operation", "write", "--topic", "private-", "--prefixed")
    ask("security", "acl", "add", "--principal", "bob", *deny, broker=broker)
    for limits in (
        ("producer_byte_rate=1000000", "request_percentage=12.5", "--user", "bob"),
        ("consumer_byte_rate=2000000", "--user", "<default>", "--client-id", "one"),
        ("controller_mutation_rate=7.5", "--client-id", "<default>"),
        ("connection_creation_rate=9", "--ip", "<default>"),
    ):
        ask("cluster", "quotas", "set", *limits, broker=broker)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApacheBroker, Members]]:
    """Return a stopped Kafka with all kinds of data; it was restarted once in between."""
    directory = tmp_path_factory.mktemp("apache")
    broker = ApacheBroker(directory, PROPERTIES | KAFKA_ONLY)
    members = Members()
    try:
        broker.start()
        with Author(broker.address, members) as author:
            author.create_topics()
            author.alter_configs()
            author.write_records()
            author.write_transactions(last=False)
        secure(broker, directory)
        broker.stop()
        broker.start()
        with Author(broker.address, members) as author:
            author.write_transactions(last=True)
            author.join_groups()
            author.share()
            author.wait_until_compacted()
        broker.stop()
        yield broker, members
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def both(
    written: tuple[ApacheBroker, Members], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, Broker]]:
    """Return kbroker on the imported directory, and Kafka on its own one."""
    apache, _ = written
    ours = KbrokerBroker(tmp_path_factory.mktemp("kbroker"), PROPERTIES)
    output = ask("log", "import", str(apache.data_dir), "--data-dir", str(ours.data_dir))
    print(output)
    ask("log", "verify", str(ours.data_dir))
    try:
        apache.start()
        ours.start()
        yield ours, apache
    finally:
        ours.kill()
        apache.kill()


def test_metadata_log_has_a_snapshot(written: tuple[ApacheBroker, Members]) -> None:
    log = written[0].data_dir / "__cluster_metadata-0"
    assert list(log.glob("*-*.checkpoint"))


def test_imported_data_equals_that_of_kafka(both: tuple[Broker, Broker]) -> None:
    ours, theirs = (observe(broker.address) for broker in both)
    print(f"\nfigures: {len(ours)} parts, {_count(ours)} values compared")
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if ours[name] != theirs[name]]
    report = [f"{name}:\n  ours   {ours[name]}\n  theirs {theirs[name]}" for name in differing]
    assert not differing, "\n".join(report)


def test_clients_continue_as_with_kafka(
    both: tuple[Broker, Broker], written: tuple[ApacheBroker, Members]
) -> None:
    ours, theirs = (continuations(broker.address, copy.deepcopy(written[1])) for broker in both)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other


def _count(value: Any) -> int:
    """Return the number of plain values in nested lists and dictionaries."""
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_count, value))
    return 1
