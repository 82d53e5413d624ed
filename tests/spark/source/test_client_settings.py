"""Settings that the Java client accepts, although librdkafka has narrower limits."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, Producer

from kbroker.spark.source.client import (
    _WITHOUT_EFFECT,
    create_client,
    settings,
    warn_without_effect,
)
from kbroker.spark.source.options import SourceOptions

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
# The validators of ProducerConfig, ConsumerConfig and AdminClientConfig of kafka-clients 4.3.
INT_FROM_ZERO = (
    "auto.commit.interval.ms",
    "batch.size",
    "delivery.timeout.ms",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "max.partition.fetch.bytes",
    "max.request.size",
    "request.timeout.ms",
    "retries",
)
LONG_FROM_ZERO = (
    "buffer.memory",
    "linger.ms",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
)
OTHERS = {
    "connections.max.idle.ms": (-1, INT64_MAX),
    "max.in.flight.requests.per.connection": (1, INT32_MAX),
    "receive.buffer.bytes": (-1, INT32_MAX),
    "sasl.kerberos.min.time.before.relogin": (0, INT64_MAX),
    "send.buffer.bytes": (-1, INT32_MAX),
    "socket.connection.setup.timeout.max.ms": (0, INT64_MAX),
    "socket.connection.setup.timeout.ms": (0, INT64_MAX),
    "transaction.timeout.ms": (0, INT32_MAX),
}
LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(INT_FROM_ZERO, (0, INT32_MAX)),
    **dict.fromkeys(LONG_FROM_ZERO, (0, INT64_MAX)),
    **OTHERS,
}


def make_clients(kafka: Mapping[str, str]) -> None:
    """Create a consumer and a producer with options without their prefix."""
    chosen = settings({**SERVERS, **kafka})
    create_client(Consumer, chosen | {"group.id": "g"})
    create_client(Producer, chosen)


@pytest.mark.parametrize("name", LIMITS)
def test_extreme_values_of_java_client_are_accepted(name: str) -> None:
    for value in LIMITS[name]:
        make_clients({name: str(value)})


def test_extreme_values_are_accepted_together() -> None:
    for side in (0, 1):
        make_clients({name: str(limits[side]) for name, limits in LIMITS.items()})


def test_value_within_limits_is_kept() -> None:
    given = {"linger.ms": "20", "send.buffer.bytes": "65536", "retry.backoff.ms": "250"}
    found = settings(SERVERS | given)
    assert found["linger.ms"] == "20"
    assert found["socket.send.buffer.bytes"] == "65536"
    assert found["retry.backoff.ms"] == "250"


def test_minus_one_buffer_means_default_of_system() -> None:
    found = settings(SERVERS | {"receive.buffer.bytes": "-1", "send.buffer.bytes": "-1"})
    assert found["socket.receive.buffer.bytes"] == found["socket.send.buffer.bytes"] == 0


def test_compression_level_applies_to_chosen_codec_only() -> None:
    levels = {"compression.zstd.level": "7", "compression.gzip.level": "2"}
    assert settings(SERVERS | levels | {"compression.type": "zstd"})["compression.level"] == "7"
    assert "compression.level" not in settings(SERVERS | levels)


def test_java_only_options_are_accepted_with_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = dict.fromkeys(_WITHOUT_EFFECT, "1")
    make_clients(given)
    with caplog.at_level(logging.WARNING):
        warn_without_effect(given | {"linger.ms": "5"})
    assert all(name in caplog.text for name in _WITHOUT_EFFECT)
    assert "linger.ms" not in caplog.text


def test_retry_interval_of_zero_is_accepted() -> None:
    given = {f"kafka.{name}": value for name, value in SERVERS.items()} | {"subscribe": "t"}
    options = SourceOptions.parse(given | {"fetchOffset.retryIntervalMs": "0"})
    assert options.offset_retry_seconds == 0
    assert SourceOptions.parse(given).offset_retry_seconds > 0


def test_supported_options_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_without_effect({"linger.ms": "5"})
    assert caplog.text == ""
