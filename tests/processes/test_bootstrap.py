"""Bootstrap address that all nodes of `kbroker serve --processes` accept on."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from kafka import KafkaConsumer, KafkaProducer

from kbroker.testing import ExternalKafka

from ..ports import free_ports
from ..security.test_access import AUTHORIZER
from ..wire import ConnectionClosed, connected, metadata
from .commands import consume, serve_error, wait_until_healthy
from .test_supervisor import NODES, Supervised, running_supervisor

pytestmark = pytest.mark.slow

# Enough connections that one node does not accept all of them by chance.
CONNECTIONS = 20
SECONDS = 60


async def reported_ports(address: tuple[str, int]) -> set[tuple[int, ...]]:
    """Return the ports of all nodes, as reported over many concurrent connections."""
    found: set[tuple[int, ...]] = set()

    async def ask() -> None:
        async with connected(address) as wire:
            answer = await metadata(wire)
            found.add(tuple(each.port for each in answer.brokers))

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS):
                nursery.start_soon(ask)
    return found


def ports_of_nodes(server: Supervised) -> tuple[int, ...]:
    return tuple(server.port + node for node in range(1, NODES + 1))


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_kafka_python_uses_all_nodes_through_bootstrap_address(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        producer = KafkaProducer(bootstrap_servers=server.bootstrap, acks="all")
        sent = [
            producer.send("orders", str(number).encode(), partition=number % 6)
            for number in range(60)
        ]
        assert {each.get(SECONDS).partition for each in sent} == {*range(6)}
        consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=server.bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
        )
        read: list[int] = []
        while len(read) < len(sent):
            for records in consumer.poll(1000).values():
                read += [int(each.value) for each in records]
        assert sorted(read) == [*range(60)]
        consumer.close()
        producer.close()


def test_every_connection_gets_own_ports_of_nodes(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        assert trio.run(reported_ports, server.address) == {ports_of_nodes(server)}


def test_bootstrap_answers_while_a_process_hangs(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        for node in (1, 2, 3):
            with paused(server.pid_of(node)):
                assert trio.run(reported_ports, server.address)


def test_bootstrap_answers_while_a_node_restarts(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        for node in (1, 2, 3):
            os.kill(server.pid_of(node), signal.SIGKILL)
            assert trio.run(reported_ports, server.address)
            wait_until_healthy(server.bootstrap)
        # The restarted processes accept on the address.
        with paused(server.pid_of(1)), paused(server.pid_of(2)):
            assert trio.run(reported_ports, server.address)


def test_connection_waits_while_all_nodes_restart(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        for node in (1, 2, 3):
            os.kill(server.pid_of(node), signal.SIGKILL)
        assert trio.run(reported_ports, server.address)


def test_stopped_server_leaves_no_bootstrap_socket(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)


def test_port_zero_selects_one_bootstrap_port(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.port = 0
        ready = server.start_and_wait()
        _, _, port = str(ready["bootstrap_servers"]).rpartition(":")
        server.port = int(port)
        assert server.port
        os.kill(server.pid_of(1), signal.SIGKILL)
        wait_until_healthy(server.bootstrap)
        assert consume(server.bootstrap) == []


def test_each_listener_and_address_family_has_a_bootstrap_address(tmp_path: Path) -> None:
    first, second = free_ports(NODES + 1), free_ports(NODES + 1)
    listeners = f"A://localhost:{first},B://[::1]:{second}"
    protocols = "A:PLAINTEXT,B:PLAINTEXT"
    with running_supervisor(
        tmp_path,
        *("-o", f"listeners={listeners}", "-o", f"listener.security.protocol.map={protocols}"),
        *("-o", "inter.broker.listener.name=A"),
    ) as server:
        server.port = first
        server.start_and_wait()
        for address in (("127.0.0.1", first), ("::1", first), ("::1", second)):
            ports = tuple(address[1] + node for node in (1, 2, 3))
            assert trio.run(reported_ports, address) == {ports}


def test_listeners_with_too_close_ports_are_rejected(tmp_path: Path) -> None:
    settings = (
        *("-o", "listeners=A://localhost:19092,B://localhost:19094"),
        *("-o", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"),
        *("-o", "inter.broker.listener.name=A"),
    )
    output = serve_error("--processes", "3", "--data-dir", str(tmp_path / "d"), *settings)
    assert output.endswith(
        "listeners A://localhost:19092 and B://localhost:19094 both need port 19094: with "
        "--processes, each node uses one of the next ports; set the ports at least 4 apart"
    )
    assert not (tmp_path / "d").exists()


def test_bootstrap_connections_must_authenticate_and_are_authorized(tmp_path: Path) -> None:
    users = 'username="admin" password="hush" user_admin="hush" user_bob="brush"'
    settings = (
        "listeners=SASL_PLAINTEXT://localhost:0",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256",
        "security.inter.broker.protocol=SASL_PLAINTEXT",
        f"sasl.jaas.config=ScramLoginModule required {users};",
        f"authorizer.class.name={AUTHORIZER}",
        "super.users=User:admin",
    )
    options = [word for each in settings for word in ("-o", each)]
    with running_supervisor(tmp_path, *options) as server:
        server.start_and_wait()
        for _ in range(CONNECTIONS):
            assert trio.run(is_rejected_without_login, server.address)
        common = {
            "bootstrap_servers": server.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
        }
        login = {"sasl_plain_username": "admin", "sasl_plain_password": "hush"}
        admin = KafkaConsumer(**common, **login)
        assert admin.topics() == {"orders"}
        admin.close()
        # The topic is hidden from a user without ACLs, whichever node responds.
        login = {"sasl_plain_username": "bob", "sasl_plain_password": "brush"}
        for _ in range(4):
            consumer = KafkaConsumer(**common, **login)
            assert consumer.topics() == set()
            consumer.close()


async def is_rejected_without_login(address: tuple[str, int]) -> bool:
    """Return True if a connection that sends Metadata without authentication is closed."""
    with trio.fail_after(SECONDS):
        async with connected(address) as wire:
            try:
                await metadata(wire)
            except (ConnectionClosed, trio.BrokenResourceError):
                return True
    return False


def test_test_kit_uses_all_nodes_through_bootstrap_address(tmp_path: Path) -> None:
    with running_supervisor(tmp_path) as server:
        server.start_and_wait()
        kafka = ExternalKafka(server.bootstrap)
        kafka.begin_test()
        for partition in range(6):
            kafka.produce("orders", "v", partition=partition)
        assert {each.partition for each in kafka.records("orders")} == {*range(6)}
        kafka.close()
