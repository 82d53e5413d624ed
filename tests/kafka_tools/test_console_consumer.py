"""kafka-console-consumer: when it ends."""

from __future__ import annotations

from kbroker.broker import Broker

from ..commands import Cli


async def test_a_consumer_that_nothing_comes_to_ends_in_time(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "silent")
    done = await cli("compat", "kafka-console-consumer", *server, "--timeout-ms", "200")
    assert done.stdout == ""
    assert "TimeoutException" in done.stderr
