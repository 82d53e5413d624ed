"""Tests of listeners, connection limits, several brokers in one process, and the graceful stop."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Collection
from pathlib import Path

import pytest
import trio

from kbroker.broker import open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import (
    CLOSED_AT_ONCE,
    FIRST_PORT,
    LAST_PORT,
    CannotListen,
    Listener,
    Server,
    bind_all,
    close_all,
    listen_all,
    pick_free_port,
)
from kbroker.node.node import Node
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

from ..brokers import LOOPBACK, Start, started
from ..ports import free_ports
from ..wire import (
    ANSWER_SECONDS,
    LATEST,
    NEVER,
    RESETS_ON_CLOSE,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    fetch_request,
    frame,
    list_offset,
    metadata,
    produce,
    produce_request,
    request,
    until,
    values_of,
)

# -- listeners


async def test_loopback_listener_accepts_ipv4_and_ipv6() -> None:
    """Each client receives the address that it connected to."""
    async with started() as broker:
        for host in ("127.0.0.1", "::1"):
            async with connected((host, broker.endpoint.port)) as wire:
                response = await metadata(wire, [])
                assert [(b.host, b.port) for b in response.brokers] == [
                    (host, broker.endpoint.port)
                ]
                found = await wire.ask(
                    ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key="g")
                )
                assert (found.host, found.port) == (host, broker.endpoint.port)


async def test_configured_address_is_advertised() -> None:
    listener = Listener("PLAINTEXT", "127.0.0.1", 0, advertised=Endpoint("kafka.example", 19092))
    async with (
        open_broker(BrokerConfig.load(), data_dir=None, listeners=[listener]) as broker,
        connected(broker.endpoint) as wire,
    ):
        (row,) = (await metadata(wire, [])).brokers
        assert (row.host, row.port) == ("kafka.example", 19092)


async def test_each_listener_advertises_its_own_address() -> None:
    listeners = [Listener("A", "127.0.0.1", 0), Listener("B", "127.0.0.1", 0)]
    async with open_broker(BrokerConfig.load(), data_dir=None, listeners=listeners) as broker:
        ports = [endpoint.port for _, endpoint in broker.server.endpoints()]
        assert len(set(ports)) == 2
        for port in ports:
            async with connected(("127.0.0.1", port)) as wire:
                (row,) = (await metadata(wire, [])).brokers
                assert row.port == port


async def test_error_for_used_port_names_port_and_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"port {port} .*--port 0"):
            await bind_all([Listener("PLAINTEXT", "127.0.0.1", port)])


async def test_error_for_privileged_port_suggests_higher_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is simulated: tests may run as root, who can bind every port."""

    async def deny(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(trio.socket, "getaddrinfo", deny)
    with pytest.raises(CannotListen, match=r"port 80 .* above 1023 with --port") as caught:
        await bind_all([Listener("PLAINTEXT", "127.0.0.1", 80)])
    assert "--host" not in str(caught.value)


async def test_broker_that_cannot_listen_creates_no_data_directory(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener("PLAINTEXT", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(CannotListen):
            async with open_broker(
                BrokerConfig.load(), data_dir=str(tmp_path / "data"), listeners=[listener]
            ):
                raise AssertionError("the broker started on a used port")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "warnings"),
    [
        (OSError(errno.EMFILE, "Too many open files"), 1),
        (ConnectionAbortedError(errno.ECONNABORTED, "aborted"), 0),
        (BlockingIOError(errno.EAGAIN, "try again"), 0),
    ],
)
async def test_failed_accept_is_retried(
    error: OSError, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [error] * 3
    accept = socket.socket.accept

    def accept_later(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr("kbroker.net.server.ACCEPT_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
    assert not failures
    assert caplog.text.count("cannot accept connections: [Errno 24]") == warnings


# -- several brokers


@pytest.mark.slow
async def test_twenty_brokers_in_one_process_are_isolated(tmp_path: Path) -> None:
    """All have the same topic, group and partition, but different data; half of them use disks."""
    async with contextlib.AsyncExitStack() as stack:
        brokers = []
        for i in range(20):
            directory = tmp_path / str(i) if i % 2 else None
            brokers.append(await stack.enter_async_context(started(directory)))
        wires = [await stack.enter_async_context(connected(each.endpoint)) for each in brokers]
        for i, wire in enumerate(wires):
            topic = await create_topic(wire, "topic")
            for n in range(i + 1):
                await produce(wire, topic, batch([b"%d of %d" % (n, i)]))
            await commit(wire, "group", "topic", i)
        for i, wire in enumerate(wires):
            row = await fetch(wire, Topic("topic"))
            assert values_of(row) == [b"%d of %d" % (n, i) for n in range(i + 1)]
            assert await committed(wire, "group", "topic") == i
        responses = [await metadata(wire) for wire in wires]
        assert len({response.cluster_id for response in responses}) == 20
        names = [sorted(t.name for t in response.topics) for response in responses]
        assert names == [["__consumer_offsets", "topic"]] * 20


async def commit(wire: Wire, group: str, topic: str, offset: int) -> None:
    """Commit an offset of partition 0, as a consumer without a group does."""
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=group))
    row = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset)
    rows = [OffsetCommitRequest.Topic(name=topic, partitions=[row])]
    message = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=rows
    )
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, message)
    assert response.topics[0].partitions[0].error_code == 0


async def committed(wire: Wire, group: str, topic: str) -> int:
    """Return the committed offset of partition 0."""
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=group))
    rows = [OffsetFetchRequest.Topic(name=topic, partition_indexes=[0])]
    response = await wire.ask(
        ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest(group_id=group, topics=rows)
    )
    row = response.topics[0].partitions[0]
    assert row.error_code == 0
    return int(row.committed_offset)


# -- limits


async def test_connections_above_max_connections_are_closed() -> None:
    async with started(max_connections=3) as broker:
        async with contextlib.AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(3)]
            for wire in wires:
                assert await wire.works()
            async with connected(broker.endpoint) as one_too_many:
                await one_too_many.wait_closed()
            for wire in wires:
                assert await wire.works()
        await until(lambda: not broker.server.connections)
        async with connected(broker.endpoint) as wire:
            assert await wire.works()


async def test_max_connections_per_ip_counts_addresses_separately() -> None:
    async with (
        started(max_connections_per_ip=1) as broker,
        connected(broker.endpoint) as four,
        connected(("::1", broker.endpoint.port)) as six,
    ):
        assert await four.works()
        assert await six.works()
        for host in ("127.0.0.1", "::1"):
            async with connected((host, broker.endpoint.port)) as second:
                await second.wait_closed()
        assert await four.works()


async def test_max_connections_per_ip_overrides_apply() -> None:
    properties = {"max.connections.per.ip.overrides": "127.0.0.1:2"}
    config = BrokerConfig.load(options={"max.connections.per.ip": "0", **properties})
    async with open_broker(config, data_dir=None, listeners=[LOOPBACK]) as broker:
        async with connected(("::1", broker.endpoint.port)) as wire:
            await wire.wait_closed()
        async with connected(broker.endpoint) as a, connected(broker.endpoint) as b:
            assert await a.works()
            assert await b.works()
            async with connected(broker.endpoint) as c:
                await c.wait_closed()


async def test_max_connection_creation_rate_delays_connections() -> None:
    """One second's worth is accepted at once, the rest at the rate; none is rejected."""
    async with started(max_connection_creation_rate=10) as broker:
        began_at = time.perf_counter()
        for _ in range(20):
            async with connected(broker.endpoint) as wire:
                assert await wire.works()
        assert time.perf_counter() - began_at > 0.8


async def test_delayed_connections_count_towards_limits() -> None:
    """A burst of connections must not bypass the other limits while it is delayed."""
    async with (
        started(max_connection_creation_rate=1, max_connections_per_ip=30) as broker,
        contextlib.AsyncExitStack() as stack,
    ):
        wires = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(32)]
        for wire in wires[30:]:
            await wire.wait_closed(20)  # the rate would accept it after thirty seconds
        for wire in wires[:3]:
            assert await wire.works()


async def test_connection_without_timely_first_request_is_closed() -> None:
    async with (
        started(connection_setup_timeout_ms=1000) as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as slow,
    ):
        assert await wire.works()
        await slow.send_bytes(struct.pack(">ihh", 100, ApiKey.METADATA, 1))
        await slow.wait_closed()
        assert await wire.works()


async def test_delay_of_event_loop_does_not_count_against_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Idle clients, and clients that owe their first request, send one during the delay."""
    monkeypatch.setattr("kbroker.net.server.REAP_SECONDS", 0.1)
    asked = frame(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
    async with started(connection_setup_timeout_ms=1000, connections_max_idle_ms=1000) as broker:
        for _ in range(8):  # after a delay, tasks run in random order
            async with connected(broker.endpoint) as idle, connected(broker.endpoint) as new:
                assert await idle.works()
                await until(lambda: len(broker.server.connections) == 2)
                time.sleep(1.1)  # noqa: ASYNC251
                for wire in (idle, new):
                    os.write(wire.stream.socket.fileno(), asked)
                for wire in (idle, new):
                    with trio.fail_after(ANSWER_SECONDS):
                        assert await wire.stream.receive_some(1)
            await until(lambda: not broker.server.connections)


async def test_only_idle_connections_are_closed() -> None:
    async with (
        started(connections_max_idle_ms=1500) as broker,
        connected(broker.endpoint) as busy,
        connected(broker.endpoint) as idle,
    ):
        assert await idle.works()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(idle.wait_closed)
            while len(broker.server.connections) == 2:
                assert await busy.works()
                await trio.sleep(0.2)
        assert await busy.works()


async def test_idle_connections_stay_open_without_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.net.server.REAP_SECONDS", 0.02)
    async with started(connections_max_idle_ms=-1) as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        await trio.sleep(0.1)
        assert await wire.works()


async def test_throttle_time_does_not_count_as_idle_time() -> None:
    async with started(connections_max_idle_ms=500) as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        (connection,) = broker.server.connections
        connection.replies.throttle(2000)
        assert await wire.works()
        await wire.wait_closed()


@pytest.mark.slow
async def test_connection_with_pending_fetch_does_not_time_out() -> None:
    async with started(connections_max_idle_ms=1000) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        row = await fetch(wire, topic, max_wait_ms=2500)
        assert row.error_code == 0
        # The idle time starts with the response, however long the fetch took.
        assert await wire.is_silent(0.75)
        assert await wire.works()


async def test_accept_queue_holds_many_simultaneous_clients() -> None:
    """If the accept queue is full, the client's kernel retries only after a second or more."""
    async with started() as broker:
        with contextlib.ExitStack() as stack:
            for _ in range(100):  # in the broker's thread, so that it cannot accept in the meantime
                stack.enter_context(socket.create_connection(broker.endpoint, timeout=0.9))
            await until(lambda: len(broker.server.connections) == 100)


async def test_immediately_reset_connections_do_not_break_accepting() -> None:
    """A socket may be reset before the broker reads from it for the first time."""

    def storm(endpoint: tuple[str, int]) -> None:
        for _ in range(45):
            with socket.socket() as client:
                client.setsockopt(*RESETS_ON_CLOSE)
                client.connect(endpoint)

    async with started() as broker:
        with trio.fail_after(ANSWER_SECONDS):
            await trio.to_thread.run_sync(storm, broker.endpoint, abandon_on_cancel=True)
        async with connected(broker.endpoint) as wire:
            assert await wire.works()
        await until(lambda: not broker.server.connections)


# -- the graceful stop


async def test_stop_completes_pending_fetch(start: Start, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with start() as broker:
            wire = await stack.enter_async_context(connected(broker.endpoint))
            topic = await create_topic(wire, "t")
            await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            assert await wire.is_silent(0.05)
        # A client that exceeds the grace period would get no response.
        row = (await wire.receive()).responses[0].partitions[0]
        assert row.error_code == 0
        await wire.wait_closed()


async def test_stop_answers_produce_requests_waiting_for_fsync(tmp_path: Path) -> None:
    """The acknowledged records must still exist after the restart."""
    async with contextlib.AsyncExitStack() as stack:
        async with started(tmp_path) as broker:
            wire = await stack.enter_async_context(connected(broker.endpoint))
            topic = await create_topic(wire, "t")
            data = b"".join(
                wire.frame(ApiKey.PRODUCE, 9, produce_request(topic, batch([b"%d" % i])))
                for i in range(100)
            )
            await wire.send_bytes(data)
            await until(
                lambda: broker.node.partitions.named_replica("t", 0).log.log_end_offset == 100
            )
        responses = [await wire.receive() for _ in range(100)]
        rows = [response.responses[0].partition_responses[0] for response in responses]
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, i) for i in range(100)]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.partitions.logs.clean
        assert values_of(await fetch(wire, topic)) == [b"%d" % i for i in range(100)]


@pytest.mark.slow
async def test_stop_does_not_wait_for_client_that_reads_nothing() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with started() as broker:
            wire = await stack.enter_async_context(connected(broker.endpoint))
            topic = await create_topic(wire, "t")
            await produce(wire, topic, batch([bytes(900_000)]))
            with trio.move_on_after(0.5):
                while True:
                    await wire.stream.send_all(wire.frame(ApiKey.FETCH, 12, fetch_request(topic)))
            began_at = time.perf_counter()
        assert time.perf_counter() - began_at < 60


async def test_stopped_broker_refuses_connections() -> None:
    async with started() as broker:
        endpoint = broker.endpoint
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream(*endpoint)


async def test_in_process_connection_is_refused_after_cancellation() -> None:
    """A simulated power loss cancels the tasks."""
    async with started() as broker:
        bound = await bind_all([Listener("PLAINTEXT", "127.0.0.1", 0)])
        listen_all(bound, backlog=1)
        server = Server(broker.node, {}, bound)
        is_over = trio.Event()

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            try:
                await server.run(task_status)
            finally:
                is_over.set()

        async with trio.open_nursery() as nursery:
            await nursery.start(serve)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                while not is_over.is_set():
                    with contextlib.suppress(ConnectionRefusedError):
                        await server.connect_in_process(broker.endpoint).aclose()
                    await trio.lowlevel.checkpoint()
        with pytest.raises(ConnectionRefusedError):
            server.connect_in_process(broker.endpoint)
        close_all(bound)


async def test_events_are_logged_as_json_lines(caplog: pytest.LogCaptureFixture) -> None:
    from kbroker.runtime.log_output import JsonFormatter

    with caplog.at_level(logging.INFO):
        async with started() as broker, connected(broker.endpoint) as wire:
            await create_topic(wire, "named-in-the-log")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert any("named-in-the-log" in line["message"] for line in lines)
    assert {"time", "level", "logger", "message"} <= set(lines[0])


async def test_latest_offset_grows_during_concurrent_writes(start: Start) -> None:
    """Spark sends such requests continuously."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        async with connected(broker.endpoint) as reader:
            seen = []
            for _ in range(30):
                await wire.send(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
                seen.append((await list_offset(reader, topic, LATEST)).offset)
                await wire.receive()
            assert seen == sorted(seen)
            assert (await list_offset(reader, topic, LATEST)).offset == 30


async def test_failed_start_closes_listeners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(node: Node) -> None:
        raise OSError("planted")

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(Node, "lead", fails)
    with pytest.raises(ExceptionGroup, match="nursery"):
        async with open_broker(
            BrokerConfig.load(options={}),
            data_dir=None,
            listeners=[Listener("PLAINTEXT", "127.0.0.1", port)],
        ):
            pass
    with (
        pytest.raises(OSError, match=r"refused|connect"),
        socket.create_connection(("127.0.0.1", port)),
    ):
        pass


# -- free ports


async def test_free_port_is_outside_the_ephemeral_range() -> None:
    """A client could use a port of that range while its broker is down."""
    async with started() as broker, connected(broker.endpoint) as wire:
        port, client_port = broker.endpoint[1], wire.stream.socket.getsockname()[1]
    if pick_free_port():  # otherwise the ephemeral range covers nearly all ports
        assert FIRST_PORT <= port < min(client_port, LAST_PORT)


async def test_used_port_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as first, started() as second:
        taken = [first.endpoint[1], second.endpoint[1]]
        free = free_ports(1)
        ports = iter([*taken, free])
        monkeypatch.setattr("kbroker.net.server.pick_free_port", lambda: next(ports))
        async with started() as third, connected(third.endpoint) as wire:
            assert third.endpoint[1] == free
            assert await wire.works()


async def test_two_listeners_never_share_a_picked_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SO_REUSEPORT, Linux lets several sockets bind a port until one of them listens."""
    ports = iter([free := free_ports(2), free, free + 1])
    monkeypatch.setattr("kbroker.net.server.pick_free_port", lambda: next(ports))
    listener = Listener("PLAINTEXT", "127.0.0.1", 0)
    first, second = [await bind_all([listener]) for _ in range(2)]
    assert [bound[0][1].getsockname()[1] for bound in (first, second)] == [free, free + 1]
    for bound in (first, second):
        close_all(bound)


class MostClosed(trio.abc.Instrument):
    """The largest number of connections that ended in one event-loop iteration."""

    def __init__(self, connections: Collection[object]) -> None:
        self.most = 0
        self._connections = connections
        self._before = len(connections)

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self._before - len(self._connections))
        self._before = len(self._connections)


async def test_overdue_connections_are_closed_a_few_at_a_time() -> None:
    count = 10 * CLOSED_AT_ONCE
    async with (
        started(connection_setup_timeout_ms=2000) as broker,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(count):
            stream = await trio.open_tcp_stream(*broker.endpoint)
            await stack.enter_async_context(stream)
        connections = broker.server.connections
        await until(lambda: len(connections) == count)
        closed = MostClosed(connections)
        trio.lowlevel.add_instrument(closed)
        await until(lambda: not connections)
        trio.lowlevel.remove_instrument(closed)
        assert 0 < closed.most <= 2 * CLOSED_AT_ONCE
