"""Tests of the authentication and authorization between nodes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.cluster.peers import find_inter_broker_listener_name
from kbroker.config import BrokerConfig
from kbroker.process.errors import StartFailed
from kbroker.process.inter_broker_checks import check_inter_broker_security
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.topics import CreateTopicsRequest

from ..node.test_listener_security import change
from ..security.certificates import Authority
from ..security.issuers import AUDIENCE, ISSUER, key_for, key_set, token_for
from ..security.test_access import AUTHORIZER
from ..wire import Topic, Wire, batch, connected, fetch, produce, until, values_of

TWO_LISTENERS = (
    "listeners=OPEN://127.0.0.1:0,IN://127.0.0.1:0",
    "inter.broker.listener.name=IN",
    f"authorizer.class.name={AUTHORIZER}",
)
MODULE = {"PLAIN": "Plain", "SCRAM-SHA-256": "Scram", "SCRAM-SHA-512": "Scram"}


def sasl_settings(mechanism: str, password: str = "hush") -> list[str]:
    """Return settings with which nodes authenticate to each other as `node`."""
    own = f'username="node" password="{password}" user_node="hush"'
    prefix = f"listener.name.in.{mechanism.lower()}."
    return [
        "listener.security.protocol.map=OPEN:PLAINTEXT,IN:SASL_PLAINTEXT",
        f"sasl.enabled.mechanisms={mechanism}",
        f"sasl.mechanism.inter.broker.protocol={mechanism}",
        f"{prefix}sasl.jaas.config=a.{MODULE[mechanism]}LoginModule required {own};",
    ]


@asynccontextmanager
async def cluster(*settings: str, users: str) -> AsyncIterator[Broker]:
    """Start three nodes with ACLs enforced and with `users` as super users."""
    config = BrokerConfig.load(
        options=[*TWO_LISTENERS, f"super.users={users}", *settings], strict=True
    )
    async with open_broker(
        config, data_dir=None, listeners=configured_listeners(config), nodes=3
    ) as broker:
        yield broker
        assert not any(each.node.context.error_log.unhandled_errors for each in broker.nodes)


async def create(wire: Wire) -> None:
    row = CreateTopicsRequest.Topic(name="t", num_partitions=1, replication_factor=3)
    await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[row]))


async def replicate(broker: Broker) -> None:
    """Write a record that all nodes replicate, and read it."""
    async with connected(broker.endpoint) as wire:
        await create(wire)
        partition = broker.node.cluster.topics["t"].partitions[0]
        leader = next(each for each in broker.nodes if each.id == partition.leader)
        async with connected(leader.endpoint) as at_leader:
            await produce(at_leader, Topic("t"), batch([b"x"]), acks=-1)
            assert values_of(await fetch(at_leader, Topic("t"))) == [b"x"]
        assert len(partition.isr) == 3


@pytest.mark.parametrize("mechanism", MODULE)
async def test_nodes_authenticate_to_each_other(mechanism: str) -> None:
    users = "User:ANONYMOUS;User:node"
    async with cluster(*sasl_settings(mechanism), users=users) as broker:
        await replicate(broker)


async def test_nodes_authenticate_with_bearer_tokens(authority: Authority) -> None:
    keys, token = authority.directory / "keys.json", authority.directory / "token"
    keys.write_bytes(key_set(key_for("ES256")))
    token.write_text(token_for("node"))
    settings = [
        "listener.security.protocol.map=OPEN:PLAINTEXT,IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol=OAUTHBEARER",
        f"sasl.oauthbearer.jwks.endpoint.url={keys.as_uri()}",
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}",
        f"sasl.oauthbearer.expected.issuer={ISSUER}",
        f"sasl.oauthbearer.expected.audience={AUDIENCE}",
    ]
    async with cluster(*settings, users="User:ANONYMOUS;User:node") as broker:
        await replicate(broker)


async def test_nodes_authenticate_with_certificates(authority: Authority) -> None:
    settings = [
        "listener.security.protocol.map=OPEN:PLAINTEXT,IN:SSL",
        f"ssl.keystore.location={authority.pem('node')}",
        f"ssl.truststore.location={authority.trusted}",
        "ssl.client.auth=required",
        "ssl.principal.mapping.rules=RULE:CN=([a-z]+).*/$1/",
    ]
    async with cluster(*settings, users="User:ANONYMOUS;User:node") as broker:
        await replicate(broker)


@pytest.mark.parametrize(
    ("users", "password", "reason"),
    [
        ("User:ANONYMOUS;User:node", "wrong", "cannot authenticate as node"),
        (
            "User:ANONYMOUS",
            "hush",
            "TOPIC_AUTHORIZATION_FAILED; add this node's principal to super.users there",
        ),
    ],
)
async def test_rejected_node_logs_reason_and_does_not_replicate(
    users: str, password: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        cluster(
            *sasl_settings("SCRAM-SHA-256", password), "replica.lag.time.max.ms=500", users=users
        ) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create(wire)
        await until(lambda: reason in caplog.text)
    assert "hush" not in caplog.text


async def test_inter_broker_password_can_be_changed_at_runtime() -> None:
    """Nodes first accept the new password and then use it, as in Kafka."""
    settings = sasl_settings("SCRAM-SHA-256")
    name = "listener.name.in.scram-sha-256.sasl.jaas.config"
    async with cluster(*settings, users="User:ANONYMOUS;User:node") as broker:
        jaas = 'a.ScramLoginModule required username="two" password="new" user_two="new";'
        changes = {name: jaas, "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}
        for node in broker.nodes:
            assert await change(broker, changes, node.id) is None
        for node in broker.nodes:
            security = next(each.security for each in node.listeners if each.name == "IN")
            assert security is not None
            credentials = security.credentials()
            assert credentials is not None
            assert credentials.name == "two"


async def test_inter_broker_listener_is_found_by_its_protocol(authority: Authority) -> None:
    """Kafka's own examples omit inter.broker.listener.name."""
    own = [
        "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        f"ssl.keystore.location={authority.pem('node')}",
        f"ssl.truststore.location={authority.trusted}",
        "ssl.client.auth=required",
        "security.inter.broker.protocol=SSL",
        f"authorizer.class.name={AUTHORIZER}",
        "ssl.principal.mapping.rules=RULE:CN=([a-z]+).*/$1/",
        "super.users=User:ANONYMOUS;User:node",
    ]
    config = BrokerConfig.load(options=own, strict=True)
    listeners = configured_listeners(config)
    assert find_inter_broker_listener_name(config, [each.name for each in listeners]) == "SSL"
    async with open_broker(config, data_dir=None, listeners=listeners, nodes=3) as broker:
        await replicate(broker)


def check(*settings: str) -> None:
    config = BrokerConfig.load(options=[*TWO_LISTENERS, *settings])
    check_inter_broker_security(config, configured_listeners(config))


def test_missing_inter_broker_credentials_fail_the_start() -> None:
    mechanism, *_ = settings = sasl_settings("PLAIN")
    with pytest.raises(StartFailed, match=r"inter-broker listener IN: sasl\.mechanism=GSSAPI"):
        check(mechanism, settings[1], settings[3])
    with pytest.raises(StartFailed, match=r"set username=\.\.\. and password=\.\.\."):
        check(*settings[:3], "listener.name.in.plain.sasl.jaas.config=a.PlainLoginModule required;")


def test_unauthenticated_inter_broker_listener_fails_the_start() -> None:
    open_to_all = "listener.security.protocol.map=OPEN:PLAINTEXT,IN:PLAINTEXT"
    with pytest.raises(StartFailed, match="listener IN does not authenticate nodes"):
        check(open_to_all)
    check(open_to_all, "super.users=User:x; User:ANONYMOUS")


def test_inter_broker_principal_without_super_user_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(*sasl_settings("PLAIN"))
    assert "the inter-broker principal User:node is not in super.users" in caplog.text
