"""Malformed frames and headers."""

from __future__ import annotations

import contextlib
import resource
import struct
from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.runtime.log_output import TextFormatter

from ..brokers import started
from ..wire import (
    ConnectionClosed,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
    request,
    until,
)
from .harness import release_memory, resident_bytes
from .tokens import uvarint

# A complete Metadata request.
METADATA_1 = struct.pack(">hhih", ApiKey.METADATA, 1, 9, -1) + struct.pack(">i", 0)


@pytest.fixture
async def bystander(broker: Broker) -> AsyncIterator[Wire]:
    """Return a second client, and check afterwards that it is unaffected."""
    async with connected(broker.endpoint) as other:
        assert await other.works()
        yield other
        assert await other.works()
        assert broker.node.context.error_log.unhandled_errors == 0


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# -- frames


@pytest.mark.parametrize("size", range(1, 8))
async def test_frame_shorter_than_header_closes_connection(
    broker: Broker, bystander: Wire, size: int
) -> None:
    async with connected(broker.endpoint) as wire:
        await wire.send_bytes(framed(bytes(size)))
        assert await wire.wait_closed() == b""


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        ("TLS alert", b"\x15\x03\x03\x00\x02\x02\x28", ""),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        ("HTTP post", b"POST /topics HTTP/1.1\r\n\r\n", "HTTP"),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", ""),
        ("Redis", b"*1\r\n$4\r\nPING\r\n", ""),
    ],
)
async def test_other_protocol_closes_connection_with_hint_in_log(
    broker: Broker,
    bystander: Wire,
    caplog: pytest.LogCaptureFixture,
    name: str,
    data: bytes,
    expected: str,
) -> None:
    """KAFKA-4090: the broker closes the connection and logs a hint about the protocol."""
    async with connected(broker.endpoint) as wire:
        await wire.send_bytes(data)
        assert await wire.wait_closed() == b""
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(lines) == 1
    assert expected in lines[0]


@pytest.mark.parametrize("part", [1, 3, 4, 5, 11, 12, 17])
async def test_incomplete_frame_gets_no_response(
    broker: Broker, bystander: Wire, part: int
) -> None:
    """The frame ends in its length, header or body: the broker closes without a response."""
    async with connected(broker.endpoint) as wire:
        await wire.send_bytes(framed(METADATA_1)[:part])
        await wire.stream.send_eof()
        assert await wire.wait_closed() == b""
    await until(lambda: len(broker.server.connections) == 1)


@pytest.mark.parametrize("fast", [2, 10, 16])
async def test_slow_first_request_closes_connection(fast: int) -> None:
    """The first request must be complete in time, wherever its bytes trickle."""
    async with started(connection_setup_timeout_ms=500) as broker:
        async with connected(broker.endpoint) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(wire.wait_closed)
            data = framed(METADATA_1 + bytes(1000))
            await wire.send_bytes(data[:fast])
            for i in range(fast, len(data)):
                await wire.send_bytes(data[i : i + 1])
                await trio.sleep(0.2)
                if not nursery.child_tasks:
                    break
        assert i < 30, "the broker closed the slow connection too late"


async def test_slow_later_request_closes_connection_as_idle() -> None:
    """An incomplete later request counts as idle time."""
    async with started(connections_max_idle_ms=500) as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        await wire.send_bytes(framed(METADATA_1)[:7])
        await wire.wait_closed()


async def test_large_frame_takes_memory_only_as_it_arrives(broker: Broker) -> None:
    """100 clients announce 100 MB each and send little."""
    before = resident_bytes()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            wire = await stack.enter_async_context(connected(broker.endpoint))
            await wire.send_bytes(struct.pack(">i", 100_000_000) + METADATA_1)
        await trio.sleep(0.3)
        assert resident_bytes() - before < 100_000_000
        async with connected(broker.endpoint) as other:
            assert await other.works()
    await until(lambda: not broker.server.connections)
    assert broker.node.limits.memory.used == 0


async def test_clients_that_never_read_do_not_affect_others(
    broker: Broker, bystander: Wire
) -> None:
    """100 clients request much and read nothing: memory stays bounded and others are served."""
    topic = await create_topic(bystander, "t")
    await produce(bystander, topic, batch([bytes(900_000)]))
    before = resident_bytes()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            wire = await stack.enter_async_context(connected(broker.endpoint))
            frame = wire.frame(ApiKey.FETCH, 12, fetch_request(topic))
            await wire.send_bytes(frame * 50)
        for _ in range(20):
            assert await bystander.works()
            await trio.sleep(0.01)
        # The records are views of one batch; the socket buffers belong to the kernel.
        assert resident_bytes() - before < 200_000_000
    await until(lambda: len(broker.server.connections) == 1)


@pytest.mark.slow
async def test_idle_connections_take_little_memory(request: pytest.FixtureRequest) -> None:
    """2,000 connections, or 10,000 in a soak test, within the limit of open files."""
    wanted = 10_000 if request.config.getoption("--frames") >= 100_000 else 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(wanted, (hard - 500) // 2)  # both ends are in this process
    release_memory()
    before = resident_bytes()
    try:
        async with (
            started(
                max_connections=20_000,
                max_connections_per_ip=20_000,
                max_connection_creation_rate=100_000,
                socket_listen_backlog_size=1000,
            ) as broker,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(count):
                client = stack.enter_context(trio.socket.socket())
                await client.connect(broker.endpoint)
            await until(lambda: len(broker.server.connections) == count)
            async with connected(broker.endpoint) as wire:
                for _ in range(10):
                    assert await wire.works()
            each = (resident_bytes() - before) / count
            print(f"\nfigures: {count} idle connections, {each:.0f} bytes each with both ends")
            assert each < 30_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connection_churn_does_not_affect_others(broker: Broker, bystander: Wire) -> None:
    async def storm() -> None:
        for _ in range(100):
            stream = await trio.open_tcp_stream(*broker.endpoint)
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(storm)
        while nursery.child_tasks:
            assert await bystander.works()
            await trio.sleep(0.02)
    await until(lambda: len(broker.server.connections) == 1)


async def test_half_closed_connection_receives_pending_responses(
    broker: Broker, bystander: Wire
) -> None:
    """After a client shuts down its sending side, it still receives pending responses."""
    async with connected(broker.endpoint) as wire:
        await wire.send_bytes(framed(METADATA_1) * 3)
        await wire.stream.send_eof()
        for _ in range(3):
            assert (await wire.receive_frame())[:4] == struct.pack(">i", 9)
        with pytest.raises(ConnectionClosed):
            await wire.receive_frame()


# -- headers


@pytest.mark.parametrize("key", [-32768, -1, 4, 5, 6, 7, 52, 95, 255, 1000, 32767])
async def test_unknown_api_key_closes_connection(broker: Broker, bystander: Wire, key: int) -> None:
    async with connected(broker.endpoint) as wire:
        await wire.send_bytes(framed(struct.pack(">hhih", key, 0, 1, -1) + bytes(50)))
        assert await wire.wait_closed() == b""


@pytest.mark.parametrize("version", [-32768, -1, 14, 100, 32767])
async def test_unsupported_version_closes_connection(
    broker: Broker, bystander: Wire, version: int
) -> None:
    async with connected(broker.endpoint) as wire:
        header = struct.pack(">hhih", ApiKey.METADATA, version, 1, -1)
        await wire.send_bytes(framed(header + bytes(50)))
        assert await wire.wait_closed() == b""


CLIENT_IDS = {
    "null": (b"\xff\xff", True),
    "empty": (b"\x00\x00", True),
    "longest": (b"\x7f\xff" + b"x" * 32767, True),
    "control characters": (b"\x00\x05a\n\x00\x1b\r", True),
    "not utf-8": (b"\x00\x02\xff\xfe", False),
    "half a character": (b"\x00\x01\xc3", False),
    "length -2": (b"\xff\xfe", False),
    "longer than the frame": (b"\x7f\xff" + b"x", False),
}


@pytest.mark.parametrize("case", CLIENT_IDS)
@pytest.mark.parametrize("version", [1, 9])
async def test_malformed_client_id_closes_connection(
    broker: Broker, bystander: Wire, case: str, version: int
) -> None:
    client_id, good = CLIENT_IDS[case]
    body = struct.pack(">i", 0) if version == 1 else b"\x00\x01\x00\x00\x00\x00"
    header = struct.pack(">hhi", ApiKey.METADATA, version, 9)
    async with connected(broker.endpoint) as wire:
        await wire.send_bytes(framed(header + client_id + body))
        if good:
            assert (await wire.receive_frame())[:4] == struct.pack(">i", 9)
        else:
            assert await wire.wait_closed() == b""


async def test_client_id_cannot_forge_log_lines(
    broker: Broker, bystander: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    ask = request(ApiKey.CREATE_TOPICS)
    ask.topics = [
        type(ask).Topic(name="t", num_partitions=1, replication_factor=1),
    ]
    caplog.set_level("INFO")
    async with connected(broker.endpoint) as wire:
        evil = "x\n12:00:00 ERROR   kbroker.node.node: the disk is gone"
        await wire.send(ApiKey.CREATE_TOPICS, 4, ask, client_id=evil)
        await wire.receive()
    lines = [TextFormatter("%(message)s").format(record) for record in caplog.records]
    assert any("the disk is gone" in line for line in lines), "the client ID is logged"
    assert not any("\n" in line for line in lines)


def flexible(tags: bytes) -> bytes:
    """Encode Metadata 9 with these header tags."""
    body = b"\x01\x00\x00\x00\x00"
    return struct.pack(">hhih", ApiKey.METADATA, 9, 9, -1) + tags + body


@pytest.mark.parametrize(
    ("case", "tags", "good"),
    [
        ("none", b"\x00", True),
        ("unknown ones", b"\x02\x07\x01a\x63\x03abc", True),
        ("as many as are allowed", b"\x40" + b"".join(b"%c\x00" % i for i in range(64)), True),
        ("too many", b"\x41" + b"".join(b"%c\x00" % i for i in range(65)), False),
        ("20 million", uvarint(20_000_000) + b"\x01\x00" * 100_000, False),
        ("size beyond the frame", b"\x01\x00\x7f", False),
        ("a size of 2^32 - 1", b"\x01\x00\xff\xff\xff\xff\x0f", False),
        ("a varint of six bytes", b"\x80\x80\x80\x80\x80\x00", False),
        ("cut", b"", False),
    ],
)
async def test_header_tags_are_skipped_or_close_connection(
    broker: Broker, bystander: Wire, case: str, tags: bytes, good: bool
) -> None:
    """CVE-2026-111115: the broker counts and skips tagged fields without keeping them."""
    before = resident_bytes()
    async with connected(broker.endpoint) as wire:
        data = flexible(tags) if tags else flexible(b"")[:10]
        await wire.send_bytes(framed(data))
        if good:
            assert (await wire.receive_frame())[:4] == struct.pack(">i", 9)
        else:
            assert await wire.wait_closed() == b""
    assert resident_bytes() - before < 30_000_000
