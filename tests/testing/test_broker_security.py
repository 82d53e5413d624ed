"""Security options of the test kit's brokers: TLS, users, certificates, tokens and ACLs."""

from __future__ import annotations

import builtins
import gc
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import SkipTest

import pytest
import trio
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from kbroker.client import check_round_trip
from kbroker.client.endpoint import Endpoint
from kbroker.client.security import security_of
from kbroker.net.server import Listener
from kbroker.security.jaas import jaas_text, parse_jaas
from kbroker.testing import BrokerThread, ExternalKafka, LocalBroker, open_test_broker
from kbroker.testing.broker_security import MECHANISMS, parse_acl
from kbroker.testing.client_settings import TokenLogin

USERS = {"alice": "pencil", "bob": "pen"}
AWKWARD = {'a b"=;': "1\\2\n3 'x' \"y\"", "größe": "ключ"}


Make = Callable[..., LocalBroker]


@pytest.fixture
def make(thread: BrokerThread) -> Iterator[Make]:
    brokers: list[LocalBroker] = []

    def new_broker(**settings: Any) -> LocalBroker:
        brokers.append(LocalBroker(thread=thread, **settings))
        return brokers[-1]

    yield new_broker
    for broker in brokers:
        broker.close()


def send_record(settings: dict[str, Any], topic: str = "orders") -> None:
    """Send one record with kafka-python.

    Raises:
        KafkaError: The broker rejects the record.
    """
    producer = KafkaProducer(**settings, max_block_ms=5000, retries=0)
    try:
        producer.send(topic, b"x").get(20)
    finally:
        producer.close(0)


def request_metadata(settings: dict[str, str]) -> None:
    """Request metadata with the properties of a Java client.

    Raises:
        OSError: The connection or authentication fails.
    """
    endpoint = Endpoint.parse(settings["bootstrap.servers"])
    security = security_of(settings)

    async def ask() -> None:
        await check_round_trip(*endpoint, security=security)

    trio.run(ask)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("users", [None, USERS])
def test_client_settings_connect_kafka_python(
    make: Make, tls: bool, users: dict[str, str] | None
) -> None:
    broker = make(topics=["orders"], tls=tls, users=users)
    send_record(broker.client().kafka_python)
    broker.produce("orders", "by the kit")
    assert [record.value for record in broker.wait_for("orders", count=2)] == [b"x", b"by the kit"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_users_authenticate_with_each_mechanism(make: Make, mechanism: str) -> None:
    broker = make(topics=["orders"], users=USERS | AWKWARD)
    send_record(broker.client("alice", mechanism=mechanism.lower()).kafka_python)
    for name in USERS | AWKWARD:
        request_metadata(broker.client(name, mechanism=mechanism).java)
        with pytest.raises(OSError, match="cannot authenticate as"):
            request_metadata(broker.client(name, password="no", mechanism=mechanism).java)
    with pytest.raises(OSError, match="cannot authenticate as eve"):
        request_metadata(broker.client("eve", password="no", mechanism=mechanism).java)


def test_each_broker_has_its_own_ca(make: Make) -> None:
    one, other = make(topics=["orders"], tls=True), make(topics=["orders"], tls=True)
    send_record(one.client().kafka_python)
    send_record(other.client().kafka_python)
    mixed_settings = one.client().java | {"bootstrap.servers": other.bootstrap_servers}
    with pytest.raises(OSError, match="is not trusted"):
        request_metadata(mixed_settings)
    assert (len(one.records("orders")), len(other.records("orders"))) == (1, 1)


def test_acls_are_enforced_and_can_be_added(make: Make) -> None:
    broker = make(
        topics=["orders"],
        users={**USERS, "root": "r"},
        acls={"alice": ["WRITE topic ord*"], "*": ["DENY WRITE topic secrets"]},
        super_users=["root"],
    )
    send_record(broker.client("alice").kafka_python)
    send_record(broker.client("root").kafka_python)
    with pytest.raises(TopicAuthorizationFailedError):
        send_record(broker.client("bob").kafka_python)
    broker.allow("bob", "write TOPIC orders")
    send_record(broker.client("bob").kafka_python)
    broker.allow("alice", "DENY WRITE topic orders")
    with pytest.raises(TopicAuthorizationFailedError):
        send_record(broker.client("alice").kafka_python)
    broker.create_topic("secrets")
    with pytest.raises(TopicAuthorizationFailedError):
        send_record(broker.client("bob").kafka_python, "secrets")
    assert len(broker.records("orders")) == 3


def test_security_is_kept_over_restart_and_fork(make: Make, tmp_path: Any) -> None:
    broker = make(
        topics=["orders"],
        tls=True,
        users=USERS,
        acls={"alice": ["WRITE topic orders"]},
        data_dir=str(tmp_path),
    )
    broker.restart()
    send_record(broker.client("alice").kafka_python)
    with broker.fork() as fork:
        send_record(fork.client("alice").kafka_python)
        with pytest.raises(TopicAuthorizationFailedError):
            send_record(fork.client("bob").kafka_python)
        assert (len(broker.records("orders")), len(fork.records("orders"))) == (1, 2)


@pytest.mark.slow
def test_nodes_authenticate_to_each_other(make: Make) -> None:
    broker = make(
        nodes=3,
        config={"default.replication.factor": 3},
        tls=True,
        users=USERS,
        acls={"alice": ["WRITE topic orders"]},
    )
    broker.create_topic("orders", 3)
    for _ in range(5):
        send_record(broker.client("alice").kafka_python | {"acks": "all"})
    broker.stop_node(1)
    send_record(broker.client("alice").kafka_python | {"acks": "all"})
    assert len(broker.records("orders")) == 6


def send_by_confluent(settings: dict[str, Any], topic: str = "orders") -> None:
    """Send one record with confluent-kafka.

    Raises:
        KafkaException: The client cannot send the record.
        AssertionError: The broker does not acknowledge the record.
    """
    errors: list[object] = []
    producer = Producer(settings)
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert errors == [None]


def test_clients_authenticate_with_certificates(make: Make) -> None:
    broker = make(
        topics=["orders", "invoices"],
        certificates=["shop", "billing@example.org"],
        acls={"shop": ["WRITE topic orders"], "billing@example.org": ["WRITE topic invoices"]},
    )
    send_record(broker.client("shop").kafka_python)
    send_by_confluent(broker.client("shop").confluent_kafka)
    send_record(broker.client("billing@example.org").kafka_python, "invoices")
    with pytest.raises(TopicAuthorizationFailedError):
        send_record(broker.client("shop").kafka_python, "invoices")
    request_metadata(broker.client().java)
    assert len(broker.records("orders")) == 2
    no_certificate = {
        name: text for name, text in broker.client().java.items() if "keystore" not in name
    }
    with pytest.raises(OSError, match=r"requires a client certificate; set ssl.keystore.location"):
        request_metadata(no_certificate)
    other_broker = make(certificates=["shop"]).client("shop").java
    other_certificate = {name: text for name, text in other_broker.items() if "keystore" in name}
    with pytest.raises(OSError, match="rejected the client certificate"):
        request_metadata(broker.client().java | other_certificate)


def test_clients_authenticate_with_tokens(make: Make) -> None:
    broker = make(
        topics=["orders"],
        tls=True,
        users={"alice": "pencil"},
        tokens=["bot", "alice"],
        acls={"bot": ["WRITE topic orders"]},
    )
    send_record(broker.client("bot").kafka_python)
    send_by_confluent(broker.client("bot").confluent_kafka)
    request_metadata(broker.client("bot").java)
    with pytest.raises(TopicAuthorizationFailedError):
        send_record(broker.client("alice", mechanism="oauthbearer").kafka_python)
    assert broker.client("alice").java["sasl.mechanism"] == "SCRAM-SHA-512"
    for token in (
        broker.token("bot", exp=0),
        broker.token("bot", aud="somebody else"),
        broker.token("bot", sub=None),
        make(tokens=["bot"]).token("bot"),
        "none",
    ):
        with pytest.raises(OSError, match="cannot authenticate as"):
            request_metadata(broker.client("bot", token=token).java)
    request_metadata(broker.client("whoever", token=broker.token("whoever")).java)
    assert len(broker.records("orders")) == 2


def test_token_files_are_deleted_with_broker(thread: BrokerThread) -> None:
    with LocalBroker(thread=thread, tokens=["bot"]) as broker:
        login = broker.client("bot").login
        assert isinstance(login, TokenLogin)
        directory = login.file.parent
        assert directory.stat().st_mode & 0o777 == 0o700
        request_metadata(broker.client("bot").java)
        broker.restart()
        request_metadata(broker.client("bot").java)
    del broker, login
    gc.collect()
    assert not directory.exists()


@pytest.mark.parametrize("users_option", [{"certificates": ["alice"]}, {"tokens": ["alice"]}])
def test_nodes_authenticate_with_certificate_or_token_users(
    make: Make, users_option: dict[str, Any]
) -> None:
    broker = make(
        nodes=3,
        config={"default.replication.factor": 3},
        acls={"alice": ["WRITE topic orders"]},
        **users_option,
    )
    broker.create_topic("orders", 3)
    send_record(broker.client("alice").kafka_python | {"acks": "all"})
    broker.stop_node(1)
    send_record(broker.client("alice").kafka_python | {"acks": "all"})
    assert len(broker.records("orders")) == 2


def test_client_settings_have_form_of_each_library(make: Make) -> None:
    broker = make(tls=True, users={"alice": 'a"b'})
    settings = broker.client("alice")
    assert isinstance(settings.aiokafka["ssl_context"], ssl.SSLContext)
    assert settings.java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="a\\"b";'
    )
    assert settings.java["ssl.truststore.type"] == "PEM"
    assert settings.spark["kafka.security.protocol"] == "SASL_SSL"
    assert settings.confluent_kafka == {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": settings.authority,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 'a"b',
    }
    assert 'a"b' not in repr(settings)


def test_secrets_are_not_shown(make: Make) -> None:
    broker = make(tls=True, users={"alice": "pencil"})
    for each in (broker, make(certificates=["shop"]), make(tokens=["bot"])):
        for shown in (repr(each._secured), each.report(), repr(each.client())):
            assert "pencil" not in shown
            assert "PRIVATE" not in shown
            assert "CERTIFICATE" not in shown


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"users": {}}, 'invalid users {}: pass passwords by name, as {"alice": "secret"}'),
        ({"users": ["alice"]}, "pass passwords by name"),
        ({"users": {"alice": ""}}, "names and passwords must be non-empty strings"),
        ({"users": {"kbroker-node": "x"}}, "choose another name"),
        ({"tokens": ["kbroker-node"]}, "choose another name"),
        ({"certificates": ["a,b"]}, "certificates: invalid name 'a,b'"),
        ({"certificates": ["ab" * 33]}, "at most 64 characters"),
        ({"certificates": ["a"], "users": USERS}, "leave out certificates, or users and tokens"),
        ({"super_users": ["alice"]}, r"super_users without ACLs .*; add acls=\{\}"),
        (
            {"users": USERS, "acls": {}, "super_users": ["alise"]},
            "there is no user 'alise'; did you mean alice",
        ),
        ({"users": USERS, "acls": {"bobb": []}}, "there is no user 'bobb'; did you mean bob"),
        ({"acls": {"alice": ["READ topic t"]}}, r"\(valid: ANONYMOUS, \*\)"),
        ({"users": USERS, "acls": {"bob": ["READ orders"]}}, 'write "READ topic orders"'),
        (
            {"users": USERS, "acls": {"bob": ["REED topic t"]}},
            r"operation in acls 'REED' \(valid: ALL, READ",
        ),
        (
            {"users": USERS, "acls": {"bob": ["READ topik t"]}},
            r"resource type in acls 'topik' \(valid: topic, group, cluster",
        ),
        ({"acls": {}, "nodes": 3}, "add users, or leave out nodes"),
        (
            {"tls": True, "config": {"ssl.keystore.key": "x"}},
            "set ssl.keystore.key; leave it out of config",
        ),
    ],
)
def test_invalid_security_options_are_rejected(make: Make, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_missing_security_feature_raises_error(make: Make) -> None:
    broker = make()
    assert broker.client().kafka_python["security_protocol"] == "PLAINTEXT"
    with pytest.raises(ValueError, match="clients of this broker do not authenticate"):
        broker.client("alice")
    with pytest.raises(ValueError, match="create the broker with acls="):
        broker.allow("*", "READ topic t")
    with pytest.raises(ValueError, match=r"invalid mechanism 'GSSAPI' \(valid: SCRAM-SHA-512"):
        make(users=USERS).client("alice", mechanism="GSSAPI")
    with pytest.raises(
        ValueError, match="'shopp'; did you mean shop\\? Otherwise, add the user to cert"
    ):
        make(certificates=["shop"]).client("shopp")
    with pytest.raises(ValueError, match="no user 'eve'; add the user to tokens, or pass a token"):
        make(tokens=["bot"]).client("eve")
    with pytest.raises(ValueError, match=r'create it with tokens=\["bot"\]'):
        broker.token("bot")


def test_missing_optional_packages_are_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def import_without_extras(name: str, *args: Any) -> Any:
        if name.partition(".")[0] in ("trustme", "joserfc"):
            raise ModuleNotFoundError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", import_without_extras)
    with pytest.raises(ValueError, match=r"pip install 'kbroker\[testing\]'"):
        make(tls=True)
    with pytest.raises(ValueError, match=r"pip install 'kbroker\[oauth\]'"):
        make(tokens=["bot"])


def test_client_settings_of_external_kafka_skip_test(make: Make, thread: BrokerThread) -> None:
    kafka = ExternalKafka(make().bootstrap_servers, thread)
    with pytest.raises(SkipTest, match="`client` needs a broker in this process"):
        kafka.client("alice")
    kafka.close()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("READ topic orders", "ALLOW User:a READ on topic orders from *"),
        ("deny write Topic *", "DENY User:a WRITE on topic * from *"),
        (
            "allow ALL transactional_id pay-*",
            "ALLOW User:a ALL on prefixed transactional id pay- from *",
        ),
        ("create cluster", "ALLOW User:a CREATE on cluster kafka-cluster from *"),
    ],
)
def test_parse_acl_reads_permissions(text: str, rule: str) -> None:
    assert str(parse_acl("a", text)) == rule


def test_jaas_text_round_trips() -> None:
    options = {"username": "a", **{f"user_{name}": word for name, word in AWKWARD.items()}}
    assert parse_jaas(jaas_text("a.B", options)).options == options


def test_client_raises_error_if_listeners_were_passed(make: Make) -> None:
    broker = make(listeners=[Listener("PLAINTEXT", "127.0.0.1", 0)])
    with pytest.raises(ValueError, match="listeners is unknown, because they were passed"):
        broker.client()


async def test_open_test_broker_supports_security_options() -> None:
    async with open_test_broker(
        topics=["orders"],
        users={"alice": "pencil"},
        tokens=["bot"],
        acls={"alice": ["DESCRIBE topic orders"]},
    ) as broker:
        for user in ("alice", "bot"):
            send = partial(send_record, broker.client(user).kafka_python)
            with pytest.raises(TopicAuthorizationFailedError):
                await trio.to_thread.run_sync(send)
            await broker.allow(user, "WRITE topic orders")
            await trio.to_thread.run_sync(send)
        assert len(await broker.records("orders")) == 2
        with pytest.raises(ValueError, match="there is no user 'alise'; did you mean alice"):
            await broker.allow("alise", "READ topic orders")
    async with open_test_broker(certificates=["shop"], nodes=2) as broker:
        await check_round_trip(
            *Endpoint.parse(broker.bootstrap_servers.partition(",")[0]),
            security=security_of(broker.client("shop").java),
        )
        with pytest.raises(ValueError, match="create the broker with acls="):
            await broker.allow("shop", "READ topic orders")
