"""Client quotas in the console."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.quotas import describe_quotas
from kbroker.security.acls import AclOperation

from .consoles import console
from .secured_consoles import ALICE, secured_console

KEY = "producer_byte_rate"


async def test_quota_is_set_and_removed_only_after_the_preview() -> None:
    async with console() as setup:

        async def change(value: float | None, **more: Any) -> Any:
            body = {"user": "alice", "client_id": "<default>", "values": {KEY: value}, **more}
            response = await setup.post("/quotas/set", body)
            assert response.status == 200, response.text
            return response.json()

        shown = await change(1000)
        assert shown == {
            "dry_run": True,
            "entity": "user=alice,client-id=<default>",
            "changes": [{"key": KEY, "before": None, "after": 1000.0}],
        }
        assert (await setup.get("/quotas"))["quotas"] == []
        await change(1000, dry_run=False)
        listed = await setup.get("/quotas")
        assert listed["quotas"] == [
            {"user": "alice", "client_id": "<default>", "quotas": {KEY: 1000}}
        ]
        assert listed["may_alter"] is True
        assert KEY in listed["keys"]
        shown = await change(None)
        assert shown["changes"] == [{"key": KEY, "before": 1000.0, "after": None}]
        await change(None, dry_run=False)
        assert await describe_quotas(setup.cluster) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"values": {KEY: 1}}, "name the quota's entity"),
        ({"user": "alice"}, "values must have 1 to"),
        ({"user": "alice", "values": {"speed": 1}}, "unknown quota 'speed'"),
        ({"user": "alice", "values": {KEY: "1"}}, "must be a number"),
        ({"user": "alice", "values": {KEY: True}}, "must be a number"),
        ({"user": "alice", "values": {KEY: 0}}, "must be greater than 0"),
        ({"user": "alice", "values": {KEY: 10**400}}, "must be a number"),
        ({"ip": "localhost", "values": {"connection_creation_rate": 1}}, "is not a valid IP"),
        ({"ip": "1.2.3.4", "user": "alice", "values": {KEY: 1}}, "cannot be combined"),
    ],
)
async def test_invalid_quota_is_rejected(body: object, message: str) -> None:
    async with console() as setup:
        response = await setup.post("/quotas/set", body)
        assert response.status == 400
        assert message in response.json()["error"]


async def test_changes_of_quotas_need_alter_configs_on_the_cluster() -> None:
    async with secured_console() as setup:
        body = {"user": "bob", "values": {KEY: 1}, "dry_run": False}
        assert (await setup.refusal("/quotas", login=ALICE))[0] == 403
        await setup.allow(AclOperation.DESCRIBE_CONFIGS)
        assert (await setup.get("/quotas", login=ALICE))["may_alter"] is False
        assert (await setup.refusal("/quotas/set", body, login=ALICE))[0] == 403
        assert (await setup.refusal("/quotas/set", body, token="wrong"))[0] == 403
        assert await describe_quotas(setup.cluster) == []
        await setup.allow(AclOperation.ALTER_CONFIGS)
        await setup.post("/quotas/set", body, login=ALICE)
        assert len(await describe_quotas(setup.cluster)) == 1
