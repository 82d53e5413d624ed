"""Brokers with users, authentication and HTTP services."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kbroker.broker import Broker, Service, open_broker
from kbroker.config import BrokerConfig
from kbroker.process.listeners import configured_listeners

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required "
USERS = 'username="admin" password="hush" user_admin="hush" user_alice="secret";'
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def secured_config(mechanism: str, **more: str) -> BrokerConfig:
    """Return the settings of a broker with the super user admin and the ordinary user alice.

    Args:
        mechanism: SASL mechanism.
        **more: More settings, with `_` for the dots of their names.
    """
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    prefix = f"listener.name.sasl_plaintext.{mechanism.lower()}"
    options: dict[str, str] = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.enabled.mechanisms": mechanism,
        f"{prefix}.sasl.jaas.config": module + USERS,
        "connection.setup.timeout.ms": "3600000",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return BrokerConfig.load(options=options)


@asynccontextmanager
async def secured_broker(
    config: BrokerConfig, service: Service, *, nodes: int | None = None
) -> AsyncIterator[Broker]:
    """Run a broker with a `secured_config` and a service."""
    async with open_broker(
        config,
        data_dir=None,
        listeners=configured_listeners(config),
        nodes=nodes,
        grace_seconds=1,
        service=service,
    ) as broker:
        yield broker


def basic_auth(name: str, password: str) -> dict[str, str]:
    """Return the HTTP header for basic authentication."""
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}
