"""Brokers with a SASL listener, users of PLAIN and ACLs, configured alike for both brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .brokers import Broker, FixedQuorumBroker, KbrokerBroker, free_port

ADMIN, PASSWORD = "admin", "a password of the test"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def client_settings(user: str) -> dict[str, str]:
    """Return the settings of a client that authenticates as a user."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{LOGIN_MODULE} username="{user}" password="{PASSWORD}";',
    }


def secured_brokers(
    kbroker: Path, apache: Path, users: Iterable[str], properties: Mapping[str, str]
) -> list[Broker]:
    """Return kbroker and Apache Kafka, not started, with ACLs and the super user `ADMIN`.

    The controller listener of Apache Kafka has no authentication.

    Args:
        kbroker: Directory of kbroker.
        apache: Directory of Apache Kafka.
        users: Further users; all have the password `PASSWORD`.
        properties: Further settings of both brokers.
    """
    known = " ".join(f'user_{each}="{PASSWORD}"' for each in (ADMIN, *users))
    jaas = f'{LOGIN_MODULE} username="{ADMIN}" password="{PASSWORD}" {known};'
    common = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        **properties,
    }
    ours = KbrokerBroker(kbroker, {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **common})
    port, controller = free_port(), free_port()
    listener = f"SASL_PLAINTEXT://127.0.0.1:{port}"
    theirs = FixedQuorumBroker(
        apache,
        {
            **common,
            "listeners": f"{listener},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listener,
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
        },
    )
    theirs.listener_port, theirs.controller_port = port, controller
    return [ours, theirs]
