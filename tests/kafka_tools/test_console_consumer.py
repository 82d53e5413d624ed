"""kafka-console-consumer: timeout."""

from __future__ import annotations

from kbroker.broker import Broker

from ..commands import Cli


async def test_console_consumer_without_records_times_out(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "silent")
    done = await cli("compat", "kafka-console-consumer", *server, "--timeout-ms", "200")
    assert done.stdout == ""
    assert "TimeoutException" in done.stderr
