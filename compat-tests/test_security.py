"""TLS and SASL listeners with every client."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from harness.brokers import Broker, free_port
from harness.clients import LIBRARIES, ClientProcess, Library, eventually
from harness.java import java
from harness.places import CLIENTS, environment_python
from harness.tools import COMMANDS, Tools
from joserfc import jwt
from joserfc.jwk import ECKey
from test_kcat import program

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

Unique = Callable[[str], str]
Spawn = Callable[..., ClientProcess]


USER, PASSWORD = "alice", "pencil"
# Password of users that are created while the broker runs.
BRUSH = "brush"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER = "OAUTHBEARER"
ISSUER, AUDIENCE = "https://issuer.test", "kafka"
TOKEN_SECONDS = 60
SESSION_SECONDS = 2
BUSY_SECONDS = 10
# Minimum number of reauthentications. There are four or five, or fewer if a slow machine starts
# late.
AGAIN_MIN = 2


class Secured(NamedTuple):
    """A broker and what clients need to connect to it.

    Attributes:
        broker: The broker.
        guarded: Address of the listener with SASL authentication.
        short: Address of the listener with sessions that require reauthentication.
        trusted: CA certificates.
        client: Key and certificate of a client.
        token: File with a valid OAuth token.
    """

    broker: Broker
    guarded: str
    short: str
    trusted: Path
    client: Path
    token: Path

    @property
    def address(self) -> str:
        return self.broker.address


@pytest.fixture(scope="module")
def secured(
    make_broker: Callable[..., Broker],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    trusted, server, client = (directory / f"{each}.pem" for each in ("ca", "server", "client"))
    authority.cert_pem.write_to_path(str(trusted))
    for path in (server, client):
        leaf = authority.issue_cert("localhost", "127.0.0.1", common_name=path.stem)
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        path.write_bytes(_as_java_reads_it(leaf.private_key_pem.bytes()) + chain)
    key = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
    keys, token = directory / "keys.json", directory / "token"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    guarded, short = (f"127.0.0.1:{free_port()}" for _ in range(2))
    users = f'required user_{USER}="{PASSWORD}";'
    broker = make_broker(
        "secured",
        {
            "listeners": f"SSL://127.0.0.1:0,SASL_SSL://{guarded},SHORT://{short}",
            "listener.security.protocol.map": "SSL:SSL,SASL_SSL:SASL_SSL,SHORT:SASL_SSL",
            "sasl.enabled.mechanisms": ",".join((*MECHANISMS, OAUTHBEARER)),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "listener.name.short.connections.max.reauth.ms": str(SESSION_SECONDS * 1000),
            "listener.name.short.scram-sha-256.sasl.jaas.config": (
                f"{MODULES['SCRAM-SHA-256']} {users}"
            ),
            **{
                f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config": (
                    f"{MODULES[mechanism]} {users}"
                )
                for mechanism in MECHANISMS
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "ssl.client.auth": "requested",
        },
    )
    broker.start()
    with issuing(key, token):
        yield Secured(broker, guarded, short, trusted, client, token)
    broker.kill()


@contextmanager
def issuing(key: ECKey, path: Path) -> Iterator[None]:
    """Write a token to a file, and a new one every second, as a sidecar does."""
    over = threading.Event()

    def issue() -> None:
        while True:
            now = int(time.time())
            times = {"iat": now, "exp": now + TOKEN_SECONDS, "jti": str(time.time())}
            claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "scope": "all", **times}
            fresh = path.with_suffix(".new")
            fresh.write_text(jwt.encode({"alg": "ES256", "kid": "one"}, claims, key))
            fresh.replace(path)
            if over.wait(1):
                return

    thread = threading.Thread(target=issue)
    thread.start()
    eventually(path.exists, bool, "a token")
    yield
    over.set()
    thread.join()


def _as_java_reads_it(key: bytes) -> bytes:
    """Return a private key as PKCS#8, the only PEM format that Java reads."""
    return load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


@pytest.mark.needs("tls")
@pytest.mark.everyone
def test_client_reads_with_group_over_tls(
    client: Library,
    secured: Secured,
    spawn: Spawn,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPAT_TRUSTED", str(secured.trusted))
    check(spawn(client, secured.address), client, unique)


@pytest.mark.needs("tls")
@pytest.mark.everyone
def test_client_authenticates_with_plain(
    client: Library,
    secured: Secured,
    spawn: Spawn,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPAT_TRUSTED", str(secured.trusted))
    monkeypatch.setenv("COMPAT_LOGIN", f"PLAIN:{USER}:{PASSWORD}")
    check(spawn(client, secured.guarded), client, unique)


@pytest.mark.needs("tls", "scram")
@pytest.mark.everyone
@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_client_authenticates_with_scram(
    client: Library,
    mechanism: str,
    secured: Secured,
    spawn: Spawn,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPAT_TRUSTED", str(secured.trusted))
    monkeypatch.setenv("COMPAT_LOGIN", f"{mechanism}:{USER}:{PASSWORD}")
    check(spawn(client, secured.guarded), client, unique)


@pytest.mark.needs("tls", "oauth")
@pytest.mark.everyone
def test_client_authenticates_with_token(
    client: Library,
    secured: Secured,
    spawn: Spawn,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPAT_TRUSTED", str(secured.trusted))
    monkeypatch.setenv("COMPAT_LOGIN", f"{OAUTHBEARER}:{USER}:{secured.token}")
    check(spawn(client, secured.guarded), client, unique)


def check(worker: ClientProcess, client: Library, unique: Unique) -> None:
    """Write records and read them without and with a group."""
    topic, values = unique("topic"), [str(number) * 1000 for number in range(100)]
    worker.admin("create_topic", name=topic)
    worker("produce", topic=topic, records=[{"value": each} for each in values])
    rows = worker("read", topic=topic, count=len(values))
    assert [row["value"] for row in rows] == values
    if client.groups:
        worker("join", member="me", topics=[topic], group=unique("group"))
        eventually(
            lambda: worker("rows", member="me"), lambda seen: len(seen) == len(values), "read"
        )


@pytest.mark.parametrize("mechanism", [OAUTHBEARER, "SCRAM-SHA-256"])
def test_librdkafka_reauthenticates_on_same_connection(
    mechanism: str, secured: Secured, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is kept, with each mechanism, and the application gets no error."""
    secret = secured.token if mechanism == OAUTHBEARER else PASSWORD
    monkeypatch.setenv("COMPAT_TRUSTED", str(secured.trusted))
    monkeypatch.setenv("COMPAT_LOGIN", f"{mechanism}:{USER}:{secret}")
    python, script = environment_python("confluent-kafka"), CLIENTS / "sessions.py"
    done = subprocess.run(
        [python, script, secured.short, unique("topic"), str(BUSY_SECONDS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    report = json.loads(done.stdout)
    assert report["failed"] == 0, report
    assert report["errors"] == [], report
    assert report["written"] > BUSY_SECONDS * 10, report
    connects = [count for name, count in report["connects"].items() if name.endswith("/1")]
    assert connects == [1], report


def with_tokens(secured: Secured) -> str:
    """Return settings of Java's client for a token in a file (KIP-768)."""
    package = "org.apache.kafka.common.security.oauthbearer"
    return (
        f"security.protocol=SASL_SSL\nsasl.mechanism={OAUTHBEARER}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.trusted}\n"
        f"sasl.jaas.config={package}.OAuthBearerLoginModule required;\n"
        f"sasl.login.callback.handler.class={package}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url={secured.token.as_uri()}\n"
    )


def _busy_java(
    jar_set: str, address: str, topic: str, settings: Path, seconds: int
) -> dict[str, float]:
    """Run a Java producer with 100 records per second and no errors, and return its metrics."""
    rate = 100
    output = java(
        jar_set,
        COMMANDS["kafka-producer-perf-test"],
        *("--topic", topic, "--num-records", str(seconds * rate), "--record-size", "100"),
        *("--throughput", str(rate), "--print-metrics"),
        *("--producer-props", f"bootstrap.servers={address}"),
        *("--producer.config", str(settings)),
    )
    assert f"{seconds * rate} records sent" in output, output
    found = re.findall(r"producer-metrics:([\w-]+):\{.*\} *: ([\d.]+)", output)
    metrics = {name: float(value) for name, value in found}
    for name in (
        "failed-reauthentication-total",
        "connection-close-total",
        "record-error-total",
        "record-retry-total",
    ):
        assert metrics[name] == 0, output
    return metrics


@pytest.mark.parametrize("jar_set", ["kafka-4.4", "kafka-3.9"])
def test_java_reauthenticates_on_same_connection(
    secured: Secured, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jar_set: str
) -> None:
    """Uses a token from a file, on one connection."""
    settings = tmp_path / "client.properties"
    text = with_tokens(secured)
    if jar_set == "kafka-3.9":
        text = text.replace(
            "oauthbearer.OAuthBearerLoginC", "oauthbearer.secured.OAuthBearerLoginC"
        )
    settings.write_text(text)
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={secured.token.as_uri()}"
    monkeypatch.setenv("JDK_JAVA_OPTIONS", allowed)
    for seconds in (BUSY_SECONDS, 4 * BUSY_SECONDS):
        metrics = _busy_java(jar_set, secured.short, unique("topic"), settings, seconds)
        again = metrics["successful-reauthentication-total"]
        if again >= AGAIN_MIN:  # otherwise the slow start left too little time
            break
    assert again >= AGAIN_MIN


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_kafka_tools_connect_with_tls_version(
    secured: Secured, tools: Tools, unique: Unique, tmp_path: Path, version: str
) -> None:
    """The tools verify the host name in the certificate and present a client certificate."""
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SSL\n"
        f"ssl.enabled.protocols={version}\nssl.protocol={version}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.trusted}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={secured.client}\n"
    )
    topic = unique("topic")
    connection_options = ("--bootstrap-server", secured.address, "--command-config", str(settings))
    made = tools.run("kafka-topics", *connection_options, "--create", "--topic", topic)
    assert made.status == 0, made
    written = tools.run(
        "kafka-console-producer", *connection_options, "--topic", topic, stdin="one\ntwo\nthree\n"
    )
    assert written.status == 0, written
    read = tools.run(
        "kafka-console-consumer",
        *connection_options,
        *("--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"),
    )
    assert read.stdout.split() == ["one", "two", "three"], read


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_tools_authenticate_with_mechanism(
    secured: Secured, tools: Tools, unique: Unique, tmp_path: Path, mechanism: str
) -> None:
    settings = tmp_path / "client.properties"
    text = (
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.trusted}\n"
        f'sasl.jaas.config={MODULES[mechanism]} required username="{USER}" password="%s";\n'
    )
    settings.write_text(text % PASSWORD)
    topic = unique("topic")
    connection_options = ("--bootstrap-server", secured.guarded, "--command-config", str(settings))
    made = tools.run("kafka-topics", *connection_options, "--create", "--topic", topic)
    assert made.status == 0, made
    settings.write_text(text % "pen")
    refused = tools.run("kafka-topics", *connection_options, "--list")
    assert refused.status == 1, refused
    assert "SaslAuthenticationException: Authentication failed" in refused.stdout + refused.stderr


def made_by_kafka_configs(
    secured: Secured, tools: Tools, directory: Path, name: str, mechanism: str
) -> None:
    settings = directory / "admin.properties"
    settings.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.trusted}\n"
    )
    connection_options = ("--bootstrap-server", secured.address, "--command-config", str(settings))
    made = tools.run(
        "kafka-configs",
        *connection_options,
        *("--alter", "--entity-type", "users", "--entity-name", name),
        *("--add-config", f"{mechanism}=[iterations=8192,password={BRUSH}]"),
    )
    assert made.status == 0, made


def made_by_kbroker(secured: Secured, name: str, mechanism: str) -> None:
    options = ["security.protocol=SSL", f"ssl.truststore.location={secured.trusted}"]
    words = ["security", "user", "add", name, "--mechanism", mechanism, "-b", secured.address]
    words += [word for each in options for word in ("-X", each)]
    subprocess.run(
        [sys.executable, "-m", "kbroker", *words], input=BRUSH, text=True, check=True, timeout=30
    )


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
@pytest.mark.parametrize("maker", ["kafka-configs", "kbroker", "confluent-kafka", "kafka-python-3"])
def test_users_created_at_runtime_can_authenticate(
    maker: str,
    mechanism: str,
    secured: Secured,
    spawn: Spawn,
    tools: Tools,
    unique: Unique,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Users from each tool can authenticate with the clients of all (KIP-554)."""
    name = unique("user")
    monkeypatch.setenv("COMPAT_TRUSTED", str(secured.trusted))
    if maker == "kafka-configs":
        made_by_kafka_configs(secured, tools, tmp_path, name, mechanism)
    elif maker == "kbroker":
        made_by_kbroker(secured, name, mechanism)
    else:
        worker = spawn(LIBRARIES[maker], secured.address)
        iterations = worker.admin("make_user", name=name, mechanism=mechanism, password=BRUSH)
        assert iterations.keys() == {mechanism}
    monkeypatch.setenv("COMPAT_LOGIN", f"{mechanism}:{name}:{BRUSH}")
    for library in ("confluent-kafka", "kafka-python-3", "kafka-python-2", "aiokafka"):
        worker = spawn(LIBRARIES[library], secured.guarded)
        topic = unique(f"topic-{library}")
        worker.admin("create_topic", name=topic)
        assert topic in worker.admin("topics")
    settings = tmp_path / "client.properties"
    settings.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.trusted}\n"
        f'sasl.jaas.config={MODULES[mechanism]} required username="{name}" password="{BRUSH}";\n'
    )
    connection_options = ("--bootstrap-server", secured.guarded, "--command-config", str(settings))
    listed = tools.run("kafka-topics", *connection_options, "--list")
    assert topic in listed.stdout, listed


def test_java_perf_tools_run_at_full_speed(
    secured: Secured, tools: Tools, unique: Unique, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.trusted}\n"
    )
    topic, count = unique("topic"), "100000"
    sent = tools.run(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", count, "--record-size", "1000", "--throughput", "-1"),
        *("--bootstrap-server", secured.address, "--command-config", str(settings)),
    )
    assert f"{count} records sent" in sent.stdout, sent
    read = tools.run(
        "kafka-consumer-perf-test",
        *("--topic", topic, "--num-records", count, "--timeout", "30000", "--hide-header"),
        *("--bootstrap-server", secured.address, "--command-config", str(settings)),
    )
    assert float(read.stdout.strip().splitlines()[-1].split(",")[4]) >= float(count), read


def test_kcat_writes_and_reads_over_tls(secured: Secured, unique: Unique) -> None:
    topic = unique("topic")
    options = ["-X", "security.protocol=ssl", "-X", f"ssl.ca.location={secured.trusted}"]
    command = [program(), "-b", secured.address, *options]
    subprocess.run([*command, "-P", "-t", topic], input=b"hello\n", check=True, timeout=30)
    read = subprocess.run(
        [*command, "-C", "-t", topic, "-e", "-q"], capture_output=True, check=True, timeout=30
    )
    assert read.stdout == b"hello\n"


def test_client_with_other_ca_rejects_certificate(secured: Secured, unique: Unique) -> None:
    """The client rejects the certificate, and the broker continues."""
    host, _, port = secured.address.rpartition(":")
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.get_server_certificate((host, int(port)), ca_certs=str(_stranger(secured)))


def _stranger(secured: Secured) -> Path:
    path = secured.trusted.with_name("stranger.pem")
    trustme.CA().cert_pem.write_to_path(str(path))
    return path
