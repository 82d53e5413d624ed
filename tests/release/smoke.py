"""A smoke test of an installed kbroker by its own Python: it uses every dependency once.

Usage: python smoke.py [base]. With `base`, the extras are not installed. The program prints the
installed versions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from urllib.request import Request, urlopen

KBROKER = [sys.executable, "-m", "kbroker"]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Timeout of a command on a busy machine.
SECONDS = 300
SCHEMAS = {
    "AVRO": '"string"',
    "JSON": '{"type": "object", "properties": {"name": {"type": "string"}}}',
    "PROTOBUF": 'syntax = "proto3"; message Named { string name = 1; }',
}
PLUGIN_TEST = """
def test_a_broker_of_its_own(kbroker):
    kbroker.create_topic("orders")
    kbroker.produce("orders", b"x")
    assert len(kbroker.wait_for("orders", count=1)) == 1
"""


def run(*command: str, stdin: str = "", environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output. Raises CalledProcessError."""
    done = subprocess.run(
        [*command],
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=SECONDS,
        env=os.environ | (environment or {}),
    )
    return done.stdout


def start_server(
    directory: Path, *flags: str, port: str | None = "0"
) -> tuple[subprocess.Popen[str], dict[str, object]]:
    """Start a server, wait until it is ready, and return it with its ready event.

    With `port` None, the server listens as its settings say.
    """
    port_file = directory / "port.json"
    arguments = [
        "serve",
        *(("--port", port) if port else ()),
        "--port-file",
        str(port_file),
        *flags,
    ]
    arguments.append("--exit-with-parent")  # otherwise the reader of this output would wait forever
    process = subprocess.Popen([*KBROKER, *arguments], text=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS
    while not port_file.exists():
        assert process.poll() is None, f"the server exited with status {process.returncode}"
        assert time.monotonic() < deadline, "the server is not ready in time"
        time.sleep(0.05)
    return process, json.loads(port_file.read_text())


def stop_server(process: subprocess.Popen[str]) -> None:
    """Stop a server cleanly."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def check_records(directory: Path) -> None:
    """Check records in every codec: after a restart, in a group, and with a topic pattern."""
    data = str(directory / "data")
    process, ready = start_server(directory, "--data-dir", data)
    environment = {"KBROKER_BOOTSTRAP": str(ready["bootstrap_servers"])}
    for codec in CODECS:
        arguments = ("topic", "produce", f"codec-{codec}", "-z", codec, "-q")
        run(*KBROKER, "topic", "create", f"codec-{codec}", environment=environment)
        run(*KBROKER, *arguments, stdin=f"{codec} {codec}\n" * 50, environment=environment)
    stop_server(process)
    process, ready = start_server(directory, "--data-dir", data)
    environment = {"KBROKER_BOOTSTRAP": str(ready["bootstrap_servers"])}
    command = ("topic", "consume", "-r", "codec-.*", "-o", ":end", "-f", r"%v\n", "-g", "readers")
    read = run(*KBROKER, *command, environment=environment).splitlines()
    assert sorted(read) == sorted(f"{codec} {codec}" for codec in CODECS for _ in range(50))
    server = ("--bootstrap-server", environment["KBROKER_BOOTSTRAP"])
    assert "codec-zstd" in run(*KBROKER, "compat", "kafka-topics", *server, "--list")
    stop_server(process)


def check_tls_and_scram(directory: Path) -> None:
    """Check TLS and SCRAM authentication with generated credentials."""
    process, ready = start_server(directory, "--memory", "--tls-dev")
    settings = Path(str(ready["tls_dev"])) / "client.properties"
    server = ("--bootstrap-server", str(ready["bootstrap_servers"]))
    topics = ("compat", "kafka-topics", *server, "--command-config", str(settings))
    run(*KBROKER, *topics, "--create", "--topic", "secret")
    assert run(*KBROKER, *topics, "--list") == "secret\n"
    stop_server(process)


def check_oauth(directory: Path) -> None:
    """Check OAUTHBEARER authentication with a token that is signed here."""
    from joserfc import jwt
    from joserfc.jwk import ECKey

    key = ECKey.generate_key("P-256", {"kid": "mine"})
    now = int(time.time())
    claims = {"iss": "me", "aud": "kafka", "sub": "alice", "iat": now, "exp": now + 600}
    keys, token = directory / "keys.json", directory / "token"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    token.write_text(jwt.encode({"alg": "ES256", "kid": "mine"}, claims, key))
    settings = {
        "listeners": "SASL_PLAINTEXT://localhost:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": "me",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    process, ready = start_server(directory, "--memory", *options_of("-o", settings), port=None)
    of_client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    bootstrap = ("--bootstrap", str(ready["bootstrap_servers"]))
    run(*KBROKER, "health", *bootstrap, *options_of("-X", of_client))
    stop_server(process)


def options_of(flag: str, settings: dict[str, str]) -> list[str]:
    """Format settings as command-line options."""
    return [word for name, value in settings.items() for word in (flag, f"{name}={value}")]


def check_http_and_registry(directory: Path) -> None:
    """Check metrics in both formats, probes, the console, and each type of schema."""
    process, ready = start_server(directory, "--memory", "--http-port", "0", "--registry-port", "0")
    http, registry = str(ready["http"]), str(ready["schema_registry"])
    assert json.loads(http_get(f"{http}/readyz"))["status"] == "ready"
    assert "kbroker_build_info{" in http_get(f"{http}/metrics")
    opened = http_get(f"{http}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert opened.endswith("# EOF\n")
    assert "<html" in http_get(f"{http}/console/")
    for kind, schema in SCHEMAS.items():
        body = json.dumps({"schema": schema, "schemaType": kind}).encode()
        assert "id" in json.loads(http_get(f"{registry}/subjects/{kind}/versions", body))
        assert "id" in json.loads(http_get(f"{registry}/subjects/{kind}", body))
    assert sorted(json.loads(http_get(f"{registry}/subjects"))) == sorted(SCHEMAS)
    stop_server(process)


def http_get(url: str, body: bytes | None = None, **headers: str) -> str:
    """Return the body of a successful HTTP response."""
    with urlopen(Request(url, body, headers), timeout=SECONDS) as response:
        body_bytes: bytes = response.read()
    return body_bytes.decode()


def check_topic_patterns() -> None:
    """Check RE2, which subscriptions of KIP-848 use."""
    import re2

    assert re2.fullmatch("a.*c", "abc")


def check_pytest_plugin(directory: Path) -> None:
    """Check the pytest plugin."""
    (directory / "test_plugin.py").write_text(PLUGIN_TEST)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory))


def main(directory: Path, *, is_base: bool) -> None:
    """Run all checks, or only those without extras."""
    assert run(*KBROKER, "--version").startswith("kbroker ")
    check_records(directory)
    check_topic_patterns()
    if not is_base:
        check_tls_and_scram(directory)
        check_oauth(directory)
        check_http_and_registry(directory)
        check_pytest_plugin(directory)
    print(*sorted(f"{each.name}=={each.version}" for each in distributions()))


with tempfile.TemporaryDirectory() as temporary:
    main(Path(temporary), is_base=sys.argv[1:] == ["base"])
