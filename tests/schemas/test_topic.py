"""The `_schemas` topic as one node reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.consumer import Read
from kbroker.client.producer import Producer
from kbroker.client.topics import delete_topics
from kbroker.protocol.records import Record
from kbroker.schemas import topic as topic_module
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.records import LAST_ID, noop
from kbroker.schemas.core.registry import WritePlan
from kbroker.schemas.core.store import SchemaStore
from kbroker.schemas.topic import READ_BYTES_MAX, SchemaTopic

from ..brokers import started
from ..wire import Topic, batch, connected, produce, until
from .client import record, registry


async def test_topic_is_replayed_in_chunks_without_blocking_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[int] = []
    take = SchemaTopic._replay_records

    def counted(topic: SchemaTopic, reads: Sequence[Read]) -> None:
        pieces.append(sum(len(each.record.value or b"") for each in reads))
        take(topic, reads)

    async with registry() as (broker, [client]):
        for number in range(12):
            await client.register(f"s{number}", record(f"R{number}", ("f" * 20_000, "int")))
        monkeypatch.setattr(SchemaTopic, "_replay_records", counted)
        async with (
            open_cluster([broker.endpoint], "test") as cluster,
            trio.open_nursery() as nursery,
        ):
            topic = SchemaTopic(cluster, lambda: 0)
            nursery.start_soon(topic.run)
            await topic.catch_up()
            nursery.cancel_scope.cancel()
    assert topic.store.last_id == 12
    assert sum(pieces) > 3 * READ_BYTES_MAX
    assert max(pieces) <= READ_BYTES_MAX


async def write_as_other_registry(broker: Broker, value: dict[str, Any], text: str) -> None:
    """Write a version of a subject as another registry on the topic would."""
    check_simple_name = {each: value[each] for each in ("subject", "version")}
    key = json.dumps({"keytype": "SCHEMA", **check_simple_name, "magic": 1}).encode()
    document = json.dumps({**value, "schema": text, "deleted": False}).encode()
    records = batch([Record(key, document, int(time.time() * 1000))])
    async with connected(broker.endpoint) as wire:
        row = await produce(wire, Topic("_schemas"), records)
        assert not row.error_code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema_type", "schema", "written", "other"),
    [
        (
            "AVRO",
            json.dumps(record("R", ("a", "int", 0))),
            '{"fields":[{"default":0,"name":"a","type":"int"}],"name":"R","type":"record"}',
            json.dumps(record("R", ("a", "int", 1))),
        ),
        (
            "JSON",
            '{"type": "object", "title": "t"}',
            '{"title":"t","type":"object"}',
            '{"type": "object", "title": "u"}',
        ),
        (
            "PROTOBUF",
            'syntax = "proto3"; message M { int32 a = 1; }',
            'syntax = "proto3";\n\nmessage M {\n  int32 a = 1;\n}\n',
            'syntax = "proto3"; message M { int32 b = 1; }',
        ),
    ],
)
async def test_schema_formatted_by_another_registry_is_recognized(
    schema_type: str, schema: str, written: str, other: str
) -> None:
    """Karapace, for example, formats schemas in its own way."""
    more = {"schemaType": schema_type}
    async with registry() as (broker, [client]):
        await client.register("first", record("F"))
        value = {"subject": "orders", "version": 1, "id": 7, **more}
        await write_as_other_registry(broker, value, written)
        assert await client.register("orders", schema, **more) == 7
        wanted = {"schema": schema, **more}
        found = await client.ask("POST", "/subjects/orders", wanted)
        assert (found.body["version"], found.body["schema"]) == (1, written)
        assert await client.register("orders", other, **more) == 8
        assert await client.get("/subjects/orders/versions") == [1, 2]


@pytest.mark.parametrize(("one", "other"), [("true", "1"), ("1.0", "1")])
async def test_values_equal_in_python_are_different_schemas(one: str, other: str) -> None:
    """The strings have equal length and equal Python documents: True == 1."""
    async with registry() as (_, [client]):
        await client.ask("PUT", "/config", {"compatibility": "NONE"})
        for number, (first, last) in enumerate([(one, other), (other, one)]):
            text = f'{{"properties":{{"a":{{"const":{first}}},"b":{{"const":{last}}}}}}}'
            assert await client.register("numbers", text, schemaType="JSON") == number + 1


def assign_next_id(store: SchemaStore) -> WritePlan[int]:
    """Plan a record that assigns the next ID."""
    return WritePlan([noop(store.last_id + 1)], store.last_id + 1)


async def test_node_with_epoch_of_expired_producer_id_assigns_no_id_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other node gets another producer ID, and its records are not read yet."""
    now_ms = 1_000
    async with (
        started() as broker,
        open_cluster([broker.endpoint], "test") as cluster,
        trio.open_nursery() as nursery,
    ):
        one, other = (SchemaTopic(cluster, lambda: now_ms) for _ in range(2))
        nursery.start_soon(other.run)
        with trio.CancelScope() as reading:
            async with trio.open_nursery() as readers:
                readers.start_soon(one.run)
                ids = [await one.write(assign_next_id)]
                reading.cancel()
        # The coordinator expires the ID in the meantime; another ID also has another producer ID.
        now_ms += 7 * 24 * 3_600_000
        monkeypatch.setattr(topic_module, "TRANSACTIONAL_ID", "another")
        ids.append(await other.write(assign_next_id))
        with trio.fail_after(20):
            nursery.start_soon(one.run)
            ids.append(await one.write(assign_next_id))
            ids.append(await other.write(assign_next_id))
        nursery.cancel_scope.cancel()
    assert ids == [1, 2, 3, 4]


@pytest.mark.parametrize("work", ["write", "catch up"])
async def test_work_on_topic_that_is_deleted_fails_and_next_write_creates_topic(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        started() as broker,
        open_cluster([broker.endpoint], "test") as cluster,
        trio.open_nursery() as nursery,
    ):
        topic = SchemaTopic(cluster, lambda: 0)
        with trio.CancelScope() as reading:
            async with trio.open_nursery() as readers:
                readers.start_soon(topic.run)
                await topic.write(assign_next_id)
                reading.cancel()
        failures: list[RegistryError] = []

        async def do_work() -> None:
            try:
                await (topic.write(assign_next_id) if work == "write" else topic.catch_up())
            except RegistryError as error:
                failures.append(error)

        with trio.fail_after(20):
            if work == "catch up":
                await append_noop(topic)
            async with trio.open_nursery() as workers:
                workers.start_soon(do_work)
                await trio.testing.wait_all_tasks_blocked(0.2)
                await delete_topics(cluster, ["_schemas"])
                nursery.start_soon(topic.run)
            await until(lambda: not topic.store.last_id)
            assert await topic.write(assign_next_id) == 1
        nursery.cancel_scope.cancel()
    assert ["was deleted" in str(each) for each in failures] == [True]


async def append_noop(topic: SchemaTopic) -> None:
    """Append a record as another node, so that `topic` is behind."""
    producer = Producer(topic._cluster)
    await producer.write({("_schemas", 0): [Record(*noop_bytes(), 0, [(LAST_ID, b"1")])]})


def noop_bytes() -> tuple[bytes, bytes]:
    entry = noop(1)
    return entry.key_bytes(), entry.value_bytes() or b""
