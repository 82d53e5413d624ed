"""Who may look at the console where users log in, and what each of them may do."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.process.listeners import configured_listeners
from kbroker.web.service import HttpService

from .client import Answer, asking

API = "/api/v1"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required "
USERS = 'username="admin" password="hush" user_admin="hush" user_alice="secret";'
SUPER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


@asynccontextmanager
async def secured(mechanism: str, **more: str) -> AsyncIterator[tuple[Broker, Endpoint]]:
    """A broker with users, and where its console is."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    prefix = f"listener.name.sasl_plaintext.{mechanism.lower()}"
    options: dict[str, str] = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.enabled.mechanisms": mechanism,
        f"{prefix}.sasl.jaas.config": module + USERS,
        "http.port": "0",
        "first.request.timeout.ms": "3600000",
        **{name.replace("_", "."): value for name, value in more.items()},
        **SUPER,
    }
    config = BrokerConfig.load(options=options)
    http = HttpService(config)
    async with open_broker(
        config,
        data_dir=None,
        listeners=configured_listeners(config),
        grace_seconds=1,
        service=http,
    ) as broker:
        yield broker, http.endpoint_of(1)


def shown(name: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


async def ask(there: Endpoint, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    async with asking(there) as client:
        return await client.ask(path, headers=headers)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_the_users_of_the_broker_log_in_and_nobody_else(mechanism: str) -> None:
    async with secured(mechanism) as (_, there):
        for headers in (
            {},
            shown("admin", "wrong"),
            shown("nobody", "hush"),
            {"Authorization": "Basic x"},
        ):
            for path in ("/console/", f"{API}/topics", f"{API}/session", f"{API}/overview"):
                answer = await ask(there, path, headers)
                assert answer.status == 401, path
                assert answer.headers["www-authenticate"].startswith("Basic")
        answer = await ask(there, f"{API}/session", shown("admin", "hush"))
        assert answer.json()["user"] == "admin"
        assert (await ask(there, f"{API}/overview", shown("admin", "hush"))).status == 200
        assert (await ask(there, "/livez")).status == 200


async def test_each_of_them_does_what_the_acls_allow() -> None:
    async with secured("PLAIN") as (_, there), asking(there) as client:
        admin, alice = shown("admin", "hush"), shown("alice", "secret")
        token = (await client.ask(f"{API}/session", headers=admin)).json()["token"]
        line = b'{"value": "x"}\n'
        for who, status in ((alice, 403), (admin, 404)):
            headers = {**who, "X-Kbroker-Token": token}
            path = f"{API}/topics/__consumer_offsets/records"
            answer = await client.ask(path, "POST", headers, line)
            assert answer.status in (status, 404), answer.text
        for path in ("/activity", "/cluster", "/storage", "/explain/client/x", "/explain/group/g"):
            assert (await client.ask(API + path, headers=alice)).status == 403, path
            assert (await client.ask(API + path, headers=admin)).status == 200, path
        assert (await client.ask(f"{API}/topics", headers=alice)).json()["topics"] == []


async def test_beyond_this_machine_no_password_is_asked_for() -> None:
    async with secured("PLAIN", http_host="0.0.0.0") as (_, there):
        answer = await ask(there, f"{API}/topics", shown("admin", "hush"))
        assert answer.status == 403
        assert "passwords could be read" in answer.json()["error"]
