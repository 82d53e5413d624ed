"""`kbroker serve` with TLS and SASL listeners, and CLI commands that connect to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..cli.test_serve import run_serve, serving, wait_for
from .certificates import PASSWORD, Authority

SECONDS = 30


@contextmanager
def secured(*settings: str, flags: tuple[str, ...] = ()) -> Iterator[str]:
    """Run a server; yields its address."""
    given = [word for each in ("listeners=SSL://127.0.0.1:0", *settings) for word in ("-o", each)]
    with serving("--memory", "--json", *given, *flags) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline())]
        while events[-1]["event"] in ("starting", "warning"):
            events.append(json.loads(process.stdout.readline()))
        assert events[-1]["event"] == "ready", events
        yield events[-1]["bootstrap_servers"]


def kbroker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def client_options(*settings: str) -> list[str]:
    return [word for each in settings for word in ("-X", each)]


@pytest.mark.slow
def test_commands_work_over_tls(authority: Authority) -> None:
    with secured(f"ssl.keystore.location={authority.pem('server')}") as address:
        trusting = client_options(
            "security.protocol=SSL", f"ssl.truststore.location={authority.trusted}"
        )
        healthy = kbroker("health", "--bootstrap", address, *trusting)
        assert healthy.returncode == 0, healthy.stderr
        made = kbroker("topic", "create", "orders", "-b", address, *trusting)
        assert made.returncode == 0, made.stderr
        listed = kbroker("topic", "list", "-b", address, *trusting)
        assert "orders" in listed.stdout


@pytest.mark.slow
def test_commands_suggest_missing_tls_settings(authority: Authority) -> None:
    with secured(f"ssl.keystore.location={authority.pem('server')}") as address:
        plain = kbroker("topic", "list", "-b", address)
        assert plain.returncode == 1
        assert "if it speaks TLS, set security.protocol=SSL" in plain.stderr
        untrusting = kbroker("topic", "list", "-b", address, "-X", "security.protocol=SSL")
        assert untrusting.returncode == 1
        assert "ssl.truststore.location" in untrusting.stderr
        wrong = kbroker("topic", "list", "-b", address, "-X", "security.protocol=TLS")
        assert wrong.returncode == 2
        assert "valid: PLAINTEXT, SSL" in wrong.stderr


@pytest.mark.slow
def test_commands_present_client_certificate(authority: Authority) -> None:
    with secured(
        f"ssl.keystore.location={authority.pkcs12('server')}",
        f"ssl.keystore.password={PASSWORD}",
        f"ssl.truststore.location={authority.trusted}",
        "ssl.client.auth=required",
    ) as address:
        trusting = client_options(
            "security.protocol=SSL", f"ssl.truststore.location={authority.trusted}"
        )
        nobody = kbroker("health", "--bootstrap", address, *trusting)
        assert nobody.returncode == 1
        alice = client_options(f"ssl.keystore.location={authority.pem('alice')}")
        assert kbroker("health", "--bootstrap", address, *trusting, *alice).returncode == 0


@pytest.mark.slow
def test_seed_is_produced_to_tls_broker(authority: Authority, tmp_path: Path) -> None:
    seed = tmp_path / "seed.ndjson"
    seed.write_text('{"topic": "orders", "value": "first"}\n')
    own = f"ssl.keystore.location={authority.pem('server')}"
    with secured(own, flags=("--seed", str(seed))) as address:
        trusting = client_options(
            "security.protocol=SSL", f"ssl.truststore.location={authority.trusted}"
        )
        read = kbroker("topic", "consume", "orders", "-b", address, "-o", "start:end", *trusting)
        assert "first" in read.stdout, read.stderr


@pytest.mark.slow
def test_listener_prefix_overrides_settings(authority: Authority) -> None:
    """The prefix is `listener.name.NAME.`, as in Kafka (KIP-103)."""
    with secured(
        "listeners=PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:SSL",
        f"listener.name.inside.ssl.keystore.location={authority.pem('server')}",
    ) as address:
        assert kbroker("health", "--bootstrap", address).returncode == 0


@pytest.mark.slow
def test_tls_listener_without_certificate_rejects_start() -> None:
    ended = run_serve("--memory", "-o", "listeners=SSL://127.0.0.1:0")
    assert ended.returncode == 3
    assert "listener SSL: TLS needs a certificate: set ssl.keystore.location" in ended.stderr


LOGIN = (
    "listeners=SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms=SCRAM-SHA-256",
    'sasl.jaas.config=a.ScramLoginModule required user_alice="pencil";',
)


@pytest.mark.slow
def test_commands_authenticate_by_scram() -> None:
    with secured(*LOGIN) as address:
        protocol = client_options(
            "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256"
        )
        alice = 'sasl.jaas.config=a.ScramLoginModule required username="alice" password="%s";'
        right = kbroker("topic", "create", "t", "-b", address, *protocol, "-X", alice % "pencil")
        assert right.returncode == 0, right.stderr
        wrong = kbroker("topic", "list", "-b", address, *protocol, "-X", alice % "pen")
        assert wrong.returncode == 1
        assert "cannot authenticate as alice" in wrong.stderr
        healthy = kbroker("health", "--bootstrap", address, *protocol, "-X", alice % "pencil")
        assert healthy.returncode == 0, healthy.stderr


@pytest.mark.slow
def test_nodes_without_credentials_reject_start() -> None:
    settings = [word for each in LOGIN for word in ("-o", each)]
    ended = run_serve("--memory", *settings, "--nodes", "3")
    assert ended.returncode == 3
    assert "set sasl.mechanism.inter.broker.protocol, and username=..." in ended.stderr


@pytest.mark.slow
def test_seed_is_produced_despite_sasl_and_acls(tmp_path: Path) -> None:
    """The process itself needs neither authentication nor permissions."""
    seed = tmp_path / "seed.ndjson"
    seed.write_text('{"topic": "orders", "value": "first"}\n')
    rights = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:alice",
    )
    with secured(*LOGIN, *rights, flags=("--seed", str(seed))) as address:
        alice = 'sasl.jaas.config=a.ScramLoginModule required username="alice" password="pencil";'
        login = client_options(
            "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256", alice
        )
        read = kbroker("topic", "consume", "orders", "-b", address, "-o", "start:end", *login)
        assert "first" in read.stdout, read.stderr


@pytest.mark.slow
def test_anonymous_nodes_with_authorizer_reject_start() -> None:
    authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    ended = run_serve("--memory", "-o", authorizer, "--nodes", "3")
    assert ended.returncode == 3
    assert "to a SASL listener, or to an SSL listener with ssl.client.auth=required" in ended.stderr


@pytest.mark.slow
def test_nodes_of_data_directory_are_counted_for_security_check(tmp_path: Path) -> None:
    """Without --nodes, the data directory determines the number of nodes."""
    port = tmp_path / "port"
    data = ("--data-dir", str(tmp_path / "data"))
    with serving("--nodes", "2", "--port", "0", "--port-file", str(port), *data) as process:
        wait_for(port)
        process.terminate()
        process.communicate(timeout=SECONDS)
    authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    ended = run_serve(*data, "-o", authorizer)
    assert ended.returncode == 3
    assert "set inter.broker.listener.name to a SASL listener" in ended.stderr


@pytest.mark.slow
def test_strict_accepts_secured_public_listener(authority: Authority) -> None:
    key = authority.pem("server")
    key.chmod(0o600)
    own = (f"ssl.keystore.location={key}", f"ssl.truststore.location={authority.trusted}")
    asking = ("listeners=SSL://0.0.0.0:0", "ssl.client.auth=required")
    with secured(*asking, *own, flags=("--strict",)) as address:
        trusting = client_options("security.protocol=SSL", *own)
        port = address.rpartition(":")[2]
        answered = kbroker("health", "--bootstrap", f"localhost:{port}", *trusting)
        assert answered.returncode == 0, answered.stderr
