"""Mutated frames: no unhandled exception, bounded memory, valid responses or a clean close."""

from __future__ import annotations

import logging
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster.quota_changes import alter_quotas
from kbroker.handlers.context import Context
from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import encode_bytes
from kbroker.protocol.messages.groups import DeleteGroupsRequest, HeartbeatResponse
from kbroker.protocol.messages.topics import DeleteRecordsRequest
from kbroker.protocol.schema import Message, as_message
from kbroker.security.principals import Principal
from kbroker.security.quotas import Entity

from ..brokers import started
from ..wire import (
    ConnectionClosed,
    Topic,
    batch,
    connected,
    create_topic,
    fetch,
    frame,
    produce,
    until,
    values_of,
)
from . import harness
from .harness import ErrorCollector, Fuzzer, clear_limits, exchange, split_frames
from .mutate import ITEMS_MAX, change_value, mutated
from .tokens import tokens
from .world import VALID, World, make_world

# One in this many frames is also sent by a client without permissions.
DENIED_PART = 4


@pytest.mark.sized
@pytest.mark.slow
async def test_broker_survives_mutated_frames(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    frames = request.config.getoption("--frames")
    report = await Fuzzer(seed).run(frames)
    print("\n" + report.text())
    assert not report.failures, "\n\n".join(report.failures[:5])
    assert report.frames == frames
    assert report.reached >= frames / 2
    served = {api.key.name for api in load_apis().values()}
    assert set(report.hits) == served
    assert min(report.hits.values()) > frames / len(served) / 5


@pytest.mark.sized
@pytest.mark.slow
async def test_mutated_frames_of_client_that_may_do_nothing_change_nothing(
    request: pytest.FixtureRequest,
) -> None:
    """Each API checks permissions before it changes anything."""
    seed = request.config.getoption("--seed")
    frames = request.config.getoption("--frames") // DENIED_PART
    report = await Fuzzer(seed, denied=Principal("User", "mallory")).run(frames)
    print("\n" + report.text())
    assert not report.failures, "\n\n".join(report.failures[:5])
    assert report.reached >= frames / 2


@pytest.mark.sized
@pytest.mark.slow
async def test_broker_survives_mutated_frames_over_sockets(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Frames go to a broker with files: whole, in pieces, cut off, or with wrong lengths."""
    seed = request.config.getoption("--seed")
    frames = request.config.getoption("--frames") // 10
    alarm = ErrorCollector()
    logging.getLogger("kbroker").addHandler(alarm)
    outcomes: Counter[str] = Counter()
    try:
        async with started(tmp_path, max_connection_creation_rate=100_000) as broker:
            async with connected(broker.endpoint) as wire:
                world = await make_world(wire)
            versions = {ApiKey(key): api.versions for key, api in load_apis().items()}
            del versions[ApiKey.ALTER_CLIENT_QUOTAS]  # a quota would reject later clients
            numbers = iter(range(frames))

            async def client() -> None:
                for index in numbers:
                    rng = random.Random(f"socket {seed}/{index}")
                    key = rng.choice(list(versions))
                    frame = mutated(world, key, versions[key], rng)
                    outcomes[await over_socket(broker.endpoint, frame.data, rng)] += 1

            async with (
                connected(broker.endpoint) as bystander,
                trio.open_nursery() as nursery,
            ):
                for _ in range(8):
                    nursery.start_soon(client)
                while nursery.child_tasks:
                    assert await bystander.works()
                    await trio.sleep(0.2)
            await until(lambda: not broker.server.connections)
            assert broker.node.limits.memory.used == 0
            await clear_limits(broker.node.cluster)
            async with connected(broker.endpoint) as wire:
                topic = await create_topic(wire, "after.all")
                assert (await produce(wire, topic, batch([b"x"]))).error_code == 0
                assert values_of(await fetch(wire, topic)) == [b"x"]
    finally:
        logging.getLogger("kbroker").removeHandler(alarm)
    print(f"\nseed {seed}, over sockets: {dict(outcomes)}")
    assert alarm.messages == []
    assert sum(outcomes.values()) == frames
    assert outcomes["response"] > frames / 3


async def over_socket(endpoint: tuple[str, int], data: bytes, rng: random.Random) -> str:
    """Send a frame in one of several ways and return the outcome."""
    size = len(data)
    if rng.random() < 0.1:
        size = rng.choice((-1, 0, 1, size + 1, size - 1, 2**31 - 1, 0x16030100, 200_000_000))
    raw = struct.pack(">i", size) + data
    async with connected(endpoint) as wire:
        cut = rng.randrange(len(raw))
        await wire.send_bytes(raw[:cut])
        if rng.random() < 0.05:
            return "disconnected"
        await trio.lowlevel.checkpoint()
        await wire.send_bytes(raw[cut:])
        with trio.move_on_after(0.05):
            try:
                await wire.receive_frame()
            except ConnectionClosed:
                return "closed"
            return "response"
    return "no response"


# -- tests of the fuzzer


async def test_generated_requests_match_broker_codec() -> None:
    """The encoders of the tests and of the broker agree in every API and version."""
    apis = load_apis()
    assert set(VALID) == set(apis)
    async with started() as broker:
        async with connected(broker.endpoint) as wire:
            world = await make_world(wire)
        for key, api in apis.items():
            for version in api.versions:
                message = VALID[ApiKey(key)](world, random.Random(version))
                joined = b"".join(token.data for token in tokens(message, version))
                assert joined == encode_bytes(message, version)


async def run_with_handler(key: ApiKey, handler: Any, frames: int = 400) -> harness.Report:
    """Run the fuzzer against a broker with a single API, whose handler has a bug."""
    apis = load_apis()
    broken = {key: apis[key]._replace(handler=handler), 18: apis[18]}
    return await Fuzzer(1, broken).run(frames)


async def test_fuzzer_reports_raising_handler() -> None:
    def raises(ctx: Context, request: Any) -> Any:
        return HeartbeatResponse(throttle_time_ms=1 // (request.generation_id + 1))

    report = await run_with_handler(ApiKey.HEARTBEAT, raises)
    assert report.failures
    assert all("ZeroDivisionError" in failure for failure in report.failures)


@pytest.mark.slow
async def test_fuzzer_reports_error_of_asynchronous_handler() -> None:
    """The error occurs in an asynchronous handler, after the request was read."""

    async def raises(ctx: Context, request: Any) -> Any:
        raise ValueError("the generation is negative") if request.generation_id < -1 else Exception

    report = await run_with_handler(ApiKey.HEARTBEAT, raises)
    assert any("the generation is negative" in failure for failure in report.failures)


async def test_fuzzer_reports_response_that_cannot_be_encoded() -> None:
    def unencodable(_: Context, request: Any) -> Message:
        return as_message(HeartbeatResponse(error_code=request.generation_id))

    report = await run_with_handler(ApiKey.HEARTBEAT, unencodable)
    assert any("EncodeError" in failure for failure in report.failures)


async def test_fuzzer_reports_response_of_other_api() -> None:
    apis = load_apis()

    def respond_wrongly(_: Context, request: Message) -> Message:
        return as_message(HeartbeatResponse())

    broken = {11: apis[11]._replace(handler=respond_wrongly), 18: apis[18]}
    report = await Fuzzer(1, broken).run(200)
    assert any("decoded" in failure or "trailing bytes" in failure for failure in report.failures)


async def test_fuzzer_reports_memory_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RSS_GROWTH_MAX", 50_000_000)
    kept = []

    def hoards(ctx: Context, request: Any) -> Any:
        kept.append(b"x" * 1_000_000)
        return HeartbeatResponse()

    report = await run_with_handler(ApiKey.HEARTBEAT, hoards)
    assert any("memory grew" in failure for failure in report.failures)


async def test_clear_limits_removes_connection_quotas() -> None:
    async def come_back(broker: Broker) -> None:
        for number in range(100):
            async with connected(broker.endpoint) as wire:
                await create_topic(wire, f"t{number}")

    async with started() as broker:
        entity: Entity = {"ip": None}
        limits = {"connection_creation_rate": 1.0}
        await alter_quotas(broker.node.cluster, [(entity, limits)], cause="run_with_handler")
        with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
            await come_back(broker)
        await harness.clear_limits(broker.node.cluster)
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "after.all")


@pytest.mark.slow
async def test_client_that_closes_early_gets_no_truncated_response() -> None:
    rows = [DeleteRecordsRequest.Partition(partition_index=index) for index in range(30_000)]
    topic = DeleteRecordsRequest.Topic(name="missing", partitions=rows)
    ask = DeleteRecordsRequest(topics=[topic], timeout_ms=1000)
    request = frame(ApiKey.DELETE_RECORDS, 1, ask)
    async with started() as broker:
        for _ in range(20):
            sent, _ = await exchange(broker.node, load_apis(), request[4:])
            assert split_frames(sent) is not None


def test_repeated_mutations_of_array_stay_small() -> None:
    """Repeated repetition once produced a frame larger than the memory."""
    nothing = World(
        [Topic("t")],
        member_id="",
        generation=0,
        session_id=0,
        producer_id=0,
        transactional_producer_id=0,
    )
    for seed in range(2000):
        rng = random.Random(seed)
        message: Any = DeleteGroupsRequest(groups_names=["a", "b", "c"])
        for _ in range(3):
            change_value(message, 2, nothing, rng)
        assert len(message.groups_names or ()) <= 4 * ITEMS_MAX


@pytest.mark.slow
async def test_same_seed_gives_same_run() -> None:
    """Equal seeds give equal mutations of equal requests."""
    first, second = await Fuzzer(7).run(150), await Fuzzer(7).run(150)
    assert first.kinds == second.kinds
    assert first.hits == second.hits
    assert (await Fuzzer(8).run(150)).hits != first.hits
