"""Listeners, limits, several brokers in one process, and the graceful stop."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import struct
import time
from pathlib import Path

import pytest
import trio

from kbroker.broker import open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.net.server import (
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
    list_offset,
    metadata,
    produce,
    produce_request,
    request,
    until,
    values_of,
)

# -- listeners


async def test_a_loopback_listener_is_there_in_both_families() -> None:
    """And each client is told the address that it dialled."""
    async with started() as broker:
        for host in ("127.0.0.1", "::1"):
            async with connected((host, broker.endpoint.port)) as wire:
                answer = await metadata(wire, [])
                assert [(b.host, b.port) for b in answer.brokers] == [(host, broker.endpoint.port)]
                found = await wire.ask(
                    ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key="g")
                )
                assert (found.host, found.port) == (host, broker.endpoint.port)


async def test_a_fixed_address_is_advertised() -> None:
    listener = Listener("PLAINTEXT", "127.0.0.1", 0, advertised=Endpoint("kafka.example", 19092))
    async with (
        open_broker(BrokerConfig.load(), data_dir=None, listeners=[listener]) as broker,
        connected(broker.endpoint) as wire,
    ):
        (row,) = (await metadata(wire, [])).brokers
        assert (row.host, row.port) == ("kafka.example", 19092)


async def test_several_listeners_tell_their_own_address() -> None:
    listeners = [Listener("A", "127.0.0.1", 0), Listener("B", "127.0.0.1", 0)]
    async with open_broker(BrokerConfig.load(), data_dir=None, listeners=listeners) as broker:
        ports = [endpoint.port for _, endpoint in broker.server.endpoints()]
        assert len(set(ports)) == 2
        for port in ports:
            async with connected(("127.0.0.1", port)) as wire:
                (row,) = (await metadata(wire, [])).brokers
                assert row.port == port


async def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"port {port} .*--port 0"):
            await bind_all([Listener("PLAINTEXT", "127.0.0.1", port)])


async def test_a_port_that_needs_rights_is_no_matter_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root, who runs tests, has them."""

    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(trio.socket, "getaddrinfo", refuse)
    with pytest.raises(CannotListen, match=r"port 80 .* above 1023 with --port") as caught:
        await bind_all([Listener("PLAINTEXT", "127.0.0.1", 80)])
    assert "--host" not in str(caught.value)


async def test_a_broker_that_cannot_listen_leaves_no_data_directory_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener("PLAINTEXT", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(CannotListen):
            async with open_broker(
                BrokerConfig.load(), data_dir=str(tmp_path / "data"), listeners=[listener]
            ):
                raise AssertionError("it did not listen")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "Too many open files"), 1),
        (ConnectionAbortedError(errno.ECONNABORTED, "aborted"), 0),
        (BlockingIOError(errno.EAGAIN, "try again"), 0),
    ],
)
async def test_who_cannot_be_let_in_once_is_let_in_later(
    error: OSError, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [error] * 3
    accept = socket.socket.accept

    def accept_later(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr("kbroker.net.server.ACCEPT_SECONDS", 0.001)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
    assert not failures
    assert caplog.text.count("cannot accept connections: [Errno 24]") == told, "once is enough"


# -- several brokers


async def test_twenty_brokers_in_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    """The same topic, group and partition everywhere, other data in each; half of them on disk."""
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
        answers = [await metadata(wire) for wire in wires]
        assert len({answer.cluster_id for answer in answers}) == 20
        names = [sorted(t.name for t in answer.topics) for answer in answers]
        assert names == [["__consumer_offsets", "topic"]] * 20


async def commit(wire: Wire, group: str, topic: str, offset: int) -> None:
    """Commit an offset of partition 0, as a consumer without a group does."""
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=group))
    row = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset)
    rows = [OffsetCommitRequest.Topic(name=topic, partitions=[row])]
    asked = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=rows
    )
    answer = await wire.ask(ApiKey.OFFSET_COMMIT, 7, asked)
    assert answer.topics[0].partitions[0].error_code == 0


async def committed(wire: Wire, group: str, topic: str) -> int:
    """The committed offset of partition 0."""
    await wire.ask(ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=group))
    rows = [OffsetFetchRequest.Topic(name=topic, partition_indexes=[0])]
    answer = await wire.ask(ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest(group_id=group, topics=rows))
    row = answer.topics[0].partitions[0]
    assert row.error_code == 0
    return int(row.committed_offset)


# -- limits


async def test_max_connections() -> None:
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


async def test_max_connections_per_ip_counts_each_address_for_itself() -> None:
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


async def test_max_connections_per_ip_overrides() -> None:
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


async def test_max_connection_creation_rate_holds_back() -> None:
    """A second's worth at once, then so many a second; nobody is refused."""
    async with started(max_connection_creation_rate=10) as broker:
        began_at = time.perf_counter()
        for _ in range(20):
            async with connected(broker.endpoint) as wire:
                assert await wire.works()
        assert time.perf_counter() - began_at > 0.8


async def test_connections_that_are_held_back_count() -> None:
    """A burst of connections must not slip past the other limits while it waits for its turn."""
    async with (
        started(max_connection_creation_rate=1, max_connections_per_ip=30) as broker,
        contextlib.AsyncExitStack() as stack,
    ):
        wires = [await stack.enter_async_context(connected(broker.endpoint)) for _ in range(32)]
        for wire in wires[30:]:
            await wire.wait_closed(20)  # its turn would come after thirty seconds
        for wire in wires[:3]:
            assert await wire.works()


async def test_a_first_request_is_due_in_time() -> None:
    async with (
        started(connection_setup_timeout_ms=1000) as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as slow,
    ):
        assert await wire.works()
        await slow.send_bytes(struct.pack(">ihh", 100, ApiKey.METADATA, 1))
        await slow.wait_closed()
        assert await wire.works()


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
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


async def test_idle_connections_stay_when_nothing_says_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.net.server.REAP_SECONDS", 0.02)
    async with started(connections_max_idle_ms=-1) as broker, connected(broker.endpoint) as wire:
        assert await wire.works()
        await trio.sleep(0.1)
        assert await wire.works()


@pytest.mark.slow
async def test_a_parked_fetch_is_not_idle() -> None:
    async with started(connections_max_idle_ms=1000) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        row = await fetch(wire, topic, max_wait_ms=2500)
        assert row.error_code == 0
        # Nor is who has just been answered, however long it took.
        assert await wire.is_silent(0.75)
        assert await wire.works()


async def test_many_clients_may_come_at_once() -> None:
    """Who finds no room among those that wait to be accepted waits for its system: a second or more."""
    async with started() as broker:
        with contextlib.ExitStack() as stack:
            for _ in range(100):  # in the broker's thread, so that it accepts none meanwhile
                stack.enter_context(socket.create_connection(broker.endpoint, timeout=0.9))
            await until(lambda: len(broker.server.connections) == 100)


async def test_clients_that_reset_their_connection_at_once_do_no_harm() -> None:
    """A socket may be gone before it is looked at for the first time."""

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


async def test_a_stop_answers_what_is_parked(start: Start, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with start() as broker:
            wire = await stack.enter_async_context(connected(broker.endpoint))
            topic = await create_topic(wire, "t")
            await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
            assert await wire.is_silent(0.05)
        # Whoever uses up the time of grace is cut off without an answer.
        row = (await wire.receive()).responses[0].partitions[0]
        assert row.error_code == 0
        await wire.wait_closed()


async def test_a_stop_answers_produces_that_wait_for_the_disk(tmp_path: Path) -> None:
    """They were appended; what the answers say is still there after the restart."""
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
        answers = [await wire.receive() for _ in range(100)]
        rows = [answer.responses[0].partition_responses[0] for answer in answers]
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, i) for i in range(100)]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.partitions.logs.clean
        assert values_of(await fetch(wire, topic)) == [b"%d" % i for i in range(100)]


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
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


async def test_no_one_gets_in_while_it_stops() -> None:
    async with started() as broker:
        endpoint = broker.endpoint
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream(*endpoint)


async def test_who_comes_in_from_inside_is_refused_when_the_tasks_are_cancelled() -> None:
    """As they are when a broker loses its power."""
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


async def test_a_json_log_line_per_event(caplog: pytest.LogCaptureFixture) -> None:
    from kbroker.runtime.log_output import JsonFormatter

    with caplog.at_level(logging.INFO):
        async with started() as broker, connected(broker.endpoint) as wire:
            await create_topic(wire, "named-in-the-log")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert any("named-in-the-log" in line["message"] for line in lines)
    assert {"time", "level", "logger", "message"} <= set(lines[0])


async def test_latest_offset_is_answered_while_others_write(start: Start) -> None:
    """Spark asks for it all the time, beside writers."""
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


async def test_a_start_that_fails_leaves_no_listener_behind(
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


async def test_a_free_port_is_one_that_no_client_is_given() -> None:
    """It stays free while its broker is down."""
    async with started() as broker, connected(broker.endpoint) as wire:
        port, client_port = broker.endpoint[1], wire.stream.socket.getsockname()[1]
    if pick_free_port():  # else this system gives nearly all ports to clients
        assert FIRST_PORT <= port < min(client_port, LAST_PORT)


async def test_a_port_that_somebody_has_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as first, started() as second:
        taken = [first.endpoint[1], second.endpoint[1]]
        free = free_ports(1)
        ports = iter([*taken, free])
        monkeypatch.setattr("kbroker.net.server.pick_free_port", lambda: next(ports))
        async with started() as third, connected(third.endpoint) as wire:
            assert third.endpoint[1] == free
            assert await wire.works()


async def test_two_that_draw_the_same_port_do_not_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux lets several bind it as long as none of them listens, if they say that they share."""
    ports = iter([free := free_ports(2), free, free + 1])
    monkeypatch.setattr("kbroker.net.server.pick_free_port", lambda: next(ports))
    listener = Listener("PLAINTEXT", "127.0.0.1", 0)
    first, second = [await bind_all([listener]) for _ in range(2)]
    assert [bound[0][1].getsockname()[1] for bound in (first, second)] == [free, free + 1]
    for bound in (first, second):
        close_all(bound)
