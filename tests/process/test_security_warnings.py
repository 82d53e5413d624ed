"""Tests of the warnings about insecure listeners and files, which --strict makes errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kbroker.config import BrokerConfig
from kbroker.process.listeners import configured_listeners
from kbroker.process.security_warnings import (
    open_directories,
    open_files,
    open_listeners,
    unused_logins,
)

from ..cli.test_serve import SECONDS, run_serve, serving
from ..security.certificates import Authority

SCRAM = (
    "sasl.enabled.mechanisms=SCRAM-SHA-256",
    'sasl.jaas.config=a.ScramLoginModule required user_alice="pencil";',
)


def warnings_for(*options: str) -> list[str]:
    return [*open_listeners(configured_listeners(BrokerConfig.load(options=options)))]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_loopback_listener_causes_no_warning(host: str) -> None:
    assert warnings_for(f"listeners=PLAINTEXT://{host}:0") == []


def test_reachable_insecure_listeners_cause_warnings(authority: Authority) -> None:
    own = f"ssl.keystore.location={authority.pem('server')}"
    (plain,) = warnings_for("listeners=PLAINTEXT://10.0.0.1:0")
    assert plain == (
        "anyone who can reach 10.0.0.1 can read and write everything: listener PLAINTEXT has neither "
        "TLS nor authentication; listen on localhost unless the network is trusted, or use SASL_SSL "
        "(--tls-dev generates all that it needs)"
    )
    (login,) = warnings_for("listeners=SASL_PLAINTEXT://:0", *SCRAM)
    assert login.startswith("anyone who can reach this machine can eavesdrop")
    assert "has no TLS" in login
    (tls,) = warnings_for("listeners=SSL://:0", own)
    assert "has TLS, but no authentication" in tls
    assert tls.endswith("use SASL_SSL, or set ssl.client.auth=required")
    assert warnings_for("listeners=SASL_SSL://:0", own, *SCRAM) == []
    trusted = f"ssl.truststore.location={authority.trusted}"
    assert warnings_for("listeners=SSL://:0", own, trusted, "ssl.client.auth=required") == []


def login_warnings(*options: str) -> list[str]:
    config = BrokerConfig.load(options=options)
    return [*unused_logins(config, configured_listeners(config))]


def test_sasl_settings_without_sasl_listener_cause_warning() -> None:
    plain = "listeners=PLAINTEXT://localhost:0"
    (text,) = login_warnings(plain, *SCRAM)
    assert text == (
        "clients connect without SASL authentication: no listener uses SASL, so these settings have "
        "no effect: sasl.enabled.mechanisms, sasl.jaas.config; set the protocol of a listener to "
        "SASL_SSL (or SASL_PLAINTEXT) in `listeners` or `listener.security.protocol.map`"
    )
    assert "pencil" not in text
    (text,) = login_warnings(plain, "listener.name.plaintext.scram-sha-256.sasl.jaas.config=x")
    assert "listener.name.plaintext.scram-sha-256.sasl.jaas.config" in text
    many = [f"listener.name.l{number}.sasl.enabled.mechanisms=PLAIN" for number in range(9)]
    (text,) = login_warnings(plain, *many)
    assert "l4.sasl.enabled.mechanisms and 4 more; set" in text


def test_used_or_absent_sasl_settings_cause_no_warning() -> None:
    assert login_warnings("listeners=PLAINTEXT://localhost:0") == []
    assert login_warnings("listeners=PLAINTEXT://localhost:0", "sasl.kerberos.kinit.cmd=x") == []
    both = "listeners=PLAINTEXT://localhost:0,SASL_PLAINTEXT://localhost:0"
    assert login_warnings(both, *SCRAM) == []


def test_readable_files_with_secrets_cause_warnings(authority: Authority, tmp_path: Path) -> None:
    key, file = authority.pem("server"), tmp_path / "server.properties"
    file.write_text(f"listeners=SSL://localhost:0\nlistener.name.ssl.ssl.keystore.location={key}\n")
    data = tmp_path / "data"
    (data / "tls-dev").mkdir(parents=True)
    password = data / "tls-dev" / "admin.password"
    password.write_text("hush")

    def report_open_files() -> list[str]:
        config = BrokerConfig.load(file=file)
        listeners = configured_listeners(config)
        return [each.split(" ")[0] for each in open_files(config, listeners, [str(data)])]

    for each in (key, file, password):
        each.chmod(0o640)
    assert report_open_files() == [str(key), str(password)], "the settings file contains no secret"
    with file.open("a") as more:
        more.write("ssl.key.password=hush\n")
    assert report_open_files() == [str(file), str(key), str(password)]
    for each in (key, file, password):
        each.chmod(0o600)
    assert report_open_files() == []


@pytest.mark.parametrize(("mode", "is_open"), [(0o755, True), (0o710, True), (0o700, False)])
def test_accessible_data_directories_cause_warnings(
    mode: int, is_open: bool, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    found = [*open_directories([str(tmp_path), str(tmp_path / "none")])]
    assert bool(found) is is_open
    assert all(each.endswith(f"chmod 700 {tmp_path}") for each in found)


@pytest.mark.slow
def test_strict_reports_all_problems_together(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "server.properties"
    data.mkdir()
    data.chmod(0o755)
    file.write_text("ssl.key.password=hush\n")
    file.chmod(0o644)
    flags = ("--port", "0", "--data-dir", str(data), "--config", str(file))
    settings = ("listeners=PLAINTEXT://:0,SASL_PLAINTEXT://:0", *SCRAM)
    done = run_serve(*flags, "--strict", *(word for each in settings for word in ("-o", each)))
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert len(lines) == 4, lines
    assert all(each.endswith("(rejected by --strict)") for each in lines)
    assert [*data.iterdir()] == []


@pytest.mark.slow
def test_insecure_settings_without_strict_are_warnings(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("ssl.key.password=hush\n")
    file.chmod(0o644)
    flags = ("--memory", "--host", "0.0.0.0", "--port", "0", "--json", "--config", str(file))
    with serving(*flags) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
    assert [each["event"] for each in events] == ["starting", "warning", "warning", "ready"]
    assert "anyone who can reach 0.0.0.0" in events[1]["message"]
    assert events[2]["message"].startswith(f"{file} contains secrets")
    assert errors.count("WARNING") == 2


@pytest.mark.slow
def test_created_files_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    flags = ("--strict", "--tls-dev", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(data))
    with serving(*flags) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("kbroker "), process.communicate()
    assert [*open_directories([str(data)])] == []
