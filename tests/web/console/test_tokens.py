"""Delegation tokens in the console: the HMAC appears in one response only."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager

import pytest

from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.delegation_tokens import describe_delegation_tokens

from ...security.tokens import KEY
from .consoles import console
from .secured_consoles import ALICE, SecuredConsole, secured_console


def token_console() -> AbstractAsyncContextManager[SecuredConsole]:
    """Run a console of a broker that accepts delegation tokens."""
    return secured_console("SCRAM-SHA-256", delegation_token_secret_key=KEY)


async def test_token_is_created_renewed_and_expired(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with token_console() as setup:
        body = {"renewers": ["bob"], "max_lifetime_ms": 60_000}
        made = await setup.post("/tokens/create", body, login=ALICE)
        assert (made["owner"], made["renewers"]) == ("User:alice", ["User:bob"])
        hmac, name = made.pop("hmac"), made["token"]
        security = Security(
            None, Credentials("SCRAM-SHA-256", name, hmac, is_delegation_token=True)
        )
        async with open_cluster([setup.broker.nodes[0].endpoint], security=security) as cluster:
            assert (await cluster.metadata([])).cluster_id

        listed = await setup.ask("/tokens", login=ALICE)
        assert listed.json()["tokens"] == [made | {"may_alter": True}]
        renewed = await setup.ask(
            "/tokens/renew", {"token": name, "period_ms": 30_000}, login=ALICE
        )
        assert renewed.json()["expires"] <= made["expires"]
        shown = await setup.ask("/tokens/expire", {"token": name}, login=ALICE)
        assert shown.json()["dry_run"] is True
        assert len((await setup.get("/tokens", login=ALICE))["tokens"]) == 1
        ended = await setup.ask("/tokens/expire", {"token": name, "dry_run": False}, login=ALICE)
        assert (await setup.get("/tokens", login=ALICE))["tokens"] == []
        for response in (listed, renewed, shown, ended):
            assert response.status == 200
            assert hmac not in response.text
    assert hmac not in caplog.text


async def test_viewer_sees_and_changes_only_permitted_tokens() -> None:
    async with token_console() as setup:
        made = await setup.post("/tokens/create", {})
        assert (await setup.get("/tokens", login=ALICE))["tokens"] == []
        status, message = await setup.refusal(
            "/tokens/renew", {"token": made["token"]}, login=ALICE
        )
        assert status == 404
        assert "is not visible to this user" in message
        body = {"owner": "admin"}
        assert (await setup.refusal("/tokens/create", body, login=ALICE))[0] == 403
        assert (await setup.refusal("/tokens/create", {}, token="wrong"))[0] == 403
        assert len(await describe_delegation_tokens(setup.cluster)) <= 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"renewers": ["User:"]}, "a principal is empty"),
        ({"renewers": "bob"}, "renewers must be of type list"),
        ({"max_lifetime_ms": 0}, "max_lifetime_ms must be from 1"),
        ({"max_lifetime_ms": 1 << 63}, "max_lifetime_ms must be from 1"),
    ],
)
async def test_invalid_token_is_rejected(body: object, message: str) -> None:
    async with token_console() as setup:
        status, found = await setup.refusal("/tokens/create", body)
        assert status == 400
        assert message in found


async def test_broker_without_tokens_reports_how_to_enable_them() -> None:
    async with secured_console() as setup:
        listed = await setup.get("/tokens")
        assert "set delegation.token.secret.key" in listed["unavailable"]
        assert listed["may_alter"] is False
    async with console() as open_setup:
        assert "authenticate as a user" in (await open_setup.get("/tokens"))["unavailable"]
