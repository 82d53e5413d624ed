"""Users in the console: list, passwords and deletion."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.scram_users import describe_scram_users, set_scram_password
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import AclOperation
from kbroker.security.scram import ScramMechanism
from kbroker.web.console import users

from .consoles import console
from .secured_consoles import ALICE, secured_console

PASSWORD = "correct horse"


async def test_user_is_created_with_the_mechanisms_of_the_listener_and_can_log_in() -> None:
    async with secured_console("SCRAM-SHA-256") as setup:
        made = await setup.post("/users/set", {"user": "bob", "password": PASSWORD})
        assert made == {"user": "bob", "mechanisms": ["SCRAM-SHA-256"], "unusable": []}
        listed = await setup.get("/users")
        assert {"user": "bob", "iterations": {"SCRAM-SHA-256": 4096}} in listed["users"]
        assert listed["mechanisms"] == ["SCRAM-SHA-256"]
        assert listed["may_alter"] is True
        security = Security(None, Credentials("SCRAM-SHA-256", "bob", PASSWORD))
        async with open_cluster([setup.broker.nodes[0].endpoint], security=security) as cluster:
            assert (await cluster.metadata([])).cluster_id


async def test_mechanism_without_a_listener_is_reported_as_unusable() -> None:
    async with secured_console("SCRAM-SHA-256") as setup:
        body = {"user": "bob", "password": PASSWORD, "mechanisms": ["SCRAM-SHA-512"]}
        assert (await setup.post("/users/set", body))["unusable"] == ["SCRAM-SHA-512"]


BOTH = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.mark.parametrize(
    ("path", "function"), [("set", "set_scram_password"), ("delete", "remove_scram_password")]
)
async def test_change_that_fails_for_one_mechanism_names_those_that_were_changed(
    monkeypatch: pytest.MonkeyPatch, path: str, function: str
) -> None:
    async with secured_console() as setup:
        for each in ScramMechanism:
            await set_scram_password(setup.cluster, "bob", PASSWORD, each)
        change = getattr(users, function)

        async def fail_second(*args: Any) -> None:
            if ScramMechanism.SHA_512 in args:
                raise KafkaError(ErrorCode.NOT_CONTROLLER)
            await change(*args)

        monkeypatch.setattr(users, function, fail_second)
        body = {"user": "bob", "password": "another", "mechanisms": BOTH, "dry_run": False}
        status, message = await setup.refusal(f"/users/{path}", body)
        assert status == 502
        assert message.startswith("NOT_CONTROLLER")
        assert message.endswith("; changed: SCRAM-SHA-256, not changed: SCRAM-SHA-512; try again")


@pytest.mark.parametrize(
    ("path", "function"), [("set", "set_scram_password"), ("delete", "remove_scram_password")]
)
async def test_change_is_complete_although_the_viewer_disconnects(
    monkeypatch: pytest.MonkeyPatch, path: str, function: str
) -> None:
    """A change of one mechanism only would leave the previous password valid for the other."""
    async with secured_console() as setup:
        for each in ScramMechanism:
            await set_scram_password(setup.cluster, "bob", PASSWORD, each)
        change, changed = getattr(users, function), list[ScramMechanism]()
        begun, disconnected, complete = trio.Event(), trio.Event(), trio.Event()

        async def change_slowly(*args: Any) -> None:
            begun.set()
            await disconnected.wait()
            await trio.lowlevel.checkpoint()
            await change(*args)
            changed.extend(each for each in args if isinstance(each, ScramMechanism))
            if len(changed) == len(BOTH):
                complete.set()

        monkeypatch.setattr(users, function, change_slowly)
        body = {"user": "bob", "password": "another", "mechanisms": BOTH, "dry_run": False}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(setup.refusal, f"/users/{path}", body)
            await begun.wait()
            nursery.cancel_scope.cancel()
        await trio.sleep(0.1)
        disconnected.set()
        with trio.fail_after(5):
            await complete.wait()
        assert changed == [*ScramMechanism]


async def test_changes_that_take_too_long_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(users, "CHANGE_SECONDS", 0.05)
    monkeypatch.setattr(users, "set_scram_password", never)
    async with secured_console() as setup:
        body = {"user": "bob", "password": PASSWORD}
        assert await setup.refusal("/users/set", body) == (502, "no response within 0.05 s")


async def test_user_is_deleted_only_after_the_preview() -> None:
    async with secured_console() as setup:
        await set_scram_password(setup.cluster, "bob", PASSWORD)
        shown = await setup.post("/users/delete", {"user": "bob"})
        assert shown == {
            "dry_run": True,
            "user": "bob",
            "mechanisms": ["SCRAM-SHA-256"],
            "remaining": [],
            "is_viewer": False,
        }
        assert [each.name for each in await describe_scram_users(setup.cluster)] == ["bob"]
        await setup.post("/users/delete", {"user": "bob", "dry_run": False})
        assert await describe_scram_users(setup.cluster) == []
        status, message = await setup.refusal("/users/delete", {"user": "bob"})
        assert status == 404
        assert "user 'bob' does not exist" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"password": "x"}, "user is missing"),
        ({"user": "", "password": "x"}, "user is empty"),
        ({"user": "bob", "password": ""}, "password must have 1 to 1,024 characters"),
        ({"user": "bob", "password": "x" * 1025}, "password must have 1 to 1,024 characters"),
        ({"user": "bob", "password": "x", "iterations": 16385}, "iterations must be from 4096"),
        ({"user": "bob", "password": "x", "mechanisms": ["PLAIN"]}, "unknown SCRAM mechanism"),
        ({"user": "bob", "password": "x", "mechanisms": [1]}, "must be a list of strings"),
    ],
)
async def test_invalid_user_is_rejected(body: object, message: str) -> None:
    async with console() as setup:
        response = await setup.post("/users/set", body)
        assert response.status == 400
        assert message in response.json()["error"]


async def test_changes_of_users_need_alter_on_the_cluster() -> None:
    async with secured_console() as setup:
        await setup.allow(AclOperation.DESCRIBE)
        listed = await setup.get("/users", login=ALICE)
        assert listed["may_alter"] is False
        for path in ("/users/set", "/users/delete"):
            body = {"user": "bob", "password": PASSWORD, "dry_run": False}
            status, message = await setup.refusal(path, body, login=ALICE)
            assert (status, message) == (
                403,
                "User:alice may not ALTER cluster kafka-cluster; an ACL that permits it is missing",
            )
        assert await describe_scram_users(setup.cluster) == []


async def test_changes_need_the_token_and_are_absent_if_the_console_is_read_only() -> None:
    async with secured_console() as setup:
        body = {"user": "bob", "password": PASSWORD}
        assert (await setup.refusal("/users/set", body, token="wrong"))[0] == 403
        assert await describe_scram_users(setup.cluster) == []
    async with console(http_host="0.0.0.0") as open_setup:
        assert (await open_setup.get("/users"))["may_alter"] is False
        response = await open_setup.post("/users/set", body)
        assert response.status == 403
        assert "read-only" in response.json()["error"]


async def test_password_is_in_no_response_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secured_console() as setup:
        bodies: tuple[object, ...] = (
            {"user": "bob", "password": PASSWORD},
            {"user": "", "password": PASSWORD},
            {"user": "bob", "password": [PASSWORD]},
        )
        for body in bodies:
            response = await setup.ask("/users/set", body)
            assert PASSWORD not in response.text
        assert PASSWORD not in (await setup.ask("/users")).text
    assert PASSWORD not in caplog.text


async def test_activity_shows_principal_of_sasl_client() -> None:
    async with secured_console("PLAIN") as setup:
        security = Security(None, Credentials("PLAIN", "alice", "secret"))
        endpoint = setup.broker.nodes[0].endpoint
        async with open_cluster([endpoint], "shop", security=security) as cluster:
            assert (await cluster.metadata([])).cluster_id
            activity = await setup.get("/activity")
    found = {each["client_id"]: each["principal"] for each in activity["clients"]}
    assert found["shop"] == "User:alice"
