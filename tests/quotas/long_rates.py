"""Quotas of 1 MB/s for a producer and a consumer, measured with kafka-python over 33 s."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.quotas import alter_quotas

from ..many.server import Server
from ..wire import Wire, batch, connected, create_topic, produce
from .greedy import POLITE, STORED, TOPIC

MEGABYTE = 1_000_000
# Three times the quota windows: each permits a burst, as in Kafka.
SECONDS = 33
STORED_BYTES = 60 * MEGABYTE
# Size of the stored batches that the consumer reads.
BATCH_VALUES, VALUE_BYTES = 16, 1000
# Permitted relative deviation from the quota.
TOLERANCE = 0.1
# Maximum p99 of the polite client, relative to its p99 alone.
LONGER_MAX = 2.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "server", descriptors_max=10_000)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def run(role: str, server: Server, seconds: float, into: dict[str, Any]) -> None:
    """Run a client, and keep its report under its role."""
    command = [sys.executable, "-m", "tests.quotas.greedy", role]
    command += [str(server.endpoint[1]), str(seconds)]
    done = await trio.run_process(command, capture_stdout=True, stdin=subprocess.DEVNULL)
    into[role] = json.loads(done.stdout)


async def store(wire: Wire) -> None:
    """Store the records for the consumer."""
    topic = await create_topic(wire, STORED)
    values = [b"v" * VALUE_BYTES] * BATCH_VALUES
    for _ in range(STORED_BYTES // (BATCH_VALUES * VALUE_BYTES)):
        await produce(wire, topic, batch(values))


@pytest.mark.parametrize(
    ("role", "key"), [("produce", "producer_byte_rate"), ("consume", "consumer_byte_rate")]
)
async def test_quota_limits_rate_and_other_client_stays_fast(
    role: str, key: str, server: Server
) -> None:
    async with connected(server.endpoint) as wire:
        await create_topic(wire, TOPIC)
        await create_topic(wire, POLITE)
        await store(wire)
    async with open_cluster([Endpoint(*server.endpoint)], "quotas") as cluster:
        await alter_quotas(cluster, {"client-id": "greedy"}, {key: MEGABYTE})
    alone: dict[str, Any] = {}
    await run("polite", server, SECONDS / 2, alone)
    together: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        for each in (role, "polite"):
            nursery.start_soon(partial(run, each, server, SECONDS, together))
    first, rate = (together[role][each] / MEGABYTE for each in ("first", "then"))
    longer = together["polite"]["p99"] / alone["polite"]["p99"]
    print(
        f"\nfigures: a quota of 1 MB/s to {role}: {rate:.3f} MB/s over {SECONDS} s "
        f"({first:.3f} from the start); p99 of another "
        f"client {alone['polite']['p99'] * 1000:.2f} ms alone, "
        f"{together['polite']['p99'] * 1000:.2f} ms next to it"
    )
    assert abs(rate - 1) <= TOLERANCE
    assert longer <= LONGER_MAX
