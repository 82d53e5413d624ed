"""Bad input: whatever a client sends gets an answer that can be read, or a closed connection."""

from __future__ import annotations

import random
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.client import check_round_trip
from kbroker.config import BrokerConfig
from kbroker.protocol.api_keys import ApiKey
from kbroker.registry import load_apis
from kbroker.server import Listener

from ..wire import connected
from .mutations import GROUP, TOPIC, frame
from .runner import Fuzzer, Report

FRAMES_PER_BROKER = 2000
"""What frames create stays; after so many a new broker starts."""
SOCKET_FRAMES = 500
MEMORY_MAX = 300 << 20


@asynccontextmanager
async def fuzzed_broker() -> AsyncIterator[Broker]:
    config = BrokerConfig.load(options={"group.min.session.timeout.ms": "1"})
    listeners = [Listener("PLAINTEXT", "127.0.0.1", 0)]
    async with open_broker(config, data_dir=None, listeners=listeners) as broker:
        await broker.create_topic(TOPIC, 2)
        await broker.node.groups.create_offsets_topic()
        yield broker


async def fuzz(seed: int, count: int) -> Report:
    rng = random.Random(seed)
    report = Report()
    apis = load_apis()
    while count > 0:
        part = min(count, FRAMES_PER_BROKER)
        count -= part
        async with fuzzed_broker() as broker:
            fuzzer = Fuzzer(broker.node, apis)
            fuzzer.report = report
            await fuzzer.run(frame(list(apis.values()), rng) for _ in range(part))
            await check_round_trip(*broker.endpoint)
    return report


async def test_no_frame_makes_the_broker_stumble(pytestconfig: pytest.Config) -> None:
    seed, count = pytestconfig.getoption("seed"), pytestconfig.getoption("frames")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = await fuzz(seed, count)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print("\n" + "\n".join(report.lines()))
    print(f"seed {seed}, memory grew by {grown >> 20} MiB")
    assert report.failures == []
    assert report.frames == count
    assert sum(report.handled.values()) >= count / 2
    assert set(report.handled) == {api.key.api_name for api in load_apis().values()}
    assert grown < MEMORY_MAX


async def test_frames_over_sockets_leave_other_clients_alone(pytestconfig: pytest.Config) -> None:
    rng = random.Random(pytestconfig.getoption("seed"))
    apis = list(load_apis().values())
    async with fuzzed_broker() as broker, connected(broker.endpoint) as bystander:
        for number in range(SOCKET_FRAMES):
            async with connected(broker.endpoint) as wire:
                await wire.send_bytes(frame(apis, rng))
            if number % 50 == 0:
                assert await bystander.works()
        assert await bystander.works()
        assert broker.node.unhandled_errors == 0


async def test_a_handler_that_raises_is_reported() -> None:
    """The harness sees a defect when there is one."""

    def broken(context: Any, request: Any) -> Any:
        if request.group_id == GROUP:
            raise IndexError("planted")
        return apis[ApiKey.HEARTBEAT].handler(context, request)

    apis = load_apis()
    planted = {**apis, ApiKey.HEARTBEAT: replace(apis[ApiKey.HEARTBEAT], handler=broken)}
    rng = random.Random(1)
    async with fuzzed_broker() as broker:
        fuzzer = Fuzzer(broker.node, planted)
        await fuzzer.run(frame([planted[ApiKey.HEARTBEAT]], rng) for _ in range(200))
    assert fuzzer.report.failures
    assert all("an unexpected error" in failure for failure in fuzzer.report.failures)


async def test_an_answer_that_cannot_be_read_is_reported() -> None:
    def broken(context: Any, request: Any) -> Any:
        return apis[ApiKey.LIST_GROUPS].request_class()  # not a response

    apis = load_apis()
    planted = {**apis, ApiKey.HEARTBEAT: replace(apis[ApiKey.HEARTBEAT], handler=broken)}
    rng = random.Random(2)
    async with fuzzed_broker() as broker:
        fuzzer = Fuzzer(broker.node, planted)
        await fuzzer.run(frame([planted[ApiKey.HEARTBEAT]], rng) for _ in range(100))
    assert fuzzer.report.failures
