"""ACLs in the console: list, changes with a preview, and explanations."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.acls import add_acls, describe_acls
from kbroker.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from .consoles import console
from .secured_consoles import ALICE, SecuredConsole, secured_console

READ = AclOperation.READ
ALL = AclFilter(
    AclResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, AclPermission.ANY
)
ROW: dict[str, Any] = {
    "principal": "User:alice",
    "permission": "allow",
    "operation": "read",
    "resource_type": "topic",
    "resource": "orders",
    "pattern": "literal",
    "host": "*",
}


def _read_acl(name: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    resource = Pattern(AclResourceType.TOPIC, pattern, name)
    return Acl(resource, "User:alice", "*", READ, AclPermission.ALLOW)


async def _rows(setup: SecuredConsole, query: str = "") -> list[dict[str, str]]:
    return list((await setup.get(f"/acls?{query}"))["acls"])


async def test_acls_are_listed_by_filters() -> None:
    async with secured_console() as setup:
        acls = [_read_acl("orders"), _read_acl("or", PatternType.PREFIXED), _read_acl("x")]
        await add_acls(setup.cluster, acls)
        listed = await setup.get("/acls")
        assert listed["enforced"] is True
        assert ROW in listed["acls"]
        assert len(listed["acls"]) == 3
        assert "read" in listed["operations"]["topic"]
        assert listed["roles"]["consumer"] == {"topic": ["read", "describe"], "group": ["read"]}
        names = [each["resource"] for each in await _rows(setup, "resource=orders")]
        assert sorted(names) == ["or", "orders"]
        assert await _rows(setup, "resource=orders&pattern=literal") == [ROW]
        assert len(await _rows(setup, "principal=alice")) == 3
        assert await _rows(setup, "principal=bob") == []
        assert await _rows(setup, "operation=write") == []


async def test_rejected_acl_does_not_hide_those_that_were_added() -> None:
    async with secured_console() as setup:
        await add_acls(setup.cluster, [_read_acl("existing")])
        invalid, existing = ROW | {"host": "10.0.0.0/99"}, ROW | {"resource": "existing"}
        body = {"acls": [existing, ROW, invalid], "dry_run": False}
        response = await setup.ask("/acls/add", body)
        assert response.status == 400
        assert response.json()["error"].startswith("INVALID_REQUEST: Invalid CIDR notation")
        assert response.json()["error"].count(" of 3 ACLs were ") == 1
        assert response.json()["added"] == [ROW]
        assert len(await describe_acls(setup.cluster, [ALL])) == 2
        response = await setup.ask("/acls/add", {"acls": [existing, invalid], "dry_run": False})
        assert (response.status, "added" in response.json()) == (400, False)


async def test_acl_is_added_only_after_the_preview() -> None:
    async with secured_console() as setup:
        shown = await setup.post("/acls/add", {"acls": [ROW]})
        assert shown == {"dry_run": True, "acls": [ROW | {"exists": False}]}
        assert await describe_acls(setup.cluster, [ALL]) == []
        await setup.post("/acls/add", {"acls": [ROW], "dry_run": False})
        assert await describe_acls(setup.cluster, [ALL]) == [_read_acl("orders")]
        assert (await setup.post("/acls/add", {"acls": [ROW]}))["acls"][0]["exists"] is True


async def test_cluster_acl_needs_no_resource_name() -> None:
    async with secured_console() as setup:
        row = {"principal": "bob", "operation": "describe", "resource_type": "cluster"}
        (shown,) = (await setup.post("/acls/add", {"acls": [row]}))["acls"]
        assert (shown["resource"], shown["principal"]) == ("kafka-cluster", "User:bob")


async def test_acls_are_removed_only_after_a_preview_of_the_literal_matches() -> None:
    async with secured_console() as setup:
        prefixed = _read_acl("or", PatternType.PREFIXED)
        await add_acls(setup.cluster, [_read_acl("orders"), prefixed])
        body: dict[str, object] = {"filters": [{"resource_type": "topic", "resource": "orders"}]}
        shown = await setup.post("/acls/remove", body)
        assert shown == {"dry_run": True, "matching": 1, "acls": [ROW]}
        assert len(await describe_acls(setup.cluster, [ALL])) == 2
        removed = await setup.post("/acls/remove", {"filters": [ROW], "dry_run": False})
        assert removed["acls"] == [ROW]
        assert await describe_acls(setup.cluster, [ALL]) == [prefixed]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/acls/add", {}, "acls must be a list of JSON objects"),
        ("/acls/add", {"acls": [ROW] * 101}, "acls has 101 elements (maximum 100)"),
        ("/acls/add", {"acls": [ROW | {"principal": ""}]}, "principal is empty"),
        ("/acls/add", {"acls": [ROW | {"resource": ""}]}, "resource is empty; name a topic"),
        ("/acls/add", {"acls": [ROW | {"resource_type": ""}]}, "resource_type is missing"),
        ("/acls/add", {"acls": [ROW | {"resource_type": "disk"}]}, "unknown value 'disk'"),
        ("/acls/add", {"acls": [ROW | {"operation": "create-tokens"}]}, "is invalid for a topic"),
        ("/acls/add", {"acls": [ROW | {"operation": 7}]}, "operation must be of type str"),
        ("/acls/remove", {"filters": [{}]}, "an empty filter matches every ACL"),
        ("/acls/remove", {"filters": [{"pattern": "regex"}]}, "unknown value 'regex'"),
    ],
)
async def test_invalid_acl_is_rejected(path: str, body: object, message: str) -> None:
    async with secured_console() as setup:
        status, found = await setup.refusal(path, body)
        assert status == 400
        assert message in found


async def test_decision_is_explained_with_the_changes_that_would_allow_it() -> None:
    async with secured_console() as setup:
        query = "principal=alice&operation=read&resource_type=topic&resource=orders"
        denied = await setup.get(f"/acls/explain?{query}")
        assert denied["allowed"] is False
        assert denied["changes"] == [{"verb": "add", "acl": ROW}]
        await add_acls(setup.cluster, [_read_acl("orders")])
        allowed = await setup.get(f"/acls/explain?{query}")
        assert (allowed["allowed"], allowed["acl"]) == (True, ROW)
        for wrong, message in (("principal=*", "name one user"), ("operation=all", "'all' is not")):
            status, found = await setup.refusal(f"/acls/explain?{query}&{wrong}")
            assert status == 400
            assert message in found


async def test_changes_of_acls_need_alter_on_the_cluster() -> None:
    async with secured_console() as setup:
        await setup.allow(AclOperation.DESCRIBE)
        assert (await setup.get("/acls", login=ALICE))["may_alter"] is False
        for path, name in (("/acls/add", "acls"), ("/acls/remove", "filters")):
            body = {name: [ROW], "dry_run": False}
            assert (await setup.refusal(path, body, login=ALICE))[0] == 403
            assert (await setup.refusal(path, body, token="wrong"))[0] == 403
        assert len(await describe_acls(setup.cluster, [ALL])) == 1


async def test_broker_without_acls_reports_that_they_are_not_enforced() -> None:
    async with console() as setup:
        listed = await setup.get("/acls")
        assert (listed["enforced"], listed["acls"], listed["may_alter"]) == (False, [], False)
