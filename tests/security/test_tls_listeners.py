"""TLS listeners: responses to clients, and isolation from misbehaving clients."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from kbroker.broker import Broker, open_broker
from kbroker.client import check_round_trip
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Security
from kbroker.client.errors import CannotConnect
from kbroker.config import BrokerConfig
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.topics import CreateTopicsRequest
from kbroker.runtime.time_slices import StepThrottle

from ..brokers import started
from ..wire import (
    ANSWER_SECONDS,
    NEVER,
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    request,
    values_of,
)
from .certificates import Authority
from .clients import encrypted

NO_TOPICS = request(ApiKey.METADATA, topics=[])


@asynccontextmanager
async def secured(
    authority: Authority, data_dir: Path | None = None, *settings: str, nodes: int = 1
) -> AsyncIterator[Broker]:
    """Run a broker with one TLS listener."""
    own = ("listeners=SSL://127.0.0.1:0", f"ssl.keystore.location={authority.pem('server')}")
    config = BrokerConfig.load(options=["connection.setup.timeout.ms=3600000", *own, *settings])
    async with open_broker(
        config,
        data_dir=None if data_dir is None else str(data_dir),
        listeners=configured_listeners(config),
        nodes=nodes,
    ) as broker:
        yield broker
        assert not any(each.node.context.error_log.unhandled_errors for each in broker.nodes)


def mutual(authority: Authority) -> list[str]:
    """Return settings that require client certificates."""
    return [f"ssl.truststore.location={authority.trusted}", "ssl.client.auth=required"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("on_disk", [False, True])
async def test_records_round_trip_over_tls(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, on_disk: bool
) -> None:
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    values = [os.urandom(700_000) for _ in range(5)]
    async with (
        secured(authority, tmp_path / "data" if on_disk else None) as broker,
        encrypted(broker.endpoint, context) as wire,
    ):
        topic = await create_topic(wire, "t")
        for value in values:
            await produce(wire, topic, batch([value]))
        got = await fetch(wire, topic, partition_max_bytes=2**30)
        assert values_of(got) == values


async def test_pipelined_requests_are_answered_over_tls(authority: Authority) -> None:
    async with (
        secured(authority) as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        topic = await create_topic(wire, "t")
        value = os.urandom(20_000)
        await produce(wire, topic, batch([value]))
        asks = b"".join(wire.frame(ApiKey.FETCH, 12, fetch_request(topic)) for _ in range(300))
        await wire.stream.send_all(asks)
        for _ in range(300):
            response = await wire.receive()
            assert values_of(response.responses[0].partitions[0]) == [value]


async def test_slow_reader_gets_all_responses_in_order(authority: Authority) -> None:
    """Encrypted but unsent bytes precede later ones."""
    async with (
        secured(authority) as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        topic = await create_topic(wire, "t")
        value = os.urandom(900_000)
        await produce(wire, topic, batch([value]))
        for _ in range(40):
            await wire.send(ApiKey.FETCH, 12, fetch_request(topic, partition_max_bytes=2**30))
        await trio.sleep(0.2)
        for _ in range(40):
            response = await wire.receive()
            assert values_of(response.responses[0].partitions[0]) == [value]


async def test_request_after_large_request_is_processed(authority: Authority) -> None:
    """The request is decrypted with the end of the large request, and no further bytes arrive."""
    async with (
        secured(authority) as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        topic = await create_topic(wire, "t")
        large = produce_request(topic, batch([os.urandom(900_000)]))
        asks = [wire.frame(ApiKey.PRODUCE, 9, large), wire.frame(ApiKey.METADATA, 1, NO_TOPICS)]
        await wire.stream.send_all(b"".join(asks))
        await wire.receive()
        assert (await wire.receive()).brokers


async def test_rejected_handshake_sends_alert(authority: Authority) -> None:
    old = authority.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(authority, None, "ssl.enabled.protocols=TLSv1.3") as broker:
        with pytest.raises(trio.BrokenResourceError) as raised:
            async with encrypted(broker.endpoint, old):
                pass
    assert "ALERT_PROTOCOL_VERSION" in str(raised.value.__cause__)


async def test_delayed_fetch_is_answered_over_tls(authority: Authority) -> None:
    context = authority.context()
    async with (
        secured(authority) as broker,
        encrypted(broker.endpoint, context) as reader,
        encrypted(broker.endpoint, context) as wire,
    ):
        topic = await create_topic(wire, "t")
        await reader.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER, min_bytes=1))
        await produce(wire, topic, batch([b"late"]))
        response = await reader.receive()
        assert values_of(response.responses[0].partitions[0]) == [b"late"]


async def test_own_client_verifies_certificate(authority: Authority) -> None:
    async with secured(authority) as broker:
        metadata = await check_round_trip(*broker.endpoint, security=Security(authority.context()))
        assert metadata.cluster_id == broker.node.cluster.id
        with pytest.raises(OSError, match=r"set ssl\.truststore\.location"):
            await check_round_trip(
                *broker.endpoint, security=Security(ssl.create_default_context())
            )
        other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
        assert await check_round_trip(*broker.endpoint, security=Security(other))


async def test_own_client_reports_plaintext_listener(authority: Authority) -> None:
    async with started(connection_setup_timeout_ms=200) as broker:
        with pytest.raises(OSError, match=r"is it an SSL listener"):
            await check_round_trip(*broker.endpoint, security=Security(authority.context()))


async def test_failed_handshake_is_not_reported_as_missing_broker(authority: Authority) -> None:
    async with started(connection_setup_timeout_ms=200) as broker:
        security = Security(authority.context())
        async with open_cluster([broker.endpoint], security=security) as cluster:
            with pytest.raises(CannotConnect) as caught:
                await cluster.any()
    assert str(caught.value).endswith("; is it an SSL listener?")
    assert "kbroker serve" not in str(caught.value.hint)
    assert "docs/how-to/tls.md" in str(caught.value.hint)


async def test_mutual_tls_requires_trusted_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stranger = Authority(authority.directory, "stranger").pem("mallory")
    async with secured(authority, None, *mutual(authority)) as broker:
        context = authority.context(authority.pem("alice"))
        async with encrypted(broker.endpoint, context) as wire:
            assert await wire.works()
        for shown in (None, stranger):
            with pytest.raises((OSError, trio.BrokenResourceError, ConnectionClosed)):
                async with encrypted(broker.endpoint, authority.context(shown)) as wire:
                    await wire.works()  # in TLS 1.3 a client gets the error only now
        assert not broker.server.connections
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in caplog.text
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


async def test_plaintext_client_is_closed_and_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with secured(authority) as broker, connected(broker.endpoint) as wire:
        await wire.send(ApiKey.METADATA, 1, NO_TOPICS)
        await wire.wait_closed()
    assert "TLS handshake with 127.0.0.1 on listener SSL failed" in caplog.text


async def test_slow_handshakes_do_not_delay_other_clients(authority: Authority) -> None:
    async with secured(authority) as broker, AsyncExitStack() as stack:
        for _ in range(200):
            silent = await trio.open_tcp_stream(*broker.endpoint)
            await stack.enter_async_context(silent)
        with trio.fail_after(5):
            async with encrypted(broker.endpoint, authority.context()) as wire:
                assert await wire.works()


async def test_handshake_times_out(authority: Authority) -> None:
    async with secured(authority, None, "connection.setup.timeout.ms=100") as broker:
        stream = await trio.open_tcp_stream(*broker.endpoint)
        async with stream:
            with trio.fail_after(5):
                assert not await stream.receive_some(100)


async def test_delay_of_event_loop_does_not_count_against_handshake(authority: Authority) -> None:
    """Clients begin their handshakes during a delay that is longer than the timeout."""
    async with secured(authority, None, "connection.setup.timeout.ms=500") as broker:
        for _ in range(4):  # after a delay, tasks run in random order
            tcp = await trio.open_tcp_stream(*broker.endpoint)
            await trio.sleep(0.1)  # the broker accepts the connection
            tls, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = authority.context().wrap_bio(tls, hello, server_hostname="127.0.0.1")
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            os.write(tcp.socket.fileno(), hello.read())
            time.sleep(1.2)  # noqa: ASYNC251
            with trio.fail_after(ANSWER_SECONDS):
                assert await tcp.receive_some(1)
            await tcp.aclose()


async def test_wait_for_other_handshakes_does_not_count_against_client(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = StepThrottle.run

    async def run_late(self: StepThrottle, step: Callable[[], object]) -> object:
        await trio.sleep(1)
        return await run(self, step)

    monkeypatch.setattr(StepThrottle, "run", run_late)
    async with secured(authority, None, "connection.setup.timeout.ms=700") as broker:
        async with encrypted(broker.endpoint, authority.context()) as wire:
            assert await wire.works()
        async with await trio.open_tcp_stream(*broker.endpoint) as silent:
            with trio.fail_after(ANSWER_SECONDS):
                assert not await silent.receive_some(1)


async def test_stop_closes_handshaking_connections(authority: Authority) -> None:
    async with secured(authority) as broker:
        stream = await trio.open_tcp_stream(*broker.endpoint)
        await trio.testing.wait_all_tasks_blocked(0.05)
    async with stream:
        with trio.fail_after(5):
            assert not await stream.receive_some(100)


async def test_aborted_handshake_does_not_affect_other_clients(authority: Authority) -> None:
    async with secured(authority) as broker:
        for hello in (b"", b"\x16\x03\x01", os.urandom(100_000)):
            stream = await trio.open_tcp_stream(*broker.endpoint)
            async with stream:
                await stream.send_all(hello)
        async with encrypted(broker.endpoint, authority.context()) as wire:
            assert await wire.works()


async def test_damaged_tls_record_closes_connection(authority: Authority) -> None:
    async with secured(authority) as broker:
        tcp = await trio.open_tcp_stream(*broker.endpoint)
        stream = trio.SSLStream(tcp, authority.context(), server_hostname="127.0.0.1")
        await stream.do_handshake()
        await tcp.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await stream.receive_some(100)
        await trio.aclose_forcefully(stream)


async def test_broker_sends_close_notify(authority: Authority) -> None:
    """The alert tells a client that the stream is complete, and not cut."""
    async with secured(authority) as broker:
        tcp = await trio.open_tcp_stream(*broker.endpoint)
        stream = trio.SSLStream(tcp, authority.context(), server_hostname="127.0.0.1")
        await stream.do_handshake()
        await Wire(cast(Any, stream)).send(ApiKey.METADATA, 1, NO_TOPICS)
        await stream.receive_some(1)
        broker.server.close_connections()
        with trio.fail_after(5):
            while await stream.receive_some(1000):
                pass
        await trio.aclose_forcefully(stream)


async def test_replaced_certificate_is_used_for_next_client(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.security.tls.CHECK_SECONDS", 0)
    other = Authority(authority.directory, "other")
    async with (
        secured(authority) as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        (authority.directory / "server.pem").write_bytes(other.pem("new").read_bytes())
        async with encrypted(broker.endpoint, other.context()) as second:
            assert await second.works()
        assert await wire.works()


async def test_nodes_replicate_over_mutual_tls(authority: Authority) -> None:
    async with secured(authority, None, *mutual(authority), nodes=3) as broker:
        context = authority.context(authority.pem("alice"))
        async with encrypted(broker.endpoint, context) as wire:
            row = CreateTopicsRequest.Topic(name="t", num_partitions=1, replication_factor=3)
            await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[row]))
            partition = broker.node.cluster.topics["t"].partitions[0]
            leader = next(each for each in broker.nodes if each.id == partition.leader)
            async with encrypted(leader.endpoint, context) as wire:
                await produce(wire, Topic("t"), batch([b"x"]), acks=-1)
                got = await fetch(wire, Topic("t"))
                assert values_of(got) == [b"x"]


async def test_only_in_process_connection_bypasses_acls(authority: Authority) -> None:
    rights = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    async with secured(authority, None, rights) as broker:
        inside = await broker.dial_inside(broker.endpoint)
        wire = Wire(cast(Any, inside))
        async with inside:
            topic = await create_topic(wire, "t")
            assert (await produce(wire, topic, batch([b"x"]))).error_code == 0
        async with encrypted(broker.endpoint, authority.context()) as wire:
            ask = request(ApiKey.METADATA, topics=None)
            await wire.send(ApiKey.METADATA, 1, ask)
            assert not (await wire.receive()).topics
        with pytest.raises(ConnectionRefusedError):
            await broker.dial_inside(broker.endpoint._replace(port=1))
        await broker.nodes[0].stop()
        with pytest.raises(ConnectionRefusedError):
            await broker.dial_inside(broker.endpoint)
