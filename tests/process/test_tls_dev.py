"""Tests of `kbroker serve --tls-dev`, which starts a secure server with one flag."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from kbroker.config import BrokerConfig, ConfigError
from kbroker.process.dev_files import SECRETS
from kbroker.process.errors import StartFailed
from kbroker.process.tls_dev import DevSecurity, hosts_of
from kbroker.security.certificate_authority import CertificateAuthority, Pair
from kbroker.security.tls import client_context, server_context

from ..cli.test_serve import SECONDS, run_serve, serving, wait_for
from ..security.test_stores import handshake, setting

KBROKER = [sys.executable, "-m", "kbroker"]
ADDRESS = "localhost:9092"
# A small terminal.
SCREEN_LINES, SCREEN_COLUMNS = 24, 80
NOW = datetime(2026, 11, 24, tzinfo=UTC)
HOSTS = ("localhost", "127.0.0.1", "::1", "box.example")


@contextmanager
def secured(directory: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """Run a server with its data below `directory`, and yield its ready event."""
    port = directory / "port.json"
    storage_options = () if "--memory" in flags else ("--data-dir", str(directory / "data"))
    with serving(
        "--tls-dev", "--port", "0", "--port-file", str(port), *storage_options, *flags
    ) as process:
        ready = json.loads(wait_for(port))
        yield ready
        process.send_signal(signal.SIGTERM)
        ready["output"], ready["errors"] = process.communicate(timeout=SECONDS)


def kbroker(directory: Path, *arguments: str, stdin: str | None = None) -> str:
    """Run a command with the profiles of this directory, and return its output."""
    done = subprocess.run(
        [*KBROKER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        input=stdin,
        env=os.environ | {"KBROKER_PROFILES": str(directory / "profiles.toml")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def use_admin_profile(directory: Path, ready: dict[str, Any]) -> None:
    """Let commands authenticate as the administrator."""
    kbroker(directory, "profile", "add", "own", "--file", f"{ready['tls_dev']}/client.properties")


@pytest.mark.slow
def test_first_user_has_all_permissions_and_others_none(tmp_path: Path) -> None:
    with secured(tmp_path) as ready:
        assert list(ready["listeners"]) == ["SASL_SSL"]
        use_admin_profile(tmp_path, ready)
        kbroker(tmp_path, "topic", "create", "orders")
        adding = ("--mechanism", "SCRAM-SHA-512", "--password-file", "-")
        kbroker(tmp_path, "security", "user", "add", "bob", *adding, stdin="long password")
        properties = Path(ready["tls_dev"], "client.properties")
        of_bob = tmp_path / "bob.properties"
        password = Path(ready["tls_dev"], "admin.password").read_text()
        profile = properties.read_text().replace(password, "long password").replace("admin", "bob")
        of_bob.write_text(profile)
        kbroker(tmp_path, "profile", "add", "bob", "--file", str(of_bob))
        kbroker(tmp_path, "profile", "use", "bob")
        assert "orders" not in kbroker(tmp_path, "topic", "list")
    assert "anyone who can reach" not in ready["errors"]


@pytest.mark.slow
def test_banner_fits_screen_and_names_command_of_each_client(tmp_path: Path) -> None:
    with secured(tmp_path, "--nodes", "3") as ready:
        directory = ready["tls_dev"]
    # The directory of this test is longer than that of a user.
    output = ready["output"].replace(directory, "/home/me/kbroker-data/tls-dev")
    assert sum(-(-len(line) // SCREEN_COLUMNS) for line in output.splitlines()) < SCREEN_LINES
    text = ready["output"]
    assert f"  kbroker  kbroker profile add tls-dev --file {directory}/client.properties\n" in text
    assert f"  kcat     kcat -F {directory}/librdkafka.conf -L\n" in text
    assert "  Java     kafka-topics.sh --bootstrap-server localhost:" in text
    for name in ("kafka-python.py", "confluent-kafka.py", "spark.py"):
        assert name in text
        assert Path(directory, name).is_file()


@pytest.mark.slow
def test_admin_password_is_not_printed_or_logged(tmp_path: Path) -> None:
    with secured(tmp_path, "--json", "--log-level", "debug") as ready:
        password = Path(ready["tls_dev"], "admin.password").read_text()
        use_admin_profile(tmp_path, ready)
        shown = kbroker(tmp_path, "topic", "list")
    with secured(tmp_path, "--log-level", "debug") as second:
        pass
    assert len(password) >= 32
    outputs = (ready["output"], ready["errors"], second["output"], second["errors"], shown)
    assert not any(password in each for each in outputs)
    assert (
        f"Login    admin, SCRAM-SHA-512; password and certificates in {second['tls_dev']}"
        in (second["output"])
    )


@pytest.mark.slow
def test_created_files_are_private_and_reused(tmp_path: Path) -> None:
    with secured(tmp_path) as ready:
        pass
    directory = tmp_path / "data" / "tls-dev"
    assert ready["tls_dev"] == str(directory)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()}
    assert set(SECRETS) <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    names = ("ca.pem", "ca.key", "server.pem", "admin.password")
    before = {name: (directory / name).read_text() for name in names}
    with secured(tmp_path):
        pass
    assert {name: (directory / name).read_text() for name in names} == before
    with secured(tmp_path, "--advertise", "box.example:9092"):
        pass
    assert (directory / "server.pem").read_text() != before.pop("server.pem")
    assert {name: (directory / name).read_text() for name in before} == before
    assert "bootstrap.servers=box.example:9092\n" in (directory / "client.properties").read_text()


@pytest.mark.slow
def test_in_memory_server_uses_temporary_directory(tmp_path: Path) -> None:
    seed = tmp_path / "seed.ndjson"
    seed.write_text('{"topic": "orders", "value": "first"}\n')
    with secured(tmp_path, "--memory", "--seed", str(seed)) as ready:
        use_admin_profile(tmp_path, ready)
        read = kbroker(tmp_path, "topic", "consume", "orders", "-o", "start:end", "-f", "%v")
        assert read == "first"
    assert not Path(ready["tls_dev"]).exists()


@pytest.mark.slow
def test_failed_start_leaves_no_files(tmp_path: Path) -> None:
    with secured(tmp_path) as ready:
        port = ready["bootstrap_servers"].rpartition(":")[2]
        done = run_serve("--tls-dev", "--port", port, "--data-dir", str(tmp_path / "other"))
    assert done.returncode == 3
    assert f"port {port}" in done.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("-o", "sasl.enabled.mechanisms=PLAIN"),
            "sets sasl.enabled.mechanisms, which is also set",
        ),
        (("-o", "ssl.truststore.location=x"), "sets ssl.truststore.location, which is also set"),
        (("-o", "listeners=SSL://localhost:0"), "SSL has SSL; omit one of them"),
        (
            ("-o", "listeners=PLAINTEXT://localhost:0,SASL_SSL://localhost:0"),
            "--tls-dev renames listener PLAINTEXT to SASL_SSL",
        ),
    ],
)
def test_conflicting_settings_are_rejected(flags: tuple[str, str], message: str) -> None:
    done = run_serve("--memory", "--tls-dev", *flags)
    assert done.returncode == 3
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "addresses"), [("--nodes", 3), ("--processes", 1)])
def test_several_nodes_authenticate_to_each_other(
    flag: str, addresses: int, tmp_path: Path
) -> None:
    with secured(tmp_path, flag, "3") as ready:
        assert len(ready["bootstrap_servers"].split(",")) == addresses
        use_admin_profile(tmp_path, ready)
        kbroker(tmp_path, "topic", "create", "t", "--replication-factor", "3", "-p", "3")
        kbroker(tmp_path, "topic", "produce", "t", stdin="one\ntwo\n")
        read = kbroker(tmp_path, "topic", "consume", "t", "-o", "start:end", "-f", "%v ")
        assert sorted(read.split()) == ["one", "two"]
        rows = json.loads(kbroker(tmp_path, "topic", "describe", "t", "--json").splitlines()[0])
        assert [len(each["isr"]) for each in rows["partitions"]] == [3, 3, 3]


@pytest.mark.slow
def test_tls_dev_conflicts_with_cluster_flag() -> None:
    done = run_serve("--tls-dev", "--cluster", "etcd://localhost:1/c")
    assert done.returncode == 2
    assert "--cluster and --tls-dev exclude each other" in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ca.key", None),
        ("ca.pem", "x"),
        ("server.pem", "x"),
        ("admin.password", ""),
        ("admin.password", 'a" user_eve="b'),
    ],
)
def test_error_for_unusable_files_names_their_directory(
    name: str, content: str | None, tmp_path: Path
) -> None:
    directory = tmp_path / "tls-dev"
    with DevSecurity(BrokerConfig.load(), directory).written_files(ADDRESS):
        pass
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    with pytest.raises(
        StartFailed,
        match=f"cannot use the files in {directory} .*remove that directory",
    ):
        DevSecurity(BrokerConfig.load(), directory)


@pytest.mark.slow
def test_missing_cryptography_error_names_install_command(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ModuleNotFoundError(name='cryptography')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*KBROKER, "serve", "--memory", "--tls-dev"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 3
    assert done.stderr == "kbroker: --tls-dev needs cryptography: pip install 'kbroker[tls]'\n"


# -- settings


def test_other_listener_names_are_kept() -> None:
    config = BrokerConfig.load(
        options=[
            "listeners=PLAINTEXT://:9092,INSIDE://localhost:9093",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
            "advertised.listeners=PLAINTEXT://box.example:9092",
            "super.users=User:eve",
        ]
    )
    secured_config = DevSecurity(config, None).config
    assert secured_config.listeners == ("SASL_SSL://:9092", "INSIDE://localhost:9093")
    assert secured_config.advertised_listeners == ("SASL_SSL://box.example:9092",)
    assert secured_config.listener_security_protocol_map == "SASL_SSL:SASL_SSL,INSIDE:SASL_SSL"
    assert secured_config.super_users == "User:admin;User:eve"
    assert secured_config.is_default("allow.everyone.if.no.acl.found")
    with pytest.raises(ConfigError, match=r"allow\.everyone"):
        DevSecurity(BrokerConfig.load(options=["allow.everyone.if.no.acl.found=true"]), None)


def test_certificate_hosts_include_listener_addresses() -> None:
    here = hosts_of(BrokerConfig.load(options=["listeners=PLAINTEXT://localhost:9092"]))
    assert here[:3] == ["localhost", "127.0.0.1", "::1"]
    named = hosts_of(
        BrokerConfig.load(
            options=[
                "listeners=PLAINTEXT://10.0.0.7:9092",
                "advertised.listeners=PLAINTEXT://box.example:1",
            ]
        )
    )
    assert {"10.0.0.7", "box.example"} <= {*named}
    assert not {"", "0.0.0.0"} & {
        *hosts_of(BrokerConfig.load(options=["listeners=PLAINTEXT://:1"]))
    }


# -- certificates


def names_in(pair: Pair) -> list[str]:
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


def test_issued_certificate_passes_strict_verification() -> None:
    now = datetime.now(UTC)
    authority = CertificateAuthority.new("mine", now)
    pair = authority.issue(HOSTS, now)
    assert names_in(pair) == [*HOSTS]
    shown = setting(ssl_keystore_certificate_chain=pair.certificate, ssl_keystore_key=pair.key)
    client = client_context(
        setting(
            ssl_truststore_certificates=authority.pair.certificate,
            ssl_endpoint_identification_algorithm="https",
        )
    )
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.verify_flags &= ~ssl.VERIFY_X509_PARTIAL_CHAIN
    handshake(server_context(shown), client)
    assert pair.key not in repr(pair)


def test_certificate_is_reissued_only_when_needed() -> None:
    authority = CertificateAuthority.new("mine", NOW)
    pair = authority.issue(HOSTS, NOW)
    assert authority.issued(pair, HOSTS, NOW)
    assert authority.issued(pair, reversed(HOSTS), NOW + timedelta(days=300))
    assert not authority.issued(pair, HOSTS, NOW + timedelta(days=306))
    assert not authority.issued(pair, HOSTS[1:], NOW)
    assert not authority.issued(pair, [*HOSTS, "other.example"], NOW)
    other = CertificateAuthority.new("mine", NOW)
    assert not other.issued(pair, HOSTS, NOW)
    assert not authority.issued(Pair(pair.certificate, authority.pair.key), HOSTS, NOW)
    late = authority.ends_at - timedelta(days=3)
    assert authority.issued(authority.issue(HOSTS, late), HOSTS, late), "reissued at each start"
    with pytest.raises(ValueError, match="does not match the certificate"):
        CertificateAuthority(Pair(authority.pair.certificate, pair.key))


def test_expired_certificate_authority_is_rejected(tmp_path: Path) -> None:
    directory = tmp_path / "tls-dev"
    with DevSecurity(BrokerConfig.load(), directory).written_files(ADDRESS):
        pass
    old = CertificateAuthority.new("mine", datetime.now(UTC) - timedelta(days=4000))
    (directory / "ca.pem").write_text(old.pair.certificate)
    (directory / "ca.key").write_text(old.pair.key)
    with pytest.raises(StartFailed, match="has expired; remove that directory"):
        DevSecurity(BrokerConfig.load(), directory)
    shutil.rmtree(directory)
    DevSecurity(BrokerConfig.load(), directory)
    assert not directory.exists(), "files were written before the data directory was in use"
