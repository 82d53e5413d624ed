"""Isolation of the brokers of different tests."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

from kbroker.testing import BrokerThread, LocalBroker

from ..limits import PROCESS_SECONDS

ROOT = Path(__file__).parents[2]


def test_client_of_earlier_test_finds_port_closed() -> None:
    """A producer of an earlier test keeps writing to the same topic name without effect."""
    thread = BrokerThread()
    with LocalBroker(topics={"orders": 1}, thread=thread) as broker:
        address = broker.bootstrap_servers
        late = KafkaProducer(
            bootstrap_servers=address,
            reconnect_backoff_ms=10,
            delivery_timeout_ms=2000,
            request_timeout_ms=1000,
        )
        late.send("orders", b"in time").get(10)
    with LocalBroker(topics={"orders": 1}, thread=thread) as broker:
        assert broker.bootstrap_servers != address
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        with pytest.raises(KafkaError):
            late.send("orders", b"late").get(10)
        assert broker.records("orders") == []
        late.close()
    thread.close()


@pytest.mark.slow
def test_ports_are_not_reused_soon() -> None:
    thread = BrokerThread()
    seen = set()
    for _ in range(50):
        with LocalBroker(thread=thread) as broker:
            seen.add(broker.bootstrap_servers)
    thread.close()
    assert len(seen) == 50


@pytest.mark.long
def test_hundred_tests_with_same_names_are_isolated(tmp_path: Path) -> None:
    """Run a tenth of the soak test, in two processes."""
    run = subprocess.run(
        [
            *[sys.executable, "-m", "pytest", "tests/isolation", "-q", "-p", "no:cacheprovider"],
            *["-n", "2", "--clusters", "100", f"--basetemp={tmp_path / 'runs'}"],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_SECONDS,
    )
    assert "100 passed" in run.stdout, run.stdout[-3000:]
