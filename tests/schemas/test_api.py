"""Responses of the registry's API over a real broker and a real socket."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import trio
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kbroker.config import BrokerConfig
from kbroker.schemas.core.records import Entry, schema_key
from kbroker.schemas.service import RegistryService

from ..loop_latency import longest_step
from ..web.client import broker_with, open_http_client
from .client import RegistryClient, record, registry

PLAIN = record("R", ("a", "int"))
WIDER = record("R", ("a", "int"), ("b", "string", ""))
BROKEN = record("R", ("a", "int"), ("c", "string"))


async def test_schema_has_one_id_in_all_subjects() -> None:
    async with registry() as (_, [client]):
        assert await client.register("first", PLAIN) == 1
        assert await client.register("second", PLAIN) == 1
        assert await client.register("second", WIDER) == 2
        assert await client.register("first", PLAIN) == 1
        assert await client.get("/schemas/ids/1/subjects") == ["first", "second"]
        assert await client.get("/schemas/ids/2/versions") == [{"subject": "second", "version": 2}]
        schema = await client.get("/schemas/ids/2")
        assert schema["schema"] == (await client.get("/subjects/second/versions/latest"))["schema"]
        assert await client.get(f"/schemas/guids/{schema['guid']}/ids") == [
            {"context": ".", "id": 2}
        ]


async def test_white_space_does_not_change_schema_id() -> None:
    async with registry() as (_, [client]):
        assert await client.register("s", '{ "type" : "string" }') == 1
        assert await client.register("s", '"string"') == 1
        found = await client.ask("POST", "/subjects/s", {"schema": ' "string" '})
        assert found.body["version"] == 1
        assert await client.refusal("POST", "/subjects/s", {"schema": '"int"'}) == 40403


async def test_incompatible_schema_is_rejected_with_reason() -> None:
    async with registry() as (_, [client]):
        await client.register("s", PLAIN)
        response = await client.try_to_register("s", BROKEN)
        assert (response.status, response.body["error_code"]) == (409, 409)
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in response.body["message"]
        assert "no field c" in response.body["message"]
        assert "oldSchemaVersion: 1" in response.body["message"]
        path = "/compatibility/subjects/s/versions/latest"
        text = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
        body = (await client.ask("POST", f"{path}?verbose=true", {"schema": text})).body
        assert not body["is_compatible"]
        assert "TYPE_MISMATCH" in body["messages"][0]
        body = (await client.ask("POST", path, {"schema": '"broken'})).body
        assert body["error_code"] == 42201


async def test_soft_deleted_versions_are_visible_until_permanent_deletion() -> None:
    async with registry() as (_, [client]):
        await client.register("s", PLAIN)
        await client.register("s", WIDER)
        assert await client.refusal("DELETE", "/subjects/s?permanent=true") == 40405
        assert await client.refusal("DELETE", "/subjects/s/versions/1?permanent=true") == 40407
        assert await client.delete("/subjects/s/versions/1") == 1
        assert await client.refusal("DELETE", "/subjects/s/versions/1") == 40406
        assert await client.refusal("GET", "/subjects/s/versions/1") == 40402
        assert (await client.get("/subjects/s/versions/1?deleted=true"))["id"] == 1
        assert await client.get("/subjects/s/versions") == [2]
        assert await client.delete("/subjects/s") == [2]
        assert await client.refusal("DELETE", "/subjects/s") == 40404
        assert await client.get("/subjects") == []
        assert await client.get("/subjects?deleted=true") == ["s"]
        # records with this ID may still exist
        assert await client.get("/schemas/ids/1")
        assert await client.delete("/subjects/s?permanent=true") == [1, 2]
        assert await client.refusal("GET", "/schemas/ids/1") == 40403
        assert await client.register("s", WIDER) == 3


async def test_references_are_resolved_and_protect_referenced_versions() -> None:
    async with registry() as (_, [client]):
        await client.register("base", record("Base", ("x", "int")))
        references = [{"name": "Base", "subject": "base", "version": 1}]
        outer = record("Outer", ("b", "Base"))
        assert (await client.try_to_register("outer", outer)).body["error_code"] == 42201
        missing = [{**references[0], "version": 9}]
        response = await client.try_to_register("outer", outer, references=missing)
        assert response.body["error_code"] == 42201
        assert await client.register("outer", outer, references=references) == 2
        assert await client.get("/subjects/base/versions/1/referencedby") == [2]
        assert await client.refusal("DELETE", "/subjects/base") == 42206
        assert await client.refusal("DELETE", "/subjects/base/versions/1") == 42206
        schema = await client.get("/schemas/ids/2")
        assert schema["references"] == references
        await client.delete("/subjects/outer")
        await client.delete("/subjects/base")


async def test_missing_objects_have_confluents_error_codes() -> None:
    async with registry() as (_, [client]):
        assert await client.refusal("GET", "/subjects/s/versions") == 40401
        assert await client.refusal("GET", "/subjects/s/versions/latest") == 40401
        assert await client.refusal("DELETE", "/subjects/s") == 40401
        assert await client.refusal("GET", "/schemas/ids/1") == 40403
        assert await client.refusal("GET", "/schemas/guids/x") == 40403
        await client.register("s", PLAIN)
        assert await client.refusal("GET", "/subjects/s/versions/2") == 40402
        assert await client.refusal("GET", "/subjects/s/versions/0") == 42202
        assert await client.refusal("POST", "/subjects/s/versions", {"schema": 1}) == 42201
        assert await client.refusal("POST", "/subjects/s/versions", []) == 400
        assert await client.refusal("GET", "/nothing") == 404


async def test_topic_is_not_created_before_first_registration() -> None:
    async with registry() as (broker, [client]):
        assert await client.get("/subjects") == []
        assert await client.refusal("GET", "/schemas/ids/1") == 40403
        assert "_schemas" not in broker.node.cluster.topics


async def test_ids_survive_restart_and_are_unique(tmp_path: Path) -> None:
    async with registry(tmp_path) as (_, [client]):
        await client.register("s", PLAIN)
        await client.register("gone", '"long"')
        await client.delete("/subjects/gone")
        await client.delete("/subjects/gone?permanent=true")
        await client.put("/config/s", {"compatibility": "FULL"})
        before = await client.get("/schemas?deleted=true")
    async with registry(tmp_path) as (_, [client]):
        assert await client.get("/schemas?deleted=true") == before
        assert await client.get("/config/s") == {"compatibilityLevel": "FULL"}
        assert await client.register("s", WIDER) == 3


async def _all_registered(clients: list[RegistryClient], count: int) -> dict[str, int]:
    """Register schemas concurrently at all nodes. Return the schema IDs by subject."""
    found: dict[str, int] = {}

    async def register_schema(index: int) -> None:
        client = clients[index % len(clients)]
        schema = record(f"R{index}", ("a", "int"))
        found[f"s{index}"] = await client.register(f"s{index}", schema)

    async with trio.open_nursery() as nursery:
        for index in range(count):
            nursery.start_soon(register_schema, index)
    return found


@pytest.mark.slow
async def test_concurrent_writes_of_several_nodes_agree() -> None:
    async with registry(nodes=3) as (_, clients):
        found = await _all_registered(clients, 12)
        assert sorted(found.values()) == [*range(1, 13)]
        schemas = [await each.get(f"/schemas/ids/{max(found.values())}") for each in clients]
        assert schemas[0] == schemas[1] == schemas[2]
        for subject, schema_id in found.items():
            for each in clients:
                latest = await each.get(f"/subjects/{subject}/versions/latest")
                assert latest["id"] == schema_id


async def test_writes_continue_after_leader_crash() -> None:
    async with registry(nodes=3) as (broker, clients):
        await clients[0].register("s", PLAIN)
        leader = broker.node.cluster.topics["_schemas"].partitions[0].leader
        await broker.local_node(leader).crash()
        survivors = [
            each for each, local in zip(clients, broker.nodes, strict=True) if local.id != leader
        ]
        assert await survivors[0].register("s", WIDER) == 2
        assert await survivors[1].get("/subjects/s/versions") == [1, 2]
        await broker.local_node(leader).start()


LINE = 'syntax = "proto3"; package p; message Line { int64 id = 1; }'
ORDER = 'syntax = "proto3"; package p; import "l.proto"; message Order { repeated Line lines = 1; }'


async def test_protobuf_files_are_returned_as_descriptors() -> None:
    async with registry() as (_, [client]):
        await client.register("l", LINE, schemaType="PROTOBUF")
        references = [{"name": "l.proto", "subject": "l", "version": 1}]
        order = {"schema": ORDER, "schemaType": "PROTOBUF", "references": references}
        await client.register("o", ORDER, schemaType="PROTOBUF", references=references)
        plain = await client.get("/subjects/o/versions/1")
        schema = await client.get("/subjects/o/versions/1?format=serialized")
        assert schema | {"schema": plain["schema"]} == plain
        file = FileDescriptorProto.FromString(base64.b64decode(schema["schema"]))
        (message,) = file.message_type
        assert (message.name, message.field[0].type_name) == ("Order", ".p.Line")
        found = await client.ask("POST", "/subjects/o?format=serialized", order)
        assert found.body["schema"] == schema["schema"]
        for path in (f"/schemas/ids/{plain['id']}", f"/schemas/guids/{plain['guid']}"):
            assert (await client.get(f"{path}?format=serialized"))["schema"] == schema["schema"]
        async with open_http_client(client.endpoint) as http:
            for path in (f"/schemas/ids/{plain['id']}/schema", "/subjects/o/versions/1/schema"):
                assert (await http.ask(f"{path}?format=serialized")).text == schema["schema"]


@pytest.mark.parametrize(
    ("level", "expected"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)]
)
async def test_compatibility_check_compares_with_the_versions_of_the_level(
    level: str, expected: bool
) -> None:
    async with registry() as (_, [client]):
        await client.register("s", PLAIN)
        await client.register("s", WIDER)
        await client.put("/config/s", {"compatibility": level})
        schema = record("R", ("a", "int"), ("b", "string"))
        response = await client.ask(
            "POST", "/compatibility/subjects/s/versions", {"schema": json.dumps(schema)}
        )
        assert response.body == {"is_compatible": expected}
        registered = await client.try_to_register("s", schema)
        assert registered.status == (200 if expected else 409)


async def test_non_protobuf_schemas_have_no_descriptor() -> None:
    async with registry() as (_, [client]):
        await client.register("s", '"string"')
        assert (await client.get("/schemas/ids/1?format=serialized"))["schema"] == '"string"'
        await client.register("p", 'edition = "2023"; message M {}', schemaType="PROTOBUF")
        assert await client.refusal("GET", "/schemas/ids/2?format=serialized") == 42201


async def test_error_codes_equal_confluents_registry() -> None:
    async with registry() as (_, [client]):
        unknown = "/compatibility/subjects/s/versions"
        response = await client.ask("POST", f"{unknown}/latest", {"schema": '"int"'})
        assert response.body == {"is_compatible": True}
        assert await client.refusal("POST", f"{unknown}/1", {"schema": '"int"'}) == 40402
        assert await client.refusal("POST", "/subjects/s", {"schema": '"in'}) == 42201
        assert await client.refusal("POST", "/subjects/s", {"schema": '"int"'}) == 40401
        await client.register("s", PLAIN)
        response = await client.ask("POST", f"{unknown}/1?verbose=true", {"schema": '"in'})
        assert response.body["is_compatible"] is False
        assert "Invalid schema" in response.body["messages"][0]
        assert (await client.try_to_register("s", WIDER, version=7)).body["error_code"] == 42201
        large = '"' + "x" * 1_040_000 + '"'
        assert (await client.try_to_register("s", large)).body["error_code"] in (42201, 42209)
        for each in ("config", "mode"):
            assert await client.refusal("DELETE", f"/{each}/s") == 40401
        assert await client.refusal("PUT", "/config/__GLOBAL", {"compatibility": "NONE"}) == 42208
        assert await client.refusal("GET", "/schemas/ids/x") == 404
        assert await client.refusal("GET", "/schemas/ids/1/versions?subject=t") == 40403
        await client.put("/config/s", {"compatibility": "FULL"})
        await client.delete("/subjects/s")
        assert await client.get("/config/s") == {"compatibilityLevel": "FULL"}
        assert await client.refusal("GET", "/subjects/s/versions/latest?deleted=true") == 40402
        assert await client.refusal("DELETE", "/subjects/s/versions/latest?permanent=true") == 40402
        await client.delete("/subjects/s/versions/1?permanent=true")
        assert await client.refusal("GET", "/config/s") == 40408


async def test_soft_deleted_schemas_protect_referenced_versions() -> None:
    async with registry() as (_, [client]):
        await client.register("base", record("Base", ("x", "int")))
        references = [{"name": "Base", "subject": "base", "version": 1}]
        await client.register("outer", record("Outer", ("b", "Base")), references=references)
        await client.delete("/subjects/outer")
        path = "/subjects/base/versions/1/referencedby"
        assert await client.get(path) == []
        assert await client.get(f"{path}?deleted=true") == [2]
        await client.delete("/subjects/base")
        assert await client.refusal("DELETE", "/subjects/base?permanent=true") == 42206
        await client.delete("/subjects/outer?permanent=true")
        assert await client.delete("/subjects/base?permanent=true") == [1]


async def test_protobuf_file_without_message_is_accepted() -> None:
    async with registry() as (_, [client]):
        await client.register("l", LINE, schemaType="PROTOBUF")
        references = [{"name": "l.proto", "subject": "l", "version": 1}]
        texts = (
            'syntax = "proto3"; import public "l.proto";',
            'syntax = "proto2"; package p; import "l.proto"; extend Line { optional int32 x = 9; }',
            'syntax = "proto3"; import "l.proto"; service S { rpc Get (p.Line) returns (p.Line); }',
        )
        for number, text in enumerate(texts):
            subject = f"s{number}"
            await client.register(subject, text, schemaType="PROTOBUF", references=references)
            path = f"/subjects/{subject}/versions/1?format=serialized"
            file = FileDescriptorProto.FromString(
                base64.b64decode((await client.get(path))["schema"])
            )
            assert [*file.dependency] == ["l.proto"]
        response = await client.try_to_register("s", " // nothing", schemaType="PROTOBUF")
        assert response.body["error_code"] == 42201


@pytest.mark.slow
async def test_long_lists_of_schemas_are_sent_in_chunks() -> None:
    async with registry() as (_, [client]):
        names = [f"R{number}" + "x" * 900 for number in range(40)]
        async with trio.open_nursery() as nursery:
            for number, name in enumerate(names):
                nursery.start_soon(
                    client.register, f"s{number:03}", record(name, ("f" * 2000, "int"))
                )
        rows = await client.get("/schemas")
        assert [each["subject"] for each in rows] == [f"s{number:03}" for number in range(40)]
        assert [json.loads(each["schema"])["name"] for each in rows] == names
        assert await client.get("/schemas?subjectPrefix=none") == []


async def test_trailing_slash_of_path_is_ignored() -> None:
    async with registry() as (_, [client]):
        assert (
            await client.ask("POST", "/subjects/s/versions/", {"schema": '"int"'})
        ).status == 200
        for path in (
            "/",
            "/subjects/",
            "/subjects/s/versions/",
            "/subjects/s/versions/1/",
            "/config/",
        ):
            response = await client.ask("GET", path)
            assert response == await client.ask("GET", path.removesuffix("/") or "/")
            assert response.status == 200
        assert (await client.put("/config/s/", {"compatibility": "NONE"})) == {
            "compatibility": "NONE"
        }
        assert await client.delete("/subjects/s/") == [1]
        assert await client.refusal("GET", "/subjects//") == 404


LISTS = ("/subjects", "/subjects?deletedOnly=true", "/schemas?limit=1", "/schemas?latestOnly=true")


async def test_long_lists_are_computed_outside_the_event_loop() -> None:
    config = BrokerConfig.load(options={"registry.port": "0"})
    service = RegistryService(config)
    async with broker_with(service, config, None, None) as broker:
        client = RegistryClient(service.endpoint_of(broker.nodes[0].id))
        await client.get("/subjects")
        (topic,) = service._topics
        for number in range(20_000):
            topic.store.replay(version_entry(f"{number:05}-{'x' * 200}", 1))
        for number in range(2, 200):
            metadata = {"properties": {f"k{each}": "v" * 50 for each in range(2000)}}
            topic.store.replay(version_entry("s", number, metadata=metadata))
        for path in (*LISTS, "/subjects/s/metadata?key=k0&value=other"):
            with longest_step() as step:
                await client.ask("GET", path)
            assert step.seconds < 0.025, f"{path}: {step}"


def version_entry(subject: str, version: int, **more: object) -> Entry:
    """Return the record of a version."""
    text = json.dumps(record("R", (f"f{version}", "int")))
    value = {"subject": subject, "version": version, "id": version, "schema": text, **more}
    return Entry(schema_key(subject, version), value)
