"""Tests of listener addresses: families, shared ports, and advertised addresses."""

from __future__ import annotations

import errno
import socket

import pytest

from kbroker.broker import open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig, ConfigError
from kbroker.net.server import CannotListen, Listener, bind_all, close_all
from kbroker.process.errors import StartFailed
from kbroker.process.http import http_service
from kbroker.process.listeners import canonical_host_name, configured_listeners

from ..ports import free_ports
from ..wire import connected, metadata

V4, V6 = "127.0.0.1", "::1"
TWO = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"
FAMILIES = {
    "": {V4, V6},
    "0.0.0.0": {V4, V6},
    "[::]": {V4, V6},
    "localhost": {V4, V6},
    "127.0.0.1": {V4},
    "[::ffff:127.0.0.1]": {V4},
    "[::1]": {V6},
    "::1": {V6},
}


def read(*options: str) -> list[Listener]:
    return configured_listeners(BrokerConfig.load(options=options))


async def reachable_addresses(port: int) -> set[str]:
    """Return the loopback addresses at which a broker answers and advertises the same address."""
    found = set()
    for host in (V4, V6):
        try:
            async with connected((host, port)) as wire:
                (row,) = (await metadata(wire, [])).brokers
        except OSError:
            continue
        assert (row.host, row.port) == (host, port)
        found.add(host)
    return found


@pytest.mark.parametrize("host", FAMILIES)
@pytest.mark.parametrize("named", [True, False])
async def test_listener_host_uses_same_address_families_as_kafka(host: str, named: bool) -> None:
    port = free_ports(1) if named else 0
    listeners = read(f"listeners=PLAINTEXT://{host}:{port}")
    async with open_broker(BrokerConfig(), data_dir=None, listeners=listeners) as broker:
        assert await reachable_addresses(broker.endpoint.port) == FAMILIES[host]


async def test_default_listener_answers_on_both_loopback_addresses() -> None:
    (default,) = read()
    assert default.host == "localhost"
    assert default.port == 9092


@pytest.mark.parametrize("host", [host for host, where in FAMILIES.items() if V4 in where])
async def test_machine_without_ipv6_listens_on_ipv4(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Socket(socket.socket):
        def __init__(self, family: int = -1, *rest: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest)

    listeners = read(f"listeners=PLAINTEXT://{host}:{free_ports(1)}")
    monkeypatch.setattr("kbroker.net.server.socket.socket", Socket)
    bound = await bind_all(listeners)
    assert [each.family for _, each in bound] == [socket.AF_INET]
    close_all(bound)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "localhost"])
@pytest.mark.parametrize("taken", [V4, V6])
async def test_port_used_in_one_family_is_rejected_with_configured_address(
    host: str, taken: str
) -> None:
    """Some clients would reach the other program, depending on name resolution."""
    port = free_ports(1)
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    listeners = read(f"listeners=PLAINTEXT://{host}:{port}")
    with (
        socket.create_server((taken, port), family=family),
        pytest.raises(CannotListen) as caught,
    ):
        await bind_all(listeners)
    assert str(caught.value).startswith(f"PLAINTEXT://{host}:{port}: port {port} is in use")


async def test_ipv4_and_ipv6_listeners_can_share_a_port() -> None:
    port = free_ports(1)
    listeners = read(f"listeners=A://{V4}:{port},B://[{V6}]:{port}", TWO)
    async with open_broker(BrokerConfig(), data_dir=None, listeners=listeners) as broker:
        assert await reachable_addresses(port) == {V4, V6}
        assert [each.name for each, _ in broker.server.endpoints()] == ["A", "B"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.2"),
        ("0.0.0.0", "[::]"),
        ("", "[::1]"),
        ("localhost", "[::1]"),
        ("127.0.0.1", "[::]"),
        ("0.0.0.0", "[::1]"),
    ],
)
def test_same_port_of_two_listeners_is_a_config_error(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match="have the same port") as caught:
        read(f"listeners=A://{first}:9092,B://{second}:9092", TWO)
    for typed in (f"A://{first}:9092", f"B://{second}:9092"):
        assert typed in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("setting", ["http", "registry"])
def test_http_port_equal_to_listener_port_fails_the_start(host: str, setting: str) -> None:
    options = (f"listeners=PLAINTEXT://{host}:9092", f"{setting}.port=9092")
    config = BrokerConfig.load(options=options)
    reason = rf"{setting}\.port and PLAINTEXT://{host}:9092 have the same port"
    with pytest.raises(StartFailed, match=reason):
        http_service(config, configured_listeners(config))


async def test_overlapping_ports_of_nodes_are_rejected() -> None:
    port = free_ports(4)
    listeners = read(f"listeners=A://0.0.0.0:{port},B://127.0.0.1:{port + 1}", TWO)
    with pytest.raises(CannotListen, match="set listeners at least 2 ports apart"):
        async with open_broker(BrokerConfig(), data_dir=None, listeners=listeners, nodes=2):
            pass


def test_listener_names_and_protocols_are_case_insensitive() -> None:
    (one,) = read(
        "listeners=in-side://:9092",
        "advertised.listeners=In-Side://kafka.example:9092",
        "listener.security.protocol.map=IN-side:plainText",
        "inter.broker.listener.name=in-SIDE",
    )
    assert (one.name, one.security) == ("IN-SIDE", None)
    assert one.advertised == Endpoint("kafka.example", 9092)
    assert [each.name for each in read("listeners=plaintext://:9092")] == ["PLAINTEXT"]
    (kept,) = read(
        "listeners=PLAINTEXT://:9092,controller://:9093", "controller.listener.names=CONTROLLER"
    )
    assert kept.port == 9092


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["advertised.listeners=PLAINTEXT://0.0.0.0:9092"], "clients cannot connect to 0.0.0.0"),
        (["listeners=PLAINTEXT://:9092,plaintext://:9093"], "second address of listener PLAINTEXT"),
        (
            ["advertised.listeners=PLAINTEXT://a:9092,PLAINTEXT://b:9092"],
            "second address of listener PLAINTEXT",
        ),
        (["advertised.listeners=OUT://a:9092"], "unknown listeners OUT"),
        (["inter.broker.listener.name=OUT"], r"unknown listener OUT \(valid: PLAINTEXT\)"),
        (["listeners=PLAINTEXT://a b:9092"], "invalid address"),
        (["listeners=PLAINTEXT://:9092,"], "expected a comma-separated list"),
        (["listener.security.protocol.map=PLAINTEXT:PLAINTEXT,X:PLAIN"], "invalid entry 'X:PLAIN'"),
        (["listener.security.protocol.map=PLAINTEXT"], "invalid entry 'PLAINTEXT' "),
    ],
)
def test_listener_settings_that_kafka_rejects_are_rejected(options: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(*options)


def test_empty_advertised_host_is_the_canonical_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = read("listeners=PLAINTEXT://:9092", "advertised.listeners=PLAINTEXT://:19092")
    assert one.advertised == Endpoint(canonical_host_name(), 19092)
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid, does not resolve .* set a host"):
        read("advertised.listeners=PLAINTEXT://:19092")


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ({"own": ["10.0.0.7"], "own.lan": ["10.0.0.7"]}, "own.lan"),
        ({"own": ["fd00::7", "10.0.0.7"], "own.lan": ["10.0.0.7"]}, "own.lan"),
        ({"own": ["10.0.0.7"], "own.lan": ["10.0.0.8"]}, "10.0.0.7"),
        ({"own": ["10.0.0.7"]}, "10.0.0.7"),
    ],
)
def test_canonical_host_name_must_resolve_to_the_same_address(
    known: dict[str, list[str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is the first IPv4 address, or its host name if that resolves back, as in Java."""

    def resolve(host: str, port: None, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in each], 1, 6, "", (each, 0)) for each in known[host]]

    monkeypatch.setattr(socket, "gethostname", lambda: "own")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: ("own.lan", "0"))
    assert canonical_host_name() == name
