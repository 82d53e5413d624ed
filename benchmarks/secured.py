"""Benchmark of kbroker and Apache Kafka with TLS: `python -m benchmarks.secured --write`.

With `--acls` it compares kbroker with and without ACLs; clients authenticate in both cases.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from kbroker.config.broker_table import STANDARD_AUTHORIZER

from .__main__ import OUR_HEADINGS, comparison_parser, render_section, run, write_section
from .brokers import METADATA_REQUEST, BenchmarkFailed, Broker, Kafka, Kbroker, free_port
from .python_client import timed
from .rows import Sample
from .turns import Record, recorded

PROGRAM = "benchmarks.secured"
ROWS = ["bulk", "ping", "pipelined", "produce at rate"]
# Number of threads that perform handshakes at the same time.
HANDSHAKE_THREADS = 4
HANDSHAKE_SECONDS = 5.0
WAIT_SECONDS = 60
HOST = "localhost"
TITLE = "## With TLS"
INTRODUCTION = """\
Written by `python -m benchmarks.secured`: all connections use TLS, with an elliptic-curve certificate and the cipher that
OpenSSL and Java negotiate. Four threads of one Python process perform the handshakes; if the broker is not busy, they limit
the result. Both brokers use Kafka's default of `max.connection.creation.rate`; kbroker's own default is 500 per second.
"""
UNLIMITED = {"max.connection.creation.rate": "2147483647"}
USER, PASSWORD = "bench", "secret"
# Number of ACLs of other users.
OTHER_ACLS = 200
ACLS_TITLE = "## With ACLs"


class CertificateFiles(NamedTuple):
    """Paths of a certificate with its key, and of the trusted CA certificate."""

    own: Path
    trusted: Path


def create_certificates(directory: Path) -> CertificateFiles:
    """Create a certificate and a CA in files that OpenSSL and Java read."""
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST)
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    own, trusted = directory / "own.pem", directory / "trusted.pem"
    # Java reads PKCS#8 keys only.
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    own.write_bytes(pem + b"".join(each.bytes() for each in leaf.cert_chain_pems))
    authority.cert_pem.write_to_path(trusted)
    return CertificateFiles(own, trusted)


class Encrypted(Broker):
    """A broker with an additional TLS listener, which the clients use."""

    def _make_stores(self) -> Mapping[str, str]:
        """Create certificates and return the TLS settings for them."""
        made = create_certificates(self.directory)
        self.secure_port = free_port()
        self.trusted = made.trusted
        self.client = {"security.protocol": "SSL", "ssl.ca.location": str(made.trusted)}
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(made.own)}

    @property
    def address(self) -> str:
        return f"{HOST}:{self.secure_port}"


class EncryptedKbroker(Encrypted, Kbroker):
    """`kbroker serve` with TLS."""

    def _commands(self) -> list[list[str]]:
        both = f"PLAINTEXT://127.0.0.1:{self.ports[0]},SSL://{HOST}:"
        self.settings = {**self.settings, **self._make_stores(), **UNLIMITED}
        return [self._command("-o", f"listeners={both}{self.secure_port}")]


class EncryptedKafka(Encrypted, Kafka):
    """Apache Kafka with TLS."""

    def _write_properties(self, name: str, text: str) -> Path:
        protocols = "SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        own = {"listener.security.protocol.map": protocols, **self._make_stores()}
        self.settings = {**self.settings, **own}
        for key in ("listeners", "advertised.listeners"):
            text = text.replace(f"\n{key}=", f"\n{key}=SSL://{HOST}:{self.secure_port},")
        return super()._write_properties(name, text)


BROKERS: Mapping[str, type[Encrypted]] = {"kbroker": EncryptedKbroker, "kafka": EncryptedKafka}


# -- handshakes


def handshakes(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the handshake rates, measured in turns; nothing is synced to disk."""
    durable = options.durable[0]
    brokers: dict[str, Encrypted] = {}
    try:
        for name in options.brokers:
            kind = BROKERS[name]
            directory = options.directory / f"{kind.name}-handshakes"
            brokers[name] = kind(directory, durable=durable)
            _count_handshakes(brokers[name], options.warm)
        for repeat in range(options.repeat):
            for broker in brokers.values():
                with timed(broker) as watch:
                    count = _count_handshakes(broker, HANDSHAKE_SECONDS * options.scale)
                cpu = watch.cpu_seconds / count * 1e3
                sample = Sample("handshakes", count / watch.seconds, cpu)
                yield recorded(sample, broker.name, durable, repeat)
    finally:
        for broker in brokers.values():
            broker.stop()


def _count_handshakes(broker: Encrypted, seconds: float) -> int:
    """Connect repeatedly for a number of seconds; return the number of handshakes."""
    context = ssl.create_default_context(cafile=str(broker.trusted))
    counts = [0] * HANDSHAKE_THREADS
    ends = time.monotonic() + seconds

    def connect(number: int) -> None:
        while time.monotonic() < ends:
            _connect(broker.secure_port, context)
            counts[number] += 1

    threads = [
        threading.Thread(target=connect, args=(number,)) for number in range(HANDSHAKE_THREADS)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if not all(counts):
        raise BenchmarkFailed(f"{broker.name} does not accept TLS clients")
    return sum(counts)


def _connect(port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection((HOST, port), WAIT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        secured.sendall(METADATA_REQUEST)
        if not secured.recv(4096):
            raise BenchmarkFailed("a broker closed a connection")


# -- ACLs


class AuthenticatedKbroker(Kbroker):
    """`kbroker serve` with SASL authentication and without ACLs."""

    client: Mapping[str, str] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }

    def _commands(self) -> list[list[str]]:
        both = f"PLAINTEXT://127.0.0.1:{self.ports[0]},SASL_PLAINTEXT://{HOST}:"
        self.secure_port = free_port()
        self.settings = {
            **self.settings,
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.jaas.config": f'PlainLoginModule required user_{USER}="{PASSWORD}";',
        }
        return [self._command("-o", f"listeners={both}{self.secure_port}")]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.secure_port}"


class KbrokerWithAcls(AuthenticatedKbroker):
    """`kbroker serve` with SASL authentication and ACLs, most of which belong to other users."""

    def _commands(self) -> list[list[str]]:
        rules = {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
        }
        self.settings = {**self.settings, **rules}
        return super()._commands()

    def start(self) -> None:
        super().start()
        _create_acls(f"127.0.0.1:{self.ports[0]}")


class KbrokerWithoutAcls(AuthenticatedKbroker):
    """The broker without ACLs in the comparison."""

    name = "kbroker without ACLs"


def _create_acls(address: str) -> None:
    """Create ACLs for the user of the benchmark, and for many other users."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    def acl(kind: ResourceType, name: str, pattern: ResourcePatternType, user: str) -> AclBinding:
        allow = AclPermissionType.ALLOW
        return AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation.ALL, allow)

    every, begins = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    own = [
        acl(ResourceType.TOPIC, "*", every, USER),
        acl(ResourceType.GROUP, "*", every, USER),
        acl(ResourceType.BROKER, "kafka-cluster", every, USER),
    ]
    others = [
        acl(ResourceType.TOPIC, f"topic-{number}", begins, f"other-{number}")
        for number in range(OTHER_ACLS)
    ]
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_acls([*own, *others]).values():
        made.result(WAIT_SECONDS)


ACL_BROKERS: Mapping[str, type[Broker]] = {
    "kbroker": KbrokerWithAcls,
    "without": KbrokerWithoutAcls,
}


def main() -> None:
    parser = comparison_parser(PROGRAM, __doc__, BROKERS)
    parser.set_defaults(rows=ROWS)
    parser.add_argument("--acls", action="store_true", help="measure the cost of ACLs")
    options = parser.parse_args()
    if options.acls:
        if options.write:
            parser.error("--write cannot be combined with --acls")
        options.brokers = [*ACL_BROKERS]
        report = run(options, ACL_BROKERS)
        print(render_section(report, ACLS_TITLE, "", OUR_HEADINGS, [KbrokerWithoutAcls.name]))
        return
    text = render_section(run(options, BROKERS, None, handshakes(options)), TITLE, INTRODUCTION)
    print(text)
    if options.write:
        write_section(text, PROGRAM)


if __name__ == "__main__":
    main()
