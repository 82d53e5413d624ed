"""A small test of an installed kbroker, by its own Python: every dependency does its work once.

Usage: python smoke.py DIRECTORY [base]. The directory is an empty one; with `base` there are no extras.
Prints the versions of what is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path
from urllib.request import Request, urlopen

KBROKER = [sys.executable, "-m", "kbroker"]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS = 300
"""So long a command may take on a machine that does much else."""
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
    """Run a command; returns what it printed. Raises CalledProcessError."""
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


def served(
    directory: Path, *flags: str, port: str | None = "0"
) -> tuple[subprocess.Popen[str], dict[str, object]]:
    """A server that is ready, and its ready event; `port` None where settings have listeners."""
    port_file = directory / "port.json"
    words = ["serve", *(("--port", port) if port else ()), "--port-file", str(port_file), *flags]
    words.append("--exit-with-parent")  # or who reads what this prints waits for it for ever
    process = subprocess.Popen([*KBROKER, *words], text=True, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + SECONDS
    while not port_file.exists():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < give_up, "it is not ready"
        time.sleep(0.05)
    return process, json.loads(port_file.read_text())


def stopped(process: subprocess.Popen[str]) -> None:
    """Stop a server in order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def records_come_back(directory: Path) -> None:
    """In every codec, also after a restart, for members of a group, and with a pattern of names."""
    data = str(directory / "data")
    process, ready = served(directory, "--data-dir", data)
    environment = {"KBROKER_BOOTSTRAP": str(ready["bootstrap_servers"])}
    for codec in CODECS:
        words = ("topic", "produce", f"codec-{codec}", "-z", codec, "-q")
        run(*KBROKER, "topic", "create", f"codec-{codec}", environment=environment)
        run(*KBROKER, *words, stdin=f"{codec} {codec}\n" * 50, environment=environment)
    stopped(process)
    process, ready = served(directory, "--data-dir", data)
    environment = {"KBROKER_BOOTSTRAP": str(ready["bootstrap_servers"])}
    asked = ("topic", "consume", "-r", "codec-.*", "-o", ":end", "-f", r"%v\n", "-g", "readers")
    read = run(*KBROKER, *asked, environment=environment).splitlines()
    assert sorted(read) == sorted(f"{codec} {codec}" for codec in CODECS for _ in range(50))
    server = ("--bootstrap-server", environment["KBROKER_BOOTSTRAP"])
    assert "codec-zstd" in run(*KBROKER, "compat", "kafka-topics", *server, "--list")
    stopped(process)


def a_secured_one_answers(directory: Path) -> None:
    """TLS and a login, made at the start."""
    process, ready = served(directory, "--memory", "--tls-dev")
    settings = Path(str(ready["tls_dev"])) / "client.properties"
    server = ("--bootstrap-server", str(ready["bootstrap_servers"]))
    topics = ("compat", "kafka-topics", *server, "--command-config", str(settings))
    run(*KBROKER, *topics, "--create", "--topic", "secret")
    assert run(*KBROKER, *topics, "--list") == "secret\n"
    stopped(process)


def a_token_lets_in(directory: Path) -> None:
    """One that is signed by a key of ours."""
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
    process, ready = served(directory, "--memory", *words_of("-o", settings), port=None)
    of_client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    bootstrap = ("--bootstrap", str(ready["bootstrap_servers"]))
    run(*KBROKER, "health", *bootstrap, *words_of("-X", of_client))
    stopped(process)


def words_of(flag: str, settings: dict[str, str]) -> list[str]:
    """Settings as a command takes them."""
    return [word for name, value in settings.items() for word in (flag, f"{name}={value}")]


def pages_and_schemas_are_served(directory: Path) -> None:
    """Metrics in both formats, probes, the console; each kind of schema."""
    process, ready = served(directory, "--memory", "--http-port", "0", "--registry-port", "0")
    http, registry = str(ready["http"]), str(ready["schema_registry"])
    assert json.loads(asked_for(f"{http}/readyz"))["status"] == "ready"
    assert "kbroker_build_info{" in asked_for(f"{http}/metrics")
    opened = asked_for(f"{http}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert opened.endswith("# EOF\n")
    assert "<html" in asked_for(f"{http}/console/")
    for kind, schema in SCHEMAS.items():
        body = json.dumps({"schema": schema, "schemaType": kind}).encode()
        assert "id" in json.loads(asked_for(f"{registry}/subjects/{kind}/versions", body))
        assert "id" in json.loads(asked_for(f"{registry}/subjects/{kind}", body))
    assert sorted(json.loads(asked_for(f"{registry}/subjects"))) == sorted(SCHEMAS)
    stopped(process)


def asked_for(url: str, body: bytes | None = None, **headers: str) -> str:
    """What a server answers, which is no error."""
    with urlopen(Request(url, body, headers), timeout=SECONDS) as answer:
        told: bytes = answer.read()
    return told.decode()


def patterns_are_understood() -> None:
    """Names of topics by RE2, which consumers of KIP-848 subscribe to."""
    import re2

    assert re2.fullmatch("a.*c", "abc")


def the_plugin_is_found(directory: Path) -> None:
    """The pytest plugin, where there is pytest."""
    (directory / "test_plugin.py").write_text(PLUGIN_TEST)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory))


def main(directory: Path, *, is_base: bool) -> None:
    """Run all of it, or what works without extras."""
    assert run(*KBROKER, "--version").startswith("kbroker ")
    records_come_back(directory)
    patterns_are_understood()
    if not is_base:
        a_secured_one_answers(directory)
        a_token_lets_in(directory)
        pages_and_schemas_are_served(directory)
        the_plugin_is_found(directory)
    print(*sorted(f"{each.name}=={each.version}" for each in distributions()))


main(Path(sys.argv[1]), is_base=sys.argv[2:] == ["base"])
