"""Delegation tokens: responses compared with Apache Kafka's, and clients that use tokens.

The clients are Kafka's tool, Java's client, Spark's token provider and `kbroker security token`.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.brokers import ApacheBroker, Broker, KbrokerBroker, free_port
from harness.clients import ClientError, ScriptProcess, eventually
from harness.java import java
from harness.places import COMPAT, WORK, environment_python
from harness.raw import RawConnection
from harness.tools import COMMANDS, Tools

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.security import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kbroker.security.scram import ScramClient, ScramMechanism

CLIENT = "delegation tokens"
ENVIRONMENT = "spark-4.0"
PACKAGE = "org.apache.kafka.common.security"
USERS = ("admin", "alice", "bob", "carol")
PASSWORD = "hush"
DAY = 86_400_000


class SecuredBroker(NamedTuple):
    """A broker and the address of its authenticated listener."""

    broker: Broker
    inside: str


def settings(inside: str, key: str = "only nodes know it") -> dict[str, str]:
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in USERS)
    listener = "listener.name.inside"
    return {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INSIDE:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{listener}.plain.sasl.jaas.config": f"{PACKAGE}.plain.PlainLoginModule required {users};",
        **{
            f"{listener}.scram-sha-{bits}.sasl.jaas.config": (
                f"{PACKAGE}.scram.ScramLoginModule required;"
            )
            for bits in (256, 512)
        },
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:alice;User:ANONYMOUS",
        **({"delegation.token.secret.key": key} if key else {}),
    }


def kbroker(directory: Path, **more: str) -> SecuredBroker:
    inside = f"127.0.0.1:{free_port()}"
    own = {"listeners": f"PLAINTEXT://127.0.0.1:0,INSIDE://{inside}"}
    broker = KbrokerBroker(directory, settings(inside, **more) | own)
    broker.start()
    return SecuredBroker(broker, inside)


def apache(directory: Path, **more: str) -> SecuredBroker:
    inside = f"127.0.0.1:{free_port()}"
    broker = ApacheBroker(directory, settings(inside, **more))
    broker.listener_port, broker.controller_port = free_port(), free_port()
    open_address = f"127.0.0.1:{broker.listener_port}"
    listeners = f"PLAINTEXT://{open_address},INSIDE://{inside}"
    broker.properties["listeners"] = f"{listeners},CONTROLLER://127.0.0.1:{broker.controller_port}"
    broker.properties["advertised.listeners"] = listeners
    broker.start()
    return SecuredBroker(broker, inside)


START: Mapping[str, Callable[..., SecuredBroker]] = {"kbroker": kbroker, "apache": apache}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SecuredBroker]]:
    """Start both brokers."""
    started: dict[str, SecuredBroker] = {}
    try:
        for name, start in START.items():
            started[name] = start(tmp_path_factory.mktemp(name))
        yield started
    finally:
        for each in started.values():
            each.broker.kill()


@pytest.fixture(scope="module")
def guarded(sides: dict[str, SecuredBroker]) -> SecuredBroker:
    return sides["kbroker"]


# -- responses compared


def authenticated(address: str, name: str) -> RawConnection:
    connection = RawConnection(address)
    connection.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
    message = SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{PASSWORD}".encode())
    assert not connection.ask(ApiKey.SASL_AUTHENTICATE, 2, message).error_code
    return connection


def authenticated_by_token(address: str, token_id: str, password: str) -> tuple[RawConnection, Any]:
    """Return a connection and the response to its authentication with a token."""
    connection = RawConnection(address)
    mechanism = ScramMechanism.SHA_256
    connection.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism))
    client = ScramClient(mechanism, token_id, password, is_token=True)
    key = ApiKey.SASL_AUTHENTICATE
    answer: Any = connection.ask(key, 2, SaslAuthenticateRequest(auth_bytes=client.first()))
    if not answer.error_code:
        message = client.final(bytes(answer.auth_bytes))
        answer = connection.ask(key, 2, SaslAuthenticateRequest(auth_bytes=message))
    if not answer.error_code:
        client.check(bytes(answer.auth_bytes))
    return connection, answer


def seconds_from_now(ms: int) -> int:
    """Return a current timestamp as seconds from now, rounded, and any other number unchanged."""
    return ms if ms < 10**9 else round((ms / 1000 - time.time()) / 10)


class TokenScript:
    """Responses of one broker to a script of requests, without values of the single run."""

    def __init__(self, side: SecuredBroker) -> None:
        self.inside = side.inside
        self.open = RawConnection(side.broker.address)
        self.users = {name: authenticated(side.inside, name) for name in USERS}
        self.results: list[Any] = []

    def close(self) -> None:
        for each in (self.open, *self.users.values()):
            each.close()

    def create(self, who: RawConnection, version: int = 3, **values: Any) -> Any:
        fields = {"max_lifetime_ms": -1} | values
        key = ApiKey.CREATE_DELEGATION_TOKEN
        answer = who.ask(key, version, CreateDelegationTokenRequest(**fields))
        self.results.append(
            (
                "create",
                values,
                answer.error_code,
                (answer.principal_type, answer.principal_name),
                (answer.token_requester_principal_type, answer.token_requester_principal_name),
                seconds_from_now(answer.issue_timestamp_ms),
                answer.expiry_timestamp_ms - answer.issue_timestamp_ms,
                answer.max_timestamp_ms - answer.issue_timestamp_ms,
                len(answer.token_id),
                len(answer.hmac),
            )
        )
        return answer

    def renew(self, who: RawConnection, hmac: bytes, period_ms: int = -1) -> None:
        ask = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
        answer = who.ask(ApiKey.RENEW_DELEGATION_TOKEN, 2, ask)
        seen = answer.error_code, seconds_from_now(answer.expiry_timestamp_ms)
        self.results.append(("renew", period_ms, *seen))

    def expire(self, who: RawConnection, hmac: bytes, period_ms: int = -1) -> None:
        ask = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
        answer = who.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, ask)
        seen = answer.error_code, seconds_from_now(answer.expiry_timestamp_ms)
        self.results.append(("expire", period_ms, *seen))

    def describe(self, who: RawConnection, *owners: str, version: int = 3) -> None:
        cls = DescribeDelegationTokenRequest
        rows = [cls.Owner(principal_type="User", principal_name=each) for each in owners]
        ask = cls(owners=rows or None)
        if owners == ("",):
            ask = cls(owners=[])
        answer = who.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, ask)
        found = sorted(
            (
                (row.principal_type, row.principal_name, row.token_requester_principal_name),
                row.max_timestamp - row.issue_timestamp,
                [(each.principal_type, each.principal_name) for each in row.renewers],
                len(row.hmac),
            )
            for row in answer.tokens
        )
        self.results.append(("describe", owners, answer.error_code, found))

    def run_all(self) -> list[Any]:
        """Run the script and return everything that is compared."""
        alice, bob, carol = (self.users[name] for name in ("alice", "bob", "carol"))
        admin = self.users["admin"]
        cls = CreateDelegationTokenRequest
        of_bob = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        wrong = [cls.Renewer(principal_type="Group", principal_name="staff")]
        self.handshakes()
        for version in (1, 2, 3):
            self.create(alice, version)
        for lifetime_ms in (0, 5000, 8 * DAY, 2**63 - 1):
            self.create(carol, max_lifetime_ms=lifetime_ms)
        self.create(bob, owner_principal_type="User", owner_principal_name="bob")
        self.create(bob, owner_principal_type="User", owner_principal_name="")
        self.create(bob, owner_principal_type="User", owner_principal_name="carol")
        self.create(bob, renewers=wrong)
        self.create(carol, renewers=wrong, **of_bob)
        given = self.create(admin, **of_bob)
        renewers = [cls.Renewer(principal_type="User", principal_name="bob")]
        token = self.create(alice, renewers=renewers)
        hmac = bytes(token.hmac)
        self._wait_until(token, usable=True)
        for period_ms in (-1, 0, 100_000, 2**62):
            self.renew(bob, hmac, period_ms)
        for who in (admin, carol):
            self.renew(who, hmac)
            self.expire(who, hmac)
        for who in (admin, bob):
            self.renew(who, bytes(given.hmac))
        for nothing in (b"", b"x"):
            self.renew(alice, nothing)
            self.expire(alice, nothing)
        for version in (1, 2, 3):
            self.describe(alice, version=version)
        for owners in ((), ("",), ("alice",), ("carol",), ("admin", "bob")):
            for who in (alice, bob, carol, admin):
                self.describe(who, *owners)
        self.authenticate(token)
        for period_ms in (50_000, 0):
            self.expire(alice, hmac, period_ms)
        self._wait_until(token, usable=False)
        self.renew(carol, hmac)
        for period_ms in (5, -1):
            self.expire(carol, hmac, period_ms)
        self.expire(bob, hmac, 5)
        self.expire(bob, hmac, -7)
        self.expire(bob, hmac, -7)
        self.reject_all(self.open)
        return self.results

    def _wait_until(self, token: Any, *, usable: bool) -> None:
        """Wait for a token to be usable or expired: Kafka's broker follows its controller later."""
        ask = DescribeDelegationTokenRequest(owners=None)

        def is_usable() -> bool:
            answer = self.users["alice"].ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, ask)
            now_ms = time.time_ns() // 1_000_000
            return token.token_id in [
                row.token_id for row in answer.tokens if row.expiry_timestamp > now_ms
            ]

        eventually(is_usable, lambda found: found is usable, f"a token that is usable: {usable}")

    def authenticate(self, token: Any) -> None:
        """Record the authentication with a token and requests that are not permitted then."""
        password = base64.b64encode(bytes(token.hmac)).decode()
        bearer, answer = authenticated_by_token(self.inside, token.token_id, password)
        self.results.append(("login", answer.error_code, answer.session_lifetime_ms // 100_000))
        self.reject_all(bearer)
        bearer.close()
        for name, secret in ((token.token_id, "wrong"), ("nothing", password), ("alice", "hush")):
            stranger, answer = authenticated_by_token(self.inside, name, secret)
            stranger.close()
            self.results.append(("no login", answer.error_code))

    def handshakes(self) -> None:
        """Record the mechanisms that SaslHandshake returns for valid and invalid mechanisms."""
        key = ApiKey.SASL_HANDSHAKE
        for mechanism in ("PLAIN", "SCRAM-SHA-512", "GSSAPI", ""):
            for version in (0, 1):
                with closing(RawConnection(self.inside)) as connection:
                    message = SaslHandshakeRequest(mechanism=mechanism)
                    answer = connection.ask(key, version, message)
                row = ("handshake", mechanism, answer.error_code, sorted(answer.mechanisms))
                self.results.append(row)

    def reject_all(self, who: RawConnection) -> None:
        """Record the responses to all four requests, which are rejected."""
        wrong = [CreateDelegationTokenRequest.Renewer(principal_type="Group")]
        self.create(who, renewers=wrong)
        self.renew(who, b"x")
        self.expire(who, b"x")
        self.describe(who)


def test_token_responses_are_same_as_apache_kafkas(sides: dict[str, SecuredBroker]) -> None:
    results = []
    for name in START:
        with closing(TokenScript(sides[name])) as script:
            results.append(script.run_all())
    ours, theirs = results
    assert len(ours) > 70
    assert any(mechanisms for kind, *_, mechanisms in ours if kind == "handshake")
    different = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
    assert not different, "\n".join(map(str, different))


def test_token_responses_without_secret_key_are_same(tmp_path: Path) -> None:
    results: list[list[Any]] = []
    for name, start in START.items():
        side = start(tmp_path / name, key="")
        try:
            with closing(TokenScript(side)) as script:
                alice = script.users["alice"]
                script.create(alice)
                script.reject_all(alice)
                script.reject_all(script.open)
                results.append(script.results)
        finally:
            side.broker.kill()
    assert results[0] == results[1]


# -- clients that create and use tokens


def as_user(directory: Path, name: str) -> Path:
    """Write settings of Java's client for authentication with a password."""
    path = directory / f"{name}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required "
        f'username="{name}" password="{PASSWORD}";\n'
    )
    return path


def with_token(directory: Path, token_id: str, hmac: str, mechanism: str = "SCRAM-SHA-256") -> Path:
    """Write settings of Java's client for authentication with a token."""
    path = directory / "token.properties"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required "
        f'username="{token_id}" password="{hmac}" tokenauth="true";\n'
    )
    return path


@pytest.mark.parametrize("broker", START)
def test_kafka_delegation_tokens_manages_token(
    sides: dict[str, SecuredBroker], broker: str, tools: Tools, tmp_path: Path
) -> None:
    """kafka-topics authenticates with the token."""
    guarded = sides[broker]

    def run(*words: str, name: str = "bob") -> str:
        address = ("--bootstrap-server", guarded.inside)
        config = ("--command-config", str(as_user(tmp_path, name)))
        output = tools.run("kafka-delegation-tokens", *address, *config, *words)
        assert output.status == 0, output
        return output.stdout

    made = run("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:carol")
    (row,) = re.findall(
        r"^(\S{22})\s+(\S{80,})\s+User:bob\s+User:bob\s+\[User:carol\]", made, re.MULTILINE
    )
    token_id, hmac = row
    assert len(base64.b64decode(hmac)) == 64
    eventually(
        lambda: run("--describe", "--owner-principal", "User:bob"),
        lambda output: token_id in output,
        "made",
    )
    for name in ("bob", "carol", "admin"):
        assert "Total number of tokens : 0" in run(
            "--describe", name=name
        )  # the tool requests tokens of an empty owner list
        assert token_id in run("--describe", "--owner-principal", "User:bob", name=name)
    assert token_id not in run("--describe", "--owner-principal", "User:admin", name="admin")
    assert "Completed renew operation" in run(
        "--renew", "--hmac", hmac, "--renew-time-period", "60000", name="carol"
    )
    config = ("--command-config", str(with_token(tmp_path, token_id, hmac)))
    listed = tools.run("kafka-topics", "--bootstrap-server", guarded.inside, *config, "--list")
    assert listed.status == 0, listed
    address = ("--bootstrap-server", guarded.inside)
    refused = tools.run("kafka-delegation-tokens", *address, *config, "--describe")
    assert "DelegationTokenDisabledException" not in refused.stdout + refused.stderr
    assert "Delegation Token requests are not allowed" in refused.stdout + refused.stderr
    assert "Completed expire operation" in run(
        "--expire", "--hmac", hmac, "--expiry-time-period", "-1"
    )
    eventually(
        lambda: run("--describe", "--owner-principal", "User:bob"),
        lambda output: token_id not in output,
        "ended",
    )
    refused = tools.run("kafka-topics", *address, *config, "--list")
    assert refused.status == 1, refused
    assert "SaslAuthenticationException: Authentication failed" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("jar_set", "mechanism"), [("kafka-4.4", "SCRAM-SHA-256"), ("kafka-3.9", "SCRAM-SHA-512")]
)
def test_java_client_authenticates_with_token(
    guarded: SecuredBroker, tmp_path: Path, jar_set: str, mechanism: str
) -> None:
    with closing(authenticated(guarded.inside, "alice")) as alice:
        ask = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        token = alice.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, ask)
    hmac = base64.b64encode(bytes(token.hmac)).decode()
    config = with_token(tmp_path, token.token_id, hmac, mechanism)
    rate, seconds = 100, 5
    count = rate * seconds
    output = java(
        jar_set,
        COMMANDS["kafka-producer-perf-test"],
        *("--topic", f"by-token-{jar_set}-{mechanism}", "--record-size", "100"),
        *("--num-records", str(count), "--throughput", str(rate)),
        *("--producer-props", f"bootstrap.servers={guarded.inside}"),
        *("--producer.config", str(config)),
    )
    assert f"{count} records sent" in output, output


@pytest.mark.parametrize("broker", START)
def test_security_token_command_manages_token(sides: dict[str, SecuredBroker], broker: str) -> None:
    """Runs on both brokers."""
    inside = sides[broker].inside

    def run(*words: str, name: str = "bob", ok: bool = True, login: str = "") -> str:
        jaas = login or f'PlainLoginModule required username="{name}" password="{PASSWORD}";'
        mechanism = "SCRAM-SHA-512" if login else "PLAIN"
        options = (
            "security.protocol=SASL_PLAINTEXT",
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config={jaas}",
        )
        command = [sys.executable, "-m", "kbroker", *words, "-b", inside]
        command += [word for each in options for word in ("-X", each)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode == 0) is ok, done
        return done.stdout + done.stderr

    made = run("security", "token", "create", "--json", "--renewer", "carol")
    token = json.loads(made)
    token_id = token["token"]
    eventually(
        lambda: run("security", "token", "list", "bob"), lambda output: token_id in output, "made"
    )
    login = (
        f'ScramLoginModule required username="{token_id}" password="{token["hmac"]}" '
        'tokenauth="true";'
    )
    run("topic", "list", login=login)
    refused = run("security", "token", "list", login=login, ok=False)
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused
    rows = run("security", "token", "list", "bob", "--json", name="carol").splitlines()
    assert token_id in [json.loads(each)["token"] for each in rows]
    output = run("security", "token", "renew", token_id, "--for", "1h", name="carol")
    assert f"token {token_id} is valid until" in output
    run("security", "token", "expire", "--yes", token_id)
    eventually(
        lambda: run("security", "token", "list", name="admin"),
        lambda output: token_id not in output,
        "ended",
    )
    assert "cannot authenticate as" in run("topic", "list", login=login, ok=False)


def test_spark_creates_token_and_authenticates_with_it(
    guarded: SecuredBroker, tmp_path: Path
) -> None:
    """Spark's token provider creates a token (`spark.kafka.clusters.*`) for its source and sink.

    Spark's scheduler calls the provider only if Hadoop uses Kerberos, so the script calls it.
    """
    environment = WORK / ENVIRONMENT
    script = str(COMPAT / "spark" / "delegation.py")
    who = ("alice", PASSWORD)
    command = [str(environment_python(ENVIRONMENT)), script, str(environment), guarded.inside, *who]
    spark = ScriptProcess("spark", command, tmp_path / "spark.err")
    alice = authenticated(guarded.inside, "alice")
    try:
        (token_id,) = spark("obtain")
        describe = DescribeDelegationTokenRequest(owners=None)
        answer = alice.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, describe)
        (token,) = (each for each in answer.tokens if each.token_id == token_id)
        topic = "spark-by-token"
        values = [str(number) for number in range(100)]
        spark("write", rows=[{"topic": topic, "value": each} for each in values], options={})
        rows = spark("read", options={"subscribe": topic})
        assert sorted((row["value"] for row in rows), key=int) == values
        end = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
        assert not alice.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, end).error_code
        with pytest.raises(ClientError, match="SaslAuthenticationException"):
            spark("read", options={"subscribe": topic})
    finally:
        alice.close()
        spark.close()
