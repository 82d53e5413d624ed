"""Generated listener configurations: which ones start, listen and advertise as in Kafka."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio
from harness.brokers import free_port
from harness.clients import ScriptProcess
from harness.java import command_line, java
from harness.places import COMPAT
from harness.raw import RawConnection

from kbroker.broker import open_broker
from kbroker.config import BrokerConfig, ConfigError
from kbroker.net.server import CannotListen
from kbroker.process.listeners import canonical_host_name, configured_listeners
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

CLIENT = "listeners"
SEED = 797
CONFIGURATIONS = 60
# Minimum number of configurations that Kafka must start and reject; otherwise the test is void.
STARTED_MIN, REFUSED_MIN = 15, 15
# Maximum seconds until Kafka lists itself in Metadata.
REGISTERED_SECONDS = 10.0
EVERY_INTERFACE = ("", "0.0.0.0", "[::]")
NAMES = ("PLAINTEXT", "plaintext", "IN", "out", "In-Side", "my_own", "a.b")
HOSTS = (
    *EVERY_INTERFACE,
    *("127.0.0.1", "[::1]", "::1", "localhost", "[::ffff:127.0.0.1]"),
    *("192.0.2.250", "no-such-host.invalid", "a b"),
)
ADVERTISED_HOSTS = ("", "0.0.0.0", "[::]", "localhost", "[::1]", "kafka.example")

Metadata = list[tuple[str, int]]
# Brokers in the Metadata response of each (address, port).
Listening = dict[tuple[str, int], Metadata]


@dataclass(frozen=True)
class Case:
    """One configuration: name, host and port of each listener, and its other settings."""

    bound: tuple[tuple[str, str, int], ...]
    advertised: tuple[tuple[str, str, int], ...]
    protocols: str
    between: str

    @property
    def properties(self) -> dict[str, str]:
        values = {"listeners": _joined(self.bound), "inter.broker.listener.name": self.between}
        if self.advertised:
            values["advertised.listeners"] = _joined(self.advertised)
        return {**values, "listener.security.protocol.map": self.protocols}


def _joined(rows: tuple[tuple[str, str, int], ...]) -> str:
    return ",".join(f"{name}://{host}:{port}" for name, host, port in rows)


def cases(ports: tuple[int, int]) -> Iterator[Case]:
    """Generate valid and invalid configurations of one or two listeners, always the same ones."""
    chosen = random.Random(SEED)
    for _ in range(CONFIGURATIONS):
        names = chosen.sample(NAMES, chosen.choice((1, 1, 2)))
        bound = tuple((name, chosen.choice(HOSTS), chosen.choice(ports)) for name in names)
        advertised_names = chosen.sample(names, chosen.choice((0, len(names), len(names), 1)))
        advertised_names += ["OTHER"] * (chosen.random() < 0.05)
        advertised = tuple(
            (name, chosen.choice(ADVERTISED_HOSTS), 9092) for name in advertised_names
        )
        mapped = {*names, *advertised_names}
        if chosen.random() < 0.05:
            mapped.pop()
        protocol = chosen.choice(("PLAINTEXT", "PLAINTEXT", "plaintext", "Plaintext", "PLAIN"))
        case = chosen.choice((str, str.upper, str.lower))
        protocols = ",".join(f"{case(name)}:{protocol}" for name in sorted(mapped))
        yield Case(bound, advertised, protocols, chosen.choice((str, str.upper))(names[0]))


class Kafka:
    """Apache Kafka in one JVM, started with one configuration after the other."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "server.properties"
        self._controller = free_port()
        self._data = directory / "data"
        self._write({"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"})
        arguments = ("format", "-t", "kBrokerCompatTests0001", "-c", str(self._file))
        java("kafka-4.4", "kafka.tools.StorageTool", *arguments)
        command = command_line("kafka-4.4", str(COMPAT / "java" / "ServerRunner.java"))
        self._jvm = ScriptProcess("kafka-4.4", command, directory / "jvm.log")

    def start_and_observe(self, case: Case, addresses: list[tuple[str, int]]) -> Listening | None:
        """Start Kafka and return its listeners, or None if it does not start."""
        self._write(case.properties)
        if self._jvm("start", properties=str(self._file))["refused"]:
            return None
        try:
            # The Metadata of a listener that is not advertised never lists brokers.
            is_complete = not case.advertised or not _not_advertised(case)
            return observe_listeners(addresses, REGISTERED_SECONDS if is_complete else 0)
        finally:
            self._jvm("stop")

    def close(self) -> None:
        self._jvm.close()

    def _write(self, values: Mapping[str, str]) -> None:
        controller = f"CONTROLLER://127.0.0.1:{self._controller}"
        protocols = values.get("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT")
        properties = {
            **values,
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._data),
            "listeners": f"{values['listeners']},{controller}",
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        }
        self._file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def observe_kbroker(case: Case, addresses: list[tuple[str, int]]) -> Listening | None:
    """Start kbroker in memory and return its listeners, or None if it does not start."""

    async def run() -> Listening | None:
        config = BrokerConfig.load(options=[f"{k}={v}" for k, v in case.properties.items()])
        try:
            listeners = configured_listeners(config)
            async with open_broker(config, data_dir=None, listeners=listeners):
                return await trio.to_thread.run_sync(observe_listeners, addresses, 0)
        except (ConfigError, CannotListen):
            return None

    return trio.run(run)


def observe_listeners(addresses: list[tuple[str, int]], seconds: float) -> Listening:
    """Request Metadata at all addresses, and wait this long for the broker to be listed."""
    found: Listening = {}
    ends_at = time.monotonic() + seconds
    for host, port in addresses:
        try:
            connection = RawConnection(f"{host}:{port}")
        except OSError:
            continue
        while True:
            message = messages.request_class(ApiKey.METADATA)(topics=[])
            brokers = connection.ask(ApiKey.METADATA, 9, message).brokers
            if brokers or time.monotonic() > ends_at:
                break
            time.sleep(0.02)
        connection.close()
        found[host, port] = [(each.host, each.port) for each in brokers]
    return found


def expected(
    case: Case, kafka: Listening | None, complete_result: Listening | None
) -> Listening | None:
    """Return kbroker's expected result for Kafka's result, with the intended differences.

    `complete_result` is Kafka's result if all listeners that `case` does not advertise are
    advertised as localhost.
    """
    advertised_names = {name.upper() for name, _, _ in case.advertised}
    base = complete_result if kafka is None else kafka
    if base is None:
        return None
    listening: Listening = {}
    for (host, port), brokers in base.items():
        listening[host, port] = brokers
        if any(each == ("localhost", port) for each in _bound_to(case)):
            listening["::1", port] = brokers
    by_place = {}
    for place in listening:
        name = _listener_at(case, *place)
        by_place[place] = listening[place] if name in advertised_names else [place]
    return by_place


def _not_advertised(case: Case) -> list[str]:
    """Return the listeners that `advertised.listeners` omits."""
    advertised_names = {name.upper() for name, _, _ in case.advertised}
    return [name for name, _, _ in case.bound if name.upper() not in advertised_names]


def _bound_to(case: Case) -> list[tuple[str, int]]:
    return [(host, port) for _, host, port in case.bound]


def _listener_at(case: Case, host: str, port: int) -> str:
    """Return the upper-case name of the listener that accepts connections at an address."""
    of_port = [(name, own) for name, own, number in case.bound if number == port]
    if len(of_port) > 1:  # one IPv4 and one IPv6 listener
        of_port = [(name, own) for name, own in of_port if (":" in own) == (":" in host)] or of_port
    return of_port[0][0].upper()


def test_listener_configurations_start_listen_and_advertise_as_in_kafka(tmp_path: Path) -> None:
    ports = (free_port(), free_port())
    outside = _outside()
    addresses = [(host, port) for host in ("127.0.0.1", "::1", *outside) for port in ports]
    kafka = Kafka(tmp_path)
    differences, started, refused = [], 0, 0
    try:
        for case in cases(ports):
            theirs = kafka.start_and_observe(case, addresses)
            started, refused = started + (theirs is not None), refused + (theirs is None)
            complete_result = None
            if theirs is None and (left_out := _not_advertised(case)):
                # Kafka rejects 0.0.0.0 as an advertised address and requires an advertised
                # inter-broker listener. kbroker advertises the address that the client used.
                with_localhost = (
                    *case.advertised,
                    *((name, "localhost", 9092) for name in left_out),
                )
                complete = Case(case.bound, with_localhost, case.protocols, case.between)
                complete_result = kafka.start_and_observe(complete, addresses)
            wanted = expected(case, theirs, complete_result)
            ours = observe_kbroker(case, addresses)
            if ours != wanted:
                differences.append(f"{case.properties}\n  Kafka: {wanted}\n  kbroker: {ours}")
    finally:
        kafka.close()
    print(f"{started} configurations started, {refused} were rejected")
    assert not differences, "\n".join([f"{len(differences)} differ", *differences])
    assert started >= STARTED_MIN
    assert refused >= REFUSED_MIN


def test_default_advertised_host_is_canonical_host_name_as_in_kafka(tmp_path: Path) -> None:
    port = free_port()
    kafka = Kafka(tmp_path)
    bound, advertised = (("PLAINTEXT", "", port),), (("PLAINTEXT", "", port),)
    case = Case(bound, advertised, "PLAINTEXT:PLAINTEXT", "PLAINTEXT")
    try:
        seen = kafka.start_and_observe(case, [("127.0.0.1", port)])
    finally:
        kafka.close()
    assert seen == {("127.0.0.1", port): [(canonical_host_name(), port)]}


def test_comparison_reports_listener_that_misses_ipv6() -> None:
    port = free_port()
    addresses = [("127.0.0.1", port), ("::1", port)]
    theirs: Listening = {place: [("localhost", port)] for place in addresses}
    for host, is_same in (("", True), ("127.0.0.1", False)):
        case = Case((("PLAINTEXT", host, port),), (), "PLAINTEXT:PLAINTEXT", "PLAINTEXT")
        assert (observe_kbroker(case, addresses) == expected(case, theirs, None)) is is_same


def _outside() -> list[str]:
    """Return the addresses of this machine's external interfaces, if any."""
    found = []
    for family, other in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((other, 9))
            except OSError:
                continue
            found.append(str(probe.getsockname()[0]))
    return found
