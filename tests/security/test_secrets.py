"""Search for configured secrets in everything that a broker writes or returns.

A real server gets a secret of each kind. The test searches its output, the output of CLI commands and
the data directory.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import CannotConnect
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import encode_bytes
from kbroker.protocol.messages.configs import DescribeConfigsRequest

from ..cli.test_serve import wait_for
from ..wire import ConnectionClosed, connected
from .certificates import Authority
from .issuers import AUDIENCE, ISSUER, key_for, key_set
from .test_access import AUTHORIZER
from .test_login import authenticate, handshake

SECRETS = {
    "key password": "planted-key-password",
    "password of the store in a setting that changes": "planted-store-password",
    "PLAIN password": "planted-plain-password",
    "SCRAM password": "planted-scram-password",
    "password of a user that was made": "planted-made-password",
    "wrong password": "planted-wrong-password",
    "client secret": "planted-client-secret",
    "crash": "planted-crash-password",
}
SECONDS = 60

# A server that raises an error in code that handles a password.
CRASHING = """
import sys
from kbroker.cli import main
from kbroker.security.plain import PlainServer

answer = PlainServer.answer

def crashing(self, message):
    secret = message.decode()
    if "crash" in secret:
        raise RuntimeError("a defect")
    return answer(self, message)

PlainServer.answer = crashing
main()
"""


@contextmanager
def server(directory: Path, arguments: list[str]) -> Iterator[None]:
    """Run a server whose output goes to files in `directory`, and stop it gracefully."""
    with (directory / "stdout").open("wb") as out, (directory / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", CRASHING, "serve", *arguments], stdout=out, stderr=err
        )
        try:
            wait_for(directory / "ready.json")
            yield
            process.terminate()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            process.wait()


def command(directory: Path, name: str, *arguments: str, given: str = "", status: int = 0) -> str:
    """Run a command and store its output."""
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "KBROKER_PROFILES": str(directory / "none")},
    )
    assert done.returncode == status, (arguments, done.stdout, done.stderr)
    (directory / f"{name}.out").write_text(done.stdout + done.stderr)
    return done.stdout


def encodings_of(secret: bytes) -> list[bytes]:
    """Return encodings of a secret: plain, and base64 at each of three alignments."""
    found = [secret, secret.hex().encode()]
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + secret)
        # The characters at both ends depend on the adjacent bytes.
        found.append(encoded[4 if before else 0 : -4])
    return found


def secrets_in(data: bytes, secrets: Mapping[str, bytes]) -> list[str]:
    return [
        name
        for name, secret in secrets.items()
        if any(each in data for each in encodings_of(secret))
    ]


def settings_of(authority: Authority, directory: Path) -> dict[str, str]:
    chain, key = authority.texts()
    (directory / "key.pem").write_text(key)
    (directory / "keys.json").write_bytes(key_set(key_for("ES256")))
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    own = "listener.name.sasl_plaintext"
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,FILE://127.0.0.1:0,TEXT://127.0.0.1:0",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,FILE:SSL,TEXT:SSL",
        "listener.name.file.ssl.keystore.location": str(
            authority.locked("server", SECRETS["key password"])
        ),
        "listener.name.file.ssl.key.password": SECRETS["key password"],
        "listener.name.text.ssl.keystore.type": "PEM",
        "listener.name.text.ssl.keystore.certificate.chain": chain,
        "listener.name.text.ssl.keystore.key": key,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        f"{own}.plain.sasl.jaas.config": (
            f'{plain} required user_alice="{SECRETS["PLAIN password"]}";'
        ),
        f"{own}.scram-sha-256.sasl.jaas.config": (
            f'{scram} required user_bob="{SECRETS["SCRAM password"]}";'
        ),
        f"{own}.oauthbearer.sasl.jaas.config": (
            f'{oauth} required clientId="node" clientSecret="{SECRETS["client secret"]}";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:alice",
    }


async def logs_in(address: str, mechanism: str, name: str, password: str) -> bool:
    security = Security(None, Credentials(mechanism, name, password))
    async with open_cluster([Endpoint.parse(address)], security=security) as cluster:
        try:
            await cluster.metadata([])
        except CannotConnect:
            return False
    return True


async def use(address: str) -> bytes:
    """Authenticate by each mechanism, correctly and wrongly; return the described settings."""
    wrong = SECRETS["wrong password"]
    for mechanism, name, password, comes_in in (
        ("PLAIN", "alice", SECRETS["PLAIN password"], True),
        ("PLAIN", "alice", wrong, False),
        ("SCRAM-SHA-256", "bob", SECRETS["SCRAM password"], True),
        ("SCRAM-SHA-256", "bob", wrong, False),
        ("SCRAM-SHA-256", "dave", SECRETS["password of a user that was made"], True),
        ("SCRAM-SHA-256", "dave", wrong, False),
    ):
        assert await logs_in(address, mechanism, name, password) is comes_in, (mechanism, name)
    endpoint = Endpoint.parse(address)
    async with connected(endpoint) as wire:
        await handshake(wire, "PLAIN")
        with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
            await authenticate(wire, f"\0alice\0{SECRETS['crash']}".encode())
    async with connected(endpoint) as wire:
        await handshake(wire, "PLAIN")
        await authenticate(wire, f"\0alice\0{SECRETS['PLAIN password']}".encode())
        cls = DescribeConfigsRequest
        rows = [cls.Resource(resource_type=4, resource_name=name) for name in ("1", "")]
        ask = cls(resources=rows, include_synonyms=True, include_documentation=True)
        response = await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask)
        for result in response.results:
            assert not result.error_code
        return encode_bytes(response, 4)


USER = f'PlainLoginModule required username="alice" password="{SECRETS["PLAIN password"]}";'
LOGIN = (
    *("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"),
    *("-X", f"sasl.jaas.config={USER}"),
)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_output_contains_a_secret(form: str, authority: Authority, tmp_path: Path) -> None:
    data, outputs = tmp_path / "data", tmp_path / "outputs"
    outputs.mkdir()
    settings = settings_of(authority, tmp_path)
    arguments = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    arguments += ["--data-dir", str(data), "--port-file", str(outputs / "ready.json")]
    arguments += ["--log-level", "debug", "--log-level", "kbroker.protocol=debug"]
    arguments += ["--log-format", form, "--audit-log", str(outputs / "audit.log")]
    arguments += ["--control-port", "0", "--control-token-file", str(tmp_path / "token")]
    with server(outputs, arguments):
        ready = json.loads((outputs / "ready.json").read_text())
        address = ready["bootstrap_servers"]
        at = ("-b", address, *LOGIN)

        def commands() -> None:
            command(
                *(outputs, "user-add", "security", "user", "add", "dave", *at),
                given=SECRETS["password of a user that was made"],
            )
            command(outputs, "users", "security", "user", "list", *at)
            store = f"listener.name.file.ssl.truststore.password={SECRETS[CHANGED]}"
            command(outputs, "set", "config", "set", "--node", "1", store, *at)
            for name, given in (("text", "text"), ("json", "json")):
                command(
                    *(outputs, f"show-{name}", "config", "show", "--node", "1", *at),
                    *("--format", given),
                )
            wrong = [
                each.replace(SECRETS["PLAIN password"], SECRETS["wrong password"]) for each in at
            ]
            command(outputs, "wrong", "topic", "list", *wrong, status=1)
            control = (
                "--control",
                ready["control"],
                "--control-token-file",
                str(tmp_path / "token"),
            )
            command(outputs, "report", "control", "report", *control)
            command(outputs, "explain", "explain", "group", "g", *control)

        await trio.to_thread.run_sync(commands)
        (outputs / "answer").write_bytes(await use(address))
    check(form, settings, data, outputs)


CHANGED = "password of the store in a setting that changes"


def check(form: str, settings: dict[str, str], data: Path, outputs: Path) -> None:
    """Search all outputs, and check that they have the expected contents."""
    keys = settings["listener.name.text.ssl.keystore.key"].splitlines()[1:-1]
    secrets = {name: text.encode() for name, text in SECRETS.items()}
    secrets |= {f"line {number} of a key": line.encode() for number, line in enumerate(keys)}
    log = (outputs / "stderr").read_text()
    for expected in (
        "a defect",
        "SaslAuthenticate",
        "AlterUserScramCredentials",
        "IncrementalAlter",
    ):
        assert expected in log, f"the {form} log does not have {expected}"
    assert "ssl.key.password" in (outputs / "show-text.out").read_text()
    assert "authentication failed" in (outputs / "audit.log").read_text()
    secrets_by_file = {
        path.name: secrets_in(path.read_bytes(), secrets)
        for path in outputs.iterdir()
        if path.is_file()
    }
    assert len(secrets_by_file) > 10
    assert not {name: found for name, found in secrets_by_file.items() if found}
    kept = {
        str(path.relative_to(data)): secrets_in(path.read_bytes(), secrets)
        for path in data.rglob("*")
        if path.is_file()
    }
    # Dynamic settings are stored to survive a restart, as in Kafka.
    journals = {name for name, found in kept.items() if CHANGED in found}
    assert len(journals) == 1, kept
    assert not {name: found for name, found in kept.items() if set(found) - {CHANGED}}


@pytest.mark.slow
def test_rejected_start_prints_no_secret(authority: Authority, tmp_path: Path) -> None:
    store = authority.locked("server", "another password")
    secret = SECRETS["key password"]
    for settings in (
        [
            "listeners=SSL://127.0.0.1:0",
            f"ssl.keystore.location={store}",
            f"ssl.key.password={secret}",
        ],
        ["listeners=SSL://127.0.0.1:0", f"ssl.keystore.key={secret}", "ssl.keystore.type=PEM"],
        [
            *("listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=PLAIN"),
            f'sasl.jaas.config=PlainLoginModule required user_alice="{secret}',
        ],
        [
            *("listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=PLAIN"),
            f"sasl.jaas.config={secret}",
        ],
    ):
        arguments = [word for each in settings for word in ("-o", each)]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "kbroker",
                "serve",
                "--memory",
                *arguments,
                "--log-level",
                "debug",
            ],
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 3, (settings, done.stderr)
        assert not secrets_in(done.stdout + done.stderr, {"it": secret.encode()}), settings


def test_search_finds_planted_secret() -> None:
    """The search finds secrets in plain text, in base64 at any alignment, and in hexadecimal."""
    secret = b"planted-secret"
    for data in (b"a planted-secret b", b"planted-secret".hex().encode()):
        assert secrets_in(data, {"it": secret}) == ["it"]
    for before in range(5):
        for after in range(5):
            hidden = base64.b64encode(b"x" * before + secret + b"y" * after)
            assert secrets_in(b"..." + hidden, {"it": secret}) == ["it"], (before, after)
    assert secrets_in(b"nothing", {"it": secret}) == []
