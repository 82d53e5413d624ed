"""Schemas in the console: subjects, versions, changes and the permissions of the registry."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import quote

import pytest

from kbroker.security.acls import AclOperation, AclResourceType
from kbroker.web.console import registry

from ...schemas.client import record as avro_record
from .consoles import console
from .secured_consoles import ALICE, secured_console
from .test_schemas import Shop, shop

FIRST = avro_record("Order", ("country", "string"))
SECOND = avro_record("Order", ("country", "string"), ("note", "string", ""))
INCOMPATIBLE = avro_record("Order", ("country", "string"), ("size", "int"))
TOPIC = AclResourceType.TOPIC


async def _post(setup: Shop, path: str, **body: Any) -> Any:
    response = await setup.console.post(f"/schemas/{path}", body)
    assert response.status == 200, response.text
    return response.json()


async def _refusal(setup: Shop, path: str, **body: Any) -> tuple[int, str]:
    response = await setup.console.post(f"/schemas/{path}", body)
    return response.status, response.json()["error"]


async def test_subjects_are_listed_with_their_newest_versions() -> None:
    async with shop() as setup:
        assert (await setup.console.get("/schemas"))["subjects"] == []
        await setup.registry.register("orders-value", FIRST)
        newest = await setup.registry.register("orders-value", SECOND)
        await setup.registry.register("other", '"string"')
        listed = await setup.console.get("/schemas", search="ORD")
        assert listed["subjects"] == [
            {
                "subject": "orders-value",
                "is_deleted": False,
                "versions": 2,
                "version": 2,
                "id": newest,
                "type": "AVRO",
                "level": "BACKWARD",
                "own_level": None,
            }
        ]
        assert (listed["matching"], listed["level"]) == (1, "BACKWARD")
        assert listed["may"] == {"register": True, "delete": True, "alter_level": True}
        page = await setup.console.get("/schemas", limit=1, offset=1)
        assert [each["subject"] for each in page["subjects"]] == ["other"]


async def test_version_is_shown_with_its_references_and_compared() -> None:
    async with shop() as setup:
        await setup.registry.register("country", avro_record("Country", ("code", "string")))
        reference = {"name": "Country", "subject": "country", "version": 1}
        order = avro_record("Order", ("country", "Country"))
        text = json.dumps(order)
        made = await _post(setup, "orders-value/register", schema=text, references=[reference])
        assert made == {"subject": "orders-value", "id": 2, "version": 1}
        found = await setup.console.get("/schemas/orders-value/versions/1")
        assert json.loads(found["schema"]) == order
        assert (found["type"], found["references"]) == ("AVRO", [reference])
        assert found["text"].startswith("{\n  ")
        referred = await setup.console.get("/schemas/country/versions/1")
        assert referred["referenced_by"] == [2]

        await setup.registry.register("x", FIRST)
        await setup.registry.register("x", SECOND)
        lines = (await setup.console.get("/schemas/x/compare", from_=1, to=2))["lines"]
        changed = [each["text"] for each in lines if each["change"] == "added"]
        assert '"name": "note",' in "".join(changed)
        listed = await setup.console.get("/schemas/x/versions")
        assert [each["version"] for each in listed["versions"]] == [2, 1]


async def test_large_schema_is_indented_outside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callers = []
    indented = registry._indented

    def record_thread(text: str) -> list[str]:
        callers.append(threading.current_thread())
        return indented(text)

    monkeypatch.setattr(registry, "_indented", record_thread)
    async with shop() as setup:
        await setup.registry.register("x", FIRST | {"doc": "d" * registry.IN_PLACE_CHARACTERS})
        found = await setup.console.get("/schemas/x/versions/1")
        assert found["text"].startswith("{\n  ")
    assert threading.main_thread() not in callers


async def test_compatibility_is_checked_with_reasons() -> None:
    async with shop() as setup:
        await setup.registry.register("x", FIRST)
        good = await _post(setup, "x/check", schema=json.dumps(SECOND))
        assert good == {
            "is_compatible": True,
            "reasons": [],
            "version": None,
            "level": "BACKWARD",
        }
        bad = await _post(setup, "x/check", schema=json.dumps(INCOMPATIBLE))
        assert bad["is_compatible"] is False
        assert bad["version"] == 1
        assert bad["reasons"] == ["new field size has no default: add one"]
        malformed = await _post(setup, "x/check", schema="{")
        assert (malformed["is_compatible"], malformed["version"]) == (False, None)
        status, message = await _refusal(setup, "x/register", schema=json.dumps(INCOMPATIBLE))
        assert status == 409
        assert "incompatible" in message


async def test_levels_are_set_and_removed() -> None:
    async with shop() as setup:
        await setup.registry.register("x", FIRST)
        await _post(setup, "x/level", level="NONE")
        assert (await setup.console.get("/schemas/x/versions"))["own_level"] == "NONE"
        await _post(setup, "x/level", level=None)
        found = await setup.console.get("/schemas/x/versions")
        assert (found["level"], found["own_level"]) == ("BACKWARD", None)
        response = await setup.console.post("/schema-level", {"level": "FULL"})
        assert response.status == 200
        assert (await setup.console.get("/schemas"))["level"] == "FULL"
        status, message = await _refusal(setup, "x/level", level="SOME")
        assert status == 400
        assert "unknown value 'SOME' (valid: NONE, BACKWARD" in message


async def test_versions_are_deleted_after_a_preview_and_then_for_good() -> None:
    async with shop() as setup:
        await setup.registry.register("x", FIRST)
        await setup.registry.register("x", SECOND)
        shown = await _post(setup, "x/delete", version=1)
        assert shown == {
            "dry_run": True,
            "subject": "x",
            "versions": [1],
            "permanent": False,
            "referenced_by": [],
        }
        await _post(setup, "x/delete", version=1, dry_run=False)
        rows = (await setup.console.get("/schemas/x/versions"))["versions"]
        assert [(each["version"], each["is_deleted"]) for each in rows] == [(2, False), (1, True)]
        await _post(setup, "x/delete", version=1, permanent=True, dry_run=False)
        status, message = await _refusal(setup, "x/delete", version=2, permanent=True)
        assert status == 404
        assert "has no such version" in message or "not found" in message
        await _post(setup, "x/delete", dry_run=False)
        assert (await setup.console.get("/schemas"))["subjects"] == []
        (row,) = (await setup.console.get("/schemas", deleted=1))["subjects"]
        assert row["is_deleted"] is True
        await _post(setup, "x/delete", permanent=True, dry_run=False)
        assert (await setup.console.get("/schemas", deleted=1))["subjects"] == []


async def test_deletion_returns_the_versions_that_the_registry_has_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shop() as setup:
        await setup.registry.register("x", FIRST)
        call = registry.Caller.call

        async def register_first(caller: registry.Caller, method: str, *args: Any) -> Any:
            if method == "DELETE":
                await setup.registry.register("x", SECOND)
            return await call(caller, method, *args)

        monkeypatch.setattr(registry.Caller, "call", register_first)
        assert (await _post(setup, "x/delete", dry_run=False))["versions"] == [1, 2]
        monkeypatch.undo()
        deleted = await _post(setup, "x/delete", version=2, permanent=True, dry_run=False)
        assert deleted["versions"] == [2]


async def test_preview_of_deletion_names_the_referencing_schemas() -> None:
    async with shop() as setup:
        await setup.registry.register("country", avro_record("Country", ("code", "string")))
        reference = {"name": "Country", "subject": "country", "version": 1}
        order = avro_record("Order", ("country", "Country"))
        schema_id = await setup.registry.register("x", order, references=[reference])
        assert (await _post(setup, "country/delete"))["referenced_by"] == [schema_id]
        status, message = await _refusal(setup, "country/delete", dry_run=False)
        assert status == 422
        assert "reference" in message


@pytest.mark.parametrize("name", ["a/b", "%2F", "x y", "ü?#&", "a/versions/1"])
async def test_subject_may_have_any_name(name: str) -> None:
    async with shop() as setup:
        path = quote(name, safe="")
        await _post(setup, f"{path}/register", schema='"string"')
        assert await setup.registry.get("/subjects") == [name]
        assert (await setup.console.get(f"/schemas/{path}/versions"))["subject"] == name
        assert (await setup.console.get(f"/schemas/{path}/versions/1"))["schema"] == '"string"'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "schema is missing"),
        ({"schema": " "}, "schema is empty"),
        ({"schema": "{"}, "Invalid schema"),
        ({"schema": '"string"', "type": "XML"}, "XML"),
        ({"schema": '"string"', "references": ["x"]}, "references must be a list of JSON objects"),
    ],
)
async def test_invalid_schema_is_rejected(body: Any, message: str) -> None:
    async with shop() as setup:
        status, found = await _refusal(setup, "x/register", **body)
        assert status in (400, 422)
        assert message in found


async def test_console_without_registry_names_the_option_that_enables_it() -> None:
    async with console() as setup:
        listed = await setup.get("/schemas")
        assert (listed["enabled"], listed["subjects"]) == (False, [])
        assert "--registry-port" in listed["reason"]
        assert (await setup.ask("/schemas/x/versions")).status == 404


async def test_schemas_need_the_permissions_of_the_registry() -> None:
    async with secured_console(registry_port="0") as setup:
        schema = {"schema": '"string"'}
        await setup.post("/schemas/orders-value/register", schema)
        for path in ("", "/orders-value/versions", "/orders-value/versions/1"):
            status, message = await setup.refusal(f"/schemas{path}", login=ALICE)
            assert (status, message) == (
                403,
                "User:alice may not READ topic _schemas; an ACL that permits it is missing",
            )
        await setup.allow(AclOperation.READ, kind=TOPIC, name="_schemas")
        listed = await setup.get("/schemas", login=ALICE)
        assert listed["may"] == {"register": False, "delete": False, "alter_level": False}
        changes = [
            ("register", {"schema": '"int"'}),
            ("level", {"level": "NONE"}),
            ("delete", {"dry_run": False}),
        ]
        for name, body in changes:
            path = f"/schemas/orders-value/{name}"
            status, message = await setup.refusal(path, body, login=ALICE)
            assert status == 403
            assert message.endswith("topic orders; an ACL that permits it is missing")
            assert (await setup.refusal(path, body, token="wrong"))[0] == 403
        assert (await setup.refusal("/schema-level", {"level": "NONE"}, login=ALICE))[0] == 403
        needed = (AclOperation.WRITE, AclOperation.ALTER_CONFIGS, AclOperation.DELETE)
        await setup.allow(*needed, kind=TOPIC, name="orders")
        may = (await setup.get("/schemas/orders-value/versions", login=ALICE))["may"]
        assert may == {"register": True, "delete": True, "alter_level": True}
        await setup.post("/schemas/orders-value/level", {"level": "NONE"}, login=ALICE)
        for name, body in changes:
            await setup.post(f"/schemas/orders-value/{name}", body, login=ALICE)
