"""`kbroker registry`: subjects, versions and compatibility of a schema registry."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.profiles import write_profiles
from kbroker.client.schema_subjects import CheckedSchema, SchemaSubjects

from ..client.test_schema_registry import server
from ..commands import Cli, invoke
from ..schemas.client import record as avro_record
from .registries import Registered
from .secret_words import NOWHERE, SECRET, output_of_failing

FIRST = avro_record("Order", ("id", "int"))
SECOND = avro_record("Order", ("id", "int"), ("note", ["null", "string"], None))
REQUIRED = avro_record("Order", ("id", "int"), ("country", "string"))
INCOMPATIBLE = avro_record("Order", ("id", "string"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "order.avsc"


def write(file: Path, schema: dict[str, Any]) -> str:
    file.write_text(json.dumps(schema))
    return str(file)


async def run(registered: Registered, *args: str, status: int = 0, stdin: str = "") -> str:
    """Run `kbroker registry`, and return both of its outputs."""
    result = await registered.cli(
        "registry", *args, "--registry", registered.url, status=status, stdin=stdin
    )
    return result.output


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("http://alice:hunter%2F2@{}", {}),
        ("http://{}", {"basic.auth.user.info": "alice:hunter/2"}),
        (None, {"schema.registry.url": "http://{}", "basic.auth.user.info": "alice:hunter/2"}),
        (None, {"schema.registry.url": "http://alice:hunter%2F2@{}"}),
    ],
)
@pytest.mark.parametrize("from_profile", [False, True])
def test_user_is_sent_to_registry(
    url: str | None, settings: dict[str, str], from_profile: bool
) -> None:
    with server(200, b"[]") as (address, received):
        known = {name: text.format(address) for name, text in settings.items()}
        if from_profile:
            write_profiles("p", {"p": known})
            known = {}
        flags = [] if url is None else ["--registry", url.format(address)]
        flags += [word for name, text in known.items() for word in ("-X", f"{name}={text}")]
        invoke("registry", "list", *flags)
    assert received == [f"Basic {base64.b64encode(b'alice:hunter/2').decode()}"]


@pytest.mark.parametrize(
    "url",
    [
        f"http://alice:{SECRET}@127.0.0.1:1",
        f"http://alice:x/{SECRET}@127.0.0.1:1",
        f"http://alice:{SECRET}@[::1",
        f"alice:{SECRET}@127.0.0.1:1",
    ],
)
def test_errors_do_not_show_password_of_registry(url: str) -> None:
    assert SECRET not in output_of_failing("registry", "list", "--registry", url)
    assert SECRET not in output_of_failing("registry", "list", "-X", f"schema.registry.url={url}")
    assert SECRET not in output_of_failing(
        "topic", "consume", "t", "--registry", url, "-b", NOWHERE
    )
    schema = ("--to-topic", "u", "--to-schema", "s", "--to-registry", url, "-b", NOWHERE)
    assert SECRET not in output_of_failing("replay", "t", *schema)


def test_rejected_user_of_registry_is_not_shown() -> None:
    body = b'{"error_code": 401, "message": "Unauthorized"}'
    with server(401, body) as (address, _):
        url = f"http://alice:{SECRET}@{address}"
        output = invoke("registry", "list", "--registry", url, status=1).output
    assert output == (
        "kbroker: Unauthorized; set the user with -X basic.auth.user.info=NAME:PASSWORD\n"
    )


async def test_register_reports_new_and_known_versions(registered: Registered, file: Path) -> None:
    first = await run(registered, "register", "t-value", write(file, FIRST))
    again = await run(registered, "register", "t-value", str(file))
    assert first == "t-value:1 (ID 1, AVRO): registered\n"
    assert again == "t-value:1 (ID 1, AVRO): was registered before\n"


async def test_list_shows_versions_type_and_level(registered: Registered) -> None:
    await registered.registry.register("t-value", FIRST)
    await registered.registry.register("t-value", SECOND)
    await registered.registry.register(
        "p/q", 'syntax = "proto3"; message M {}', schemaType="PROTOBUF"
    )
    await run(registered, "level", "set", "full", "t-value")
    rows = json.loads(await run(registered, "list", "-o", "json"))
    assert rows == [
        {"subject": "p/q", "versions": [1], "latest_id": 3, "type": "PROTOBUF",
         "compatibility": "BACKWARD"},
        {"subject": "t-value", "versions": [1, 2], "latest_id": 2, "type": "AVRO",
         "compatibility": "FULL"},
    ]  # fmt: skip
    assert "t-value" in await run(registered, "list", "t-value")
    assert "no subject 'x'" in await run(registered, "list", "x", status=1)


async def test_show_prints_latest_or_given_version(registered: Registered) -> None:
    await registered.registry.register("t-value", FIRST)
    await registered.registry.register("t-value", SECOND)
    assert (await run(registered, "show", "t-value")).startswith("t-value:2 (ID 2, AVRO)\n\n{")
    assert json.loads(await run(registered, "show", "t-value:1", "--schema")) == FIRST
    document = json.loads(await run(registered, "show", "t-value:1", "-o", "json"))
    assert document["id"] == 1
    assert json.loads(document["schema"]) == FIRST
    assert "`kbroker registry list` shows" in await run(registered, "show", "x", status=1)


async def test_check_explains_incompatible_schema(registered: Registered, file: Path) -> None:
    await registered.registry.register("t-value", FIRST)
    assert "compatible with t-value" in await run(
        registered, "check", "t-value", write(file, SECOND)
    )
    output = await run(registered, "check", "t-value:1", write(file, INCOMPATIBLE), status=1)
    reason = (
        "  a reader of string cannot read int (at /fields/0/type): "
        "keep the type of the field, or add a new field"
    )
    assert output.splitlines() == ["incompatible with t-value:1 (BACKWARD):", reason]
    assert await registered.registry.get("/subjects/t-value/versions") == [1]
    rejected = await run(registered, "register", "t-value", str(file), status=1)
    assert rejected.splitlines() == [
        "kbroker: t-value: not registered",
        "  incompatible with t-value (BACKWARD), version 1:",
        f"  {reason}",
    ]


@pytest.mark.parametrize(
    ("level", "earlier", "later", "expected"),
    [
        ("BACKWARD", FIRST, REQUIRED, "new field country has no default: add one"),
        ("FORWARD", REQUIRED, FIRST, "removed field country has no default in the earlier version"),
        ("FULL", FIRST, REQUIRED, "field country is in only one of both versions"),
    ],
)
async def test_check_names_field_without_default(
    registered: Registered,
    file: Path,
    level: str,
    earlier: dict[str, Any],
    later: dict[str, Any],
    expected: str,
) -> None:
    await registered.registry.register("t-value", earlier)
    await run(registered, "level", "set", level, "t-value")
    output = await run(registered, "check", "t-value", write(file, later), status=1)
    assert f"  {expected}" in output
    assert "{" not in output


async def test_check_without_reasons_of_registry_says_so(
    registered: Registered, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registered.registry.register("t-value", FIRST)
    monkeypatch.setattr(SchemaSubjects, "check", lambda *_: CheckedSchema(False, []))
    output = await run(registered, "check", "t-value", write(file, SECOND), status=1)
    assert output == "incompatible with t-value (BACKWARD): the registry gives no reasons\n"


async def test_check_of_missing_subject_fails_with_suggestion(
    registered: Registered, file: Path
) -> None:
    await registered.registry.register("t-value", FIRST)
    output = await run(registered, "check", "t", write(file, FIRST), status=1)
    assert "subject 't' does not exist; did you mean 't-value'?" in output
    output = await run(registered, "check", "t-valu:1", str(file), status=1)
    assert "subject 't-valu' does not exist; did you mean 't-value'?" in output
    assert "'x' does not exist. `kbroker registry list`" in (
        await run(registered, "check", "x", str(file), status=1)
    )


async def test_references_are_registered(registered: Registered, tmp_path: Path) -> None:
    line, order = tmp_path / "line.proto", tmp_path / "order.proto"
    line.write_text('syntax = "proto3"; message Line { int64 id = 1; }')
    order.write_text(
        'syntax = "proto3"; import "line.proto"; message Order { repeated Line lines = 1; }'
    )
    await run(registered, "register", "line", str(line))
    assert "import line.proto" in await run(registered, "register", "order", str(order), status=1)
    await run(registered, "register", "order", str(order), "--reference", "line.proto=line:1")
    assert "reference line.proto: line:1" in await run(registered, "show", "order")


async def test_compare_prints_differences_of_versions(registered: Registered) -> None:
    await registered.registry.register("t-value", FIRST)
    assert "has only version 1" in await run(registered, "compare", "t-value")
    await registered.registry.register("t-value", SECOND)
    lines = (await run(registered, "compare", "t-value")).splitlines()
    assert lines[:2] == ["--- t-value:1 (ID 1, AVRO)", "+++ t-value:2 (ID 2, AVRO)"]
    assert any(line.startswith("+") and "note" in line for line in lines[2:])
    assert "do not differ" in await run(registered, "compare", "t-value", "2", "2")


async def test_level_is_set_and_unset(registered: Registered) -> None:
    assert await run(registered, "level", "get") == "BACKWARD\n"
    await run(registered, "level", "set", "NONE")
    await run(registered, "level", "set", "FULL", "s")
    assert await run(registered, "level", "get", "s") == "FULL\n"
    assert "add --yes" in await run(registered, "level", "unset", "s", status=2)
    output = await run(registered, "level", "unset", "s", "--yes")
    assert output == "s: FULL, will be NONE (global level)\ns: NONE (global level)\n"


async def test_delete_needs_confirmation(registered: Registered) -> None:
    await registered.registry.register("t-value", FIRST)
    await registered.registry.register("t-value", SECOND)
    for flag, status in (("-o", 2), ("--dry-run", 0)):
        more = ["text"] if flag == "-o" else []
        output = await run(registered, "delete", "t-value:1", flag, *more, status=status)
        assert "t-value:1 (ID 1, AVRO)" in output
    assert await registered.registry.get("/subjects/t-value/versions") == [1, 2]
    output = await run(registered, "delete", "t-value:1", "--yes")
    assert output.endswith("t-value:1 (ID 1, AVRO): deleted\n")
    assert await registered.registry.get("/subjects/t-value/versions") == [2]
    assert (await run(registered, "show", "t-value:1", status=1)).startswith("kbroker: ")


async def test_permanent_delete_includes_soft_deleted_versions(registered: Registered) -> None:
    await registered.registry.register("t-value", FIRST)
    await run(registered, "delete", "t-value", "-y")
    assert json.loads(await run(registered, "list", "-o", "json")) == []
    assert "t-value" in await run(registered, "list", "--deleted")
    await run(registered, "delete", "t-value", "--permanent", "-y")
    assert "t-value" not in await run(registered, "list", "--deleted")


async def test_invalid_schema_file_is_rejected(registered: Registered, tmp_path: Path) -> None:
    file = tmp_path / "schema.txt"
    file.write_bytes(b"\xff")
    assert "use --type" in await run(registered, "register", "s", str(file), status=2)
    assert "not UTF-8" in await run(
        registered, "register", "s", str(file), "--type", "avro", status=2
    )
    file.write_text("{}")
    output = await run(registered, "register", "s", "-", "--type", "avro", status=1, stdin="{")
    assert "Invalid schema" in output
    bad = ("register", "s", str(file), "--type", "json", "--reference", "x")
    assert "expected NAME=SUBJECT:VERSION" in await run(registered, *bad, status=2)


async def test_registry_that_is_not_known_is_asked_for(cli: Cli) -> None:
    output = (await cli("registry", "list", status=2)).output
    assert "use --registry URL" in " ".join(output.split())
    unreachable = await cli("registry", "list", "--registry", "http://127.0.0.1:1", status=1)
    assert "no valid response from the schema registry http://127.0.0.1:1" in unreachable.output
