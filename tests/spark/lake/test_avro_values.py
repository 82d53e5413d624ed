"""Avro values become columns, with schemas that change during the stream."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow.parquet as pq
import pytest

from kbroker.client.schema_registry import SchemaError, header_of
from kbroker.pipelines.lake.archiver import Archiver
from kbroker.pipelines.lake.commits import Counts, LakeError
from kbroker.spark.avro import Decoder, Encoder
from kbroker.testing import LocalBroker

from .lakes import archive, conf_of, payloads, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def schema(**fields: Any) -> dict[str, Any]:
    each = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "r", "fields": each}


FIRST = schema(id="int", name=["null", "string"])
SECOND = schema(id="long", more={"type": "array", "items": schema(x="float") | {"name": "i"}})
OTHER = schema(id="string")
RECURSIVE = schema(id="int", rest=["null", "r"])


def written(number: int | None, kind: dict[str, Any], value: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(kind), value)
    return (b"" if number is None else header_of(number)) + body.getvalue()


def test_values_with_schema_ids_use_files_of_directory(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    for number, kind in {1: FIRST, 2: SECOND, 3: OTHER, 4: RECURSIVE}.items():
        (schemas / f"{number}.avsc").write_text(json.dumps(kind))
    broker.create_topic("t")
    values = [
        written(1, FIRST, {"id": 1, "name": "one"}),
        None,
        written(2, SECOND, {"id": 2**40, "more": [{"x": 0.5}]}),
        written(3, OTHER, {"id": "text"}),
        written(9, FIRST, {"id": 1, "name": None}),
        b"{}",
        written(1, FIRST, {"id": 1, "name": None}) + b"x",
        written(4, RECURSIVE, {"id": 1, "rest": None}),
    ]
    produce(broker, "t", values)
    conf = conf_of(broker, tmp_path / "lake", "t", format="avro", schema=str(schemas))

    assert archive(spark, conf).totals == Counts(3, 5)

    assert payloads(conf.lake, "t") == [
        {"id": 1, "name": "one"},
        None,
        {"id": 2**40, "more": [{"x": 0.5}]},
    ]
    reasons = pq.read_table(conf.lake / "_poison" / "t").column("reason").to_pylist()
    assert reasons == [
        "id: string, expected long",
        f"schema file {schemas / '9.avsc'} does not exist",
        "value of 2 bytes is too short for a schema ID header",
        "1 bytes are left over after a value of schema 1",
        "schema 4: Avro type r is recursive or unknown; Spark has no equivalent type",
    ]


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a stand-in for a schema registry that has only schema 1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/schemas/ids/1"
            answer = {"schema": json.dumps(FIRST)} if known else {"error_code": 40403}
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_values_with_schema_ids_use_registry(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path, registry: str
) -> None:
    broker.create_topic("t")
    value = {"id": 1, "name": "one"}
    produce(broker, "t", [written(1, FIRST, value), written(2, FIRST, value)])
    conf = conf_of(broker, tmp_path, "t", format="avro", schema=registry)
    assert archive(spark, conf).totals == Counts(1, 1)
    assert payloads(tmp_path, "t") == [value]
    (reason,) = pq.read_table(tmp_path / "_poison" / "t").column("reason").to_pylist()
    assert "2" in reason


def test_registry_with_authentication_accepts_credentials_in_url(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t")
    with LocalBroker(schema_registry=True, users={"alice": "a/b:c"}) as secured:
        there = secured.schema_registry_url
        address = there.replace("://", "://alice:a%2Fb%3Ac@")
        old = Encoder.registered(address, "t-value", FIRST)
        added = {"name": "more", "type": ["null", "double"], "default": None}
        new = Encoder.registered(address, "t-value", FIRST | {"fields": [*FIRST["fields"], added]})
        values = [{"id": 1, "name": "one"}, {"id": 2, "name": "two", "more": 0.5}]
        produce(broker, "t", [old.encode(values[0]), new.encode(values[1])])
        conf = conf_of(broker, tmp_path, "t", format="avro", schema=address)
        assert archive(spark, conf).totals == Counts(2, 0)
        assert payloads(tmp_path, "t") == values
        with pytest.raises(SchemaError, match="returned 401"):
            Decoder(there).schema(1)


def test_values_without_schema_id_use_one_schema_file(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    (tmp_path / "one.avsc").write_text(json.dumps(FIRST))
    broker.create_topic("t")
    produce(broker, "t", [written(None, FIRST, {"id": 7, "name": None})])
    conf = conf_of(broker, tmp_path, "t", format="avro", schema=str(tmp_path / "one.avsc"))
    archive(spark, conf)
    assert payloads(tmp_path, "t") == [{"id": 7}]


def test_avro_without_schema_option_is_rejected(broker: LocalBroker, tmp_path: Path) -> None:
    broker.create_topic("t")
    with pytest.raises(LakeError, match="--format avro needs --schema"):
        Archiver(conf_of(broker, tmp_path, "t", format="avro"))
