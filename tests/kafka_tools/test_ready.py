"""cub: the readiness check of Confluent's images."""

from __future__ import annotations

from kbroker.broker import Broker

from ..commands import Cli


async def test_cub_kafka_ready_waits_for_broker_count(cli: Cli, broker: Broker) -> None:
    await cli("compat", "cub", "kafka-ready", "-b", broker.bootstrap_servers, "1", "20")
    late = await cli(
        "compat", "cub", "kafka-ready", "2", "0", "-b", broker.bootstrap_servers, status=1
    )
    assert "Expected 2 brokers within 0 s: found 1" in late.stderr
