"""kafka-producer-perf-test: throughput and reports."""

from __future__ import annotations

import time

from kbroker.broker import Broker

from ..commands import Cli


async def test_perf_test_respects_throughput(cli: Cli, broker: Broker) -> None:
    began_at = time.monotonic()
    written = await cli(
        *("compat", "kafka-producer-perf-test", "--topic", "slow", "--num-records", "60"),
        *("--payload-monotonic", "--throughput", "100", "--reporting-interval", "200"),
        *("--bootstrap-server", broker.bootstrap_servers),
    )
    assert time.monotonic() - began_at >= 0.6
    *windows, last = written.stdout.splitlines()
    assert all(" max latency." in each for each in windows)
    assert last.startswith("60 records sent, ")
    counted = sum(int(each.split()[0]) for each in windows)
    assert 0 < counted <= 60
