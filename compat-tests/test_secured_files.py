"""A `server.properties` that secures Apache Kafka secures kbroker without changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from harness.brokers import ApacheBroker, KbrokerBroker, free_port
from harness.clients import eventually
from harness.java import java

STORE_PASSWORD = "store pass"
WAIT_SECONDS = 30
QUIET = {"log_level": 0}
CLUSTER = "kBrokerSecuredFiles001"
TOPIC, GROUP = "orders", "readers"
FILE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=CONTROLLER://127.0.0.1:{controller},NODES://127.0.0.1:{nodes},\\
  LOGINS://127.0.0.1:{logins}, CERTIFICATES://127.0.0.1:{certificates}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,NODES:SASL_SSL,LOGINS:SASL_SSL,CERTIFICATES:SSL
inter.broker.listener.name=NODES
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false

# Certificates
listener.name.nodes.ssl.keystore.type=PKCS12
listener.name.nodes.ssl.keystore.location={store}
listener.name.nodes.ssl.keystore.password={password}
listener.name.logins.ssl.keystore.type=PKCS12
listener.name.logins.ssl.keystore.location={store}
listener.name.logins.ssl.keystore.password={password}
ssl.truststore.type=PEM
ssl.truststore.location={trusted}
ssl.client.auth=required
listener.name.certificates.ssl.keystore.type=PEM
listener.name.certificates.ssl.keystore.key={key}
listener.name.certificates.ssl.keystore.certificate.chain={chain}
ssl.principal.mapping.rules=RULE:^CN=([^,]+),OU=People,.*$/$1/L,\\
  DEFAULT

# Authentication
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.nodes.sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.nodes.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \\
    required username="node" password="n s=;c" user_node="n s=;c";
listener.name.logins.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
   user_admin="a-secret" \\
   user_bob="b\\\\"secret" ;
listener.name.logins.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;

# Authorization
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:node;User:CN=root,OU=Ops,O=Acme\\\\, Inc.;User:ANONYMOUS
allow.everyone.if.no.acl.found=false
connections.max.reauth.ms=3600000
principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
"""


class SecuredAddresses(NamedTuple):
    """A broker's properties file and the addresses of its listeners."""

    file: Path
    logins: str
    certificates: str


class CertificateAuthority:
    """A CA that issues the certificates of all brokers and clients."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self.directory = directory
        self.trusted = directory / "trusted.pem"
        self._ca.cert_pem.write_to_path(self.trusted)

    def server(self) -> tuple[bytes, bytes]:
        """Return a private key as PKCS#8, the only format that Java reads, and certificates."""
        leaf = self._ca.issue_cert("localhost", "127.0.0.1")
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), chain

    def store(self) -> Path:
        """Write the server's key and certificates as PKCS#12."""
        key, chain = self.server()
        own, *others = x509.load_pem_x509_certificates(chain)
        path = self.directory / "server.p12"
        loaded: Any = load_pem_private_key(key, None)
        lock = BestAvailableEncryption(STORE_PASSWORD.encode())
        path.write_bytes(serialize_key_and_certificates(b"server", loaded, own, others, lock))
        return path

    def client(self, name: str, **more: str) -> dict[str, Any]:
        """Return librdkafka settings for a client certificate with this common name."""
        leaf = self._ca.issue_cert("anybody.test", common_name=name, **more)
        path = self.directory / f"{name}.pem"
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.trusted),
            "ssl.key.location": str(path),
            "ssl.certificate.location": str(path),
        }

    def login(self, mechanism: str, name: str, password: str) -> dict[str, Any]:
        """Return librdkafka settings for SASL authentication."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.trusted),
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
        }


def as_value(pem: bytes) -> str:
    """Return a multi-line string as one value of a properties file."""
    return pem.decode().strip().replace("\n", "\\n\\\n    ")


class FileConfigured:
    """A broker that is started only from a properties file."""

    place: SecuredAddresses


class FileConfiguredKafka(FileConfigured, ApacheBroker):
    """Apache Kafka 4.4."""

    def _prepare(self) -> None:
        self.port = int(self.place.logins.rpartition(":")[2])
        file = str(self.place.file)
        java("kafka-4.4", "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", file)

    def _command(self) -> list[str]:
        *command, _ = super()._command()
        return [*command, str(self.place.file)]


class FileConfiguredKbroker(FileConfigured, KbrokerBroker):
    """`kbroker serve --config`."""

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "kbroker", "serve", "--config", str(self.place.file)]
        return [*command, "--port-file", str(self._port_file), "--exit-with-parent"]


KINDS: Mapping[str, type[FileConfiguredKafka | FileConfiguredKbroker]] = {
    "kafka": FileConfiguredKafka,
    "kbroker": FileConfiguredKbroker,
}


def write_file(directory: Path, authority: CertificateAuthority) -> SecuredAddresses:
    key, chain = authority.server()
    controller, nodes, logins, certificates = (free_port() for _ in range(4))
    text = FILE.format(
        controller=controller,
        nodes=nodes,
        logins=logins,
        certificates=certificates,
        data=directory / "data",
        store=authority.store(),
        password=STORE_PASSWORD,
        trusted=authority.trusted,
        key=as_value(key),
        chain=as_value(chain),
    )
    path = directory / "server.properties"
    path.write_text(text)
    return SecuredAddresses(path, f"127.0.0.1:{logins}", f"127.0.0.1:{certificates}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("certificates"))


@contextmanager
def running(
    kind: str, directory: Path, authority: CertificateAuthority
) -> Iterator[SecuredAddresses]:
    directory.mkdir()
    broker = KINDS[kind](directory)
    broker.place = write_file(directory, authority)
    broker.start()
    try:
        yield broker.place
    except BaseException:
        print(broker.log_tail())
        raise
    finally:
        broker.kill()


def test_same_properties_file_secures_both_brokers_alike(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    seen = {}
    for kind in KINDS:
        with running(kind, tmp_path / kind, authority) as place:
            seen[kind] = results_of_clients(place, authority)
    assert seen["kbroker"] == seen["kafka"]
    first, later = seen["kbroker"]["at first"], seen["kbroker"]["with rights"]
    assert first["alice"]["write"] == "TOPIC_AUTHORIZATION_FAILED"
    assert later["alice"] == {
        "topics": [TOPIC],
        "make": "TOPIC_AUTHORIZATION_FAILED",
        "write": "",
        "read": "",
    }
    assert later["bob"]["read"] == ""
    assert first["root"] == {"topics": [TOPIC], "make": "", "write": "", "read": ""}
    assert seen["kbroker"]["wrong"] == {
        "password": "_AUTHENTICATION",
        "no certificate": "_TRANSPORT",
        "stranger": "_TRANSPORT",
    }


def results_of_clients(place: SecuredAddresses, authority: CertificateAuthority) -> dict[str, Any]:
    """Return the results of several clients before and after some of them get permissions."""
    admin = authority.login("PLAIN", "admin", "a-secret") | at(place.logins)
    make(AdminClient(admin | QUIET), TOPIC)
    people = {
        "alice": authority.client("Alice", organization_unit_name="People")
        | at(place.certificates),
        "carol": authority.client("carol", organization_unit_name="Machines")
        | at(place.certificates),
        "root": authority.client(
            "root", organization_unit_name="Ops", organization_name="Acme, Inc."
        )
        | at(place.certificates),
        "bob": authority.login("PLAIN", "bob", 'b"secret') | at(place.logins),
        "dave": authority.login("SCRAM-SHA-512", "dave", "d-secret") | at(place.logins),
    }
    new_user(admin, "dave", "d-secret")
    at_first = {name: request_results(each) for name, each in people.items()}
    allow(
        admin,
        *acls(ResourceType.TOPIC, TOPIC, "alice", AclOperation.WRITE, AclOperation.READ),
        *acls(ResourceType.GROUP, GROUP, "alice", AclOperation.READ),
        *acls(ResourceType.TOPIC, TOPIC, "bob", AclOperation.READ),
        *acls(ResourceType.GROUP, GROUP, "bob", AclOperation.READ),
        *acls(ResourceType.TOPIC, TOPIC, "dave", AclOperation.WRITE),
        *acls(ResourceType.TOPIC, TOPIC, "CN=carol,OU=Machines,O=Acme", AclOperation.ALL),
    )
    with_rights = {name: request_results(each) for name, each in people.items()}
    return {
        "at first": at_first,
        "with rights": with_rights,
        "wrong": authentication_errors(place, authority),
    }


def authentication_errors(
    place: SecuredAddresses, authority: CertificateAuthority
) -> dict[str, str]:
    """Return librdkafka's errors of clients that cannot authenticate."""
    stranger = CertificateAuthority(
        authority.directory.parent / f"{authority.directory.name}-stranger"
    )
    no_certificate = {"security.protocol": "SSL", "ssl.ca.location": str(authority.trusted)}
    mallory = stranger.client("Alice", organization_unit_name="People")
    mallory["ssl.ca.location"] = str(authority.trusted)
    return {
        "password": first_error(authority.login("PLAIN", "bob", "guess") | at(place.logins)),
        "no certificate": first_error(no_certificate | at(place.certificates)),
        "stranger": first_error(mallory | at(place.certificates)),
    }


def first_error(settings: Mapping[str, Any]) -> str:
    """Return the first error that a client reports, or an empty string."""
    errors: list[KafkaError] = []
    admin = AdminClient({**settings, **QUIET, "error_cb": errors.append})
    with suppress(KafkaException):
        admin.list_topics(timeout=0.5)
        return ""
    while not errors:
        admin.poll(1)
    return errors[0].name()


def at(address: str) -> dict[str, str]:
    return {"bootstrap.servers": address}


def request_results(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error of each kind of request, or an empty string."""
    given = {**settings, **QUIET}
    admin = AdminClient(given)
    try:
        names = admin.list_topics(timeout=WAIT_SECONDS).topics
    except KafkaException as error:
        return {"topics": None, "error": name_of(error.args[0])}
    return {
        "topics": sorted(each for each in names if not each.startswith("__")),
        "make": failure_of(admin.create_topics([NewTopic("new", 1)], validate_only=True)["new"]),
        "write": write(given),
        "read": read(given),
    }


def write(given: Mapping[str, Any]) -> str:
    errors: list[KafkaError | None] = []
    producer = Producer(given)
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
    assert not producer.flush(WAIT_SECONDS)
    return name_of(errors[0])


def read(given: Mapping[str, Any]) -> str:
    consumer = Consumer(
        {**given, "group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([TOPIC])
    try:
        found = consumer.poll(WAIT_SECONDS)
        assert found is not None, "no record received"
        return name_of(found.error())
    finally:
        consumer.close()


def name_of(error: KafkaError | None) -> str:
    return "" if error is None else str(error.name())


def failure_of(future: Future[Any]) -> str:
    try:
        future.result(WAIT_SECONDS)
    except KafkaException as error:
        return name_of(error.args[0])
    return ""


def make(admin: AdminClient, topic: str) -> None:
    admin.list_topics(timeout=WAIT_SECONDS)
    assert failure_of(admin.create_topics([NewTopic(topic, 1)])[topic]) == ""
    eventually(lambda: admin.list_topics(timeout=5).topics, lambda names: topic in names, topic)


def new_user(admin: Mapping[str, Any], name: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    row = UserScramCredentialUpsertion(name, info, password.encode())
    client = AdminClient({**admin, **QUIET})
    assert failure_of(client.alter_user_scram_credentials([row])[name]) == ""


def acls(kind: ResourceType, name: str, who: str, *operations: AclOperation) -> list[AclBinding]:
    literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return [
        AclBinding(kind, name, literal, f"User:{who}", "*", each, allowed) for each in operations
    ]


def allow(admin: Mapping[str, Any], *bindings: AclBinding) -> None:
    client = AdminClient({**admin, **QUIET})
    for made in client.create_acls(list(bindings)).values():
        assert failure_of(made) == ""
