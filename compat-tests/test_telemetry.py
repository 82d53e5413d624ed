"""Metrics that clients push (KIP-714), subscribed with Kafka's own tool."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from harness.clients import eventually
from harness.tools import Tools

from kbroker.testing import LocalBroker

CLIENT = "client metrics"
INTERVAL_MS = 200
WAIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def broker(tools: Tools) -> Iterator[LocalBroker]:
    """Start a broker with a metrics subscription created by Kafka's tool."""
    with LocalBroker(topics={"orders": 1}) as broker:
        done = tools.run(
            "kafka-client-metrics",
            *("--bootstrap-server", broker.bootstrap_servers, "--alter", "--name", "all"),
            *("--metrics", "*", "--interval", str(INTERVAL_MS)),
            *("--match", "client_id=.*-subscribed"),
        )
        assert done.status == 0, done
        yield broker


def metrics_of(broker: LocalBroker, client_id: str) -> str:
    """Return all metrics of a client."""
    return str(broker.explain.client(client_id))


def test_metrics_subscription_is_listed_and_described(broker: LocalBroker, tools: Tools) -> None:
    address = ("--bootstrap-server", broker.bootstrap_servers)
    assert "all" in tools.run("kafka-client-metrics", *address, "--list").stdout
    shown = tools.run("kafka-client-metrics", *address, "--describe", "--name", "all").stdout
    for each in ("metrics=*", f"interval.ms={INTERVAL_MS}", "match=client_id=.*-subscribed"):
        assert each in shown


def use_librdkafka(broker: LocalBroker, client_id: str, over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id})
    while not over.wait(0.05):
        producer.produce("orders", b"value")
        producer.flush(10)


def use_java(broker: LocalBroker, tools: Tools, client_id: str, over: threading.Event) -> None:
    while not over.is_set():
        tools.run(
            "kafka-producer-perf-test",
            *("--topic", "orders", "--num-records", "200", "--record-size", "100"),
            *("--throughput", "100", "--producer-props"),
            *(f"bootstrap.servers={broker.bootstrap_servers}", f"client.id={client_id}"),
        )


@pytest.mark.parametrize(
    ("library", "metric"),
    [
        ("librdkafka", r"org\.apache\.kafka\.producer\.connection\.creation\.total\{.*\} \d"),
        ("java", r"org\.apache\.kafka\.producer\.[a-z.]*\{.*\} \d"),
    ],
)
def test_client_metrics_are_received(
    library: str, metric: str, broker: LocalBroker, tools: Tools
) -> None:
    over = threading.Event()
    client_id = f"{library}-subscribed"
    work: dict[str, Callable[[], None]] = {
        "librdkafka": lambda: use_librdkafka(broker, client_id, over),
        "java": lambda: use_java(broker, tools, client_id, over),
    }
    thread = threading.Thread(target=work[library])
    thread.start()
    try:
        text = eventually(
            lambda: metrics_of(broker, client_id),
            lambda seen: re.search(metric, seen) is not None,
            "metrics",
            WAIT_SECONDS,
        )
    finally:
        over.set()
        thread.join()
    assert "cannot parse" not in text


def test_client_outside_subscription_sends_no_metrics(broker: LocalBroker) -> None:
    over = threading.Event()
    thread = threading.Thread(target=use_librdkafka, args=(broker, "other", over))
    thread.start()
    threading.Event().wait(5 * INTERVAL_MS / 1000)
    over.set()
    thread.join()
    assert metrics_of(broker, "other") == "client other has sent no metrics (KIP-714)"
