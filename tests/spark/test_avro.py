"""Avro values with a schema ID header become dicts and Spark rows; errors name the reason."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from kbroker.client.schema_registry import (
    SchemaError,
    UndecodableError,
    UnknownSchemaError,
    header_of,
    split_header,
)
from kbroker.spark.avro import (
    Decoder,
    Schema,
    from_confluent_avro,
    spark_type,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
NEW: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
SCHEMAS: dict[int, Schema] = {1: OLD, 2: NEW}
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def encoded(schema_id: int, fields: Any, schema: Any = None) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema or SCHEMAS[schema_id]), fields)
    return header_of(schema_id) + body.getvalue()


OLD_VALUE = encoded(1, {"id": 1, "who": "a"})
NEW_VALUE = encoded(2, {"id": 2, "who": None, "at": AT, "tags": ["x", "y"]})


def test_value_is_decoded_with_schema_of_its_header() -> None:
    decoder = Decoder(SCHEMAS)
    assert decoder.decode(OLD_VALUE) == {"id": 1, "who": "a"}
    assert decoder.decode(NEW_VALUE) == {"id": 2, "who": None, "at": AT, "tags": ["x", "y"]}
    schema_id, body = split_header(OLD_VALUE)
    assert (schema_id, bytes(body)) == (1, b"\x02\x02a")


def test_old_value_is_decoded_to_newer_schema() -> None:
    fields = Decoder(SCHEMAS, NEW).decode(OLD_VALUE)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert fields == {"id": 1, "who": "a", "at": epoch, "tags": []}
    wrong = {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long", "default": "none"},
    ]}  # fmt: skip
    with pytest.raises(SchemaError, match="Default value <none>"):
        Decoder(SCHEMAS, wrong)


def test_used_decoder_can_be_pickled() -> None:
    decoder = Decoder(SCHEMAS)
    decoder.decode(OLD_VALUE)
    assert pickle.loads(pickle.dumps(decoder)).decode(NEW_VALUE)["id"] == 2


def test_logical_types_without_json_type_keep_their_base_type() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        ],
    }
    value = header_of(7) + b"\x04ab" + b"\x06"
    assert Decoder({7: schema}).decode(value) == {"id": "ab", "time": 3}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "value of 0 bytes is too short"),
        (b"\0\0\0\0", "value of 4 bytes is too short"),
        (b'{"id": 1}', "first byte is 0x7b"),
        (OLD_VALUE[:-1], "not a value of schema 1: EOFError"),
        (OLD_VALUE + b"!", "1 bytes are left over"),
        (header_of(1) + b"\x02\x06\xff\xff\xff", "UnicodeDecodeError"),
        (header_of(1) + b"\x02\x01", "not a value of schema 1"),
        (header_of(1) + b"\xff" * 40, "not a value of schema 1"),
        (header_of(3) + b"\x02", "no schema has the ID 3"),
        (header_of(4) + b"\x02", "schema 4 is not a record"),
    ],
)
def test_undecodable_value_names_reason(value: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError, match=reason):
        Decoder({**SCHEMAS, 4: "long"}).decode(value)


def test_schemas_are_read_from_directory(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(OLD))
    (tmp_path / "2.avsc").write_text("{nonsense")
    for source in (tmp_path, str(tmp_path)):
        assert Decoder(source).decode(OLD_VALUE)["id"] == 1
    with pytest.raises(UnknownSchemaError, match=r"3\.avsc"):
        Decoder(tmp_path).decode(header_of(3))
    with pytest.raises(SchemaError, match="not JSON"):
        Decoder(tmp_path).decode(NEW_VALUE)
    with pytest.raises(SchemaError, match=r"schema directory .* does not exist"):
        Decoder(tmp_path / "nowhere").decode(OLD_VALUE)


@contextmanager
def registry(answers: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Run a schema registry on a free port, and yield its address and the requests it gets."""
    requests: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers["Authorization"]))
            answer = answers.get(self.path, 404)
            body = b"{}" if isinstance(answer, int) else json.dumps(answer).encode()
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


MONEY = {"type": "record", "name": "shop.Money", "fields": [
    {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
]}  # fmt: skip
PAID = {"type": "record", "name": "shop.Paid", "fields": [{"name": "money", "type": "shop.Money"}]}


def test_schemas_are_read_from_registry() -> None:
    answers = {
        "/base/schemas/ids/1": {"schema": json.dumps(OLD)},
        "/base/schemas/ids/2": 500,
        "/base/schemas/ids/3": {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"},
        "/base/schemas/ids/5": {
            "schema": json.dumps(PAID),
            "references": [{"name": "shop.Money", "subject": "a/money", "version": 4}],
        },
        "/base/subjects/a%2Fmoney/versions/4": {"schema": json.dumps(MONEY)},
        "/base/schemas/ids/6": [1],
    }
    with registry(answers) as (address, requests):
        decoder = Decoder(address.replace("http://", "http://me:s%2Fcret@") + "/base/")
        assert [decoder.decode(OLD_VALUE)["id"] for _ in range(3)] == [1, 1, 1]
        assert requests == [("/base/schemas/ids/1", "Basic bWU6cy9jcmV0")]
        body = b"\x04" + (1234).to_bytes(2, "big")
        assert decoder.decode(header_of(5) + body) == {"money": {"sum": Decimal("12.34")}}
        with pytest.raises(UnknownSchemaError, match="has no schema 9"):
            decoder.decode(header_of(9))
        with pytest.raises(UndecodableError, match="PROTOBUF"):
            decoder.decode(header_of(3))
        with pytest.raises(SchemaError, match="returned 500") as caught:
            decoder.decode(NEW_VALUE)
        assert "cret" not in str(caught.value)
        with pytest.raises(SchemaError, match="is not a schema registry"):
            decoder.decode(header_of(6))
    with pytest.raises(SchemaError, match="no valid response from the schema registry"):
        Decoder(address).decode(OLD_VALUE)


def test_avro_types_are_converted_to_spark_types() -> None:
    assert spark_type(NEW).simpleString() == (
        "struct<id:bigint,who:string,at:timestamp,tags:array<string>>"
    )
    assert spark_type(json.dumps(MONEY)).simpleString() == "struct<sum:decimal(9,2)>"
    twice = {"type": "record", "name": "T", "fields": [
        {"name": "a", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "b", "type": {"type": "map", "values": "F"}},
        {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["X"]}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "e", "type": {"type": "string", "logicalType": "uuid"}},
    ]}  # fmt: skip
    assert spark_type(twice).simpleString() == (
        "struct<a:binary,b:map<string,binary>,c:string,d:date,e:string>"
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "record", "name": "L", "fields": [{"name": "l", "type": ["null", "L"]}]},
            "type L is recursive",
        ),
        (
            {"type": "record", "name": "U", "fields": [{"name": "u", "type": ["int", "string"]}]},
            "no equivalent for the union",
        ),
        ({"type": "nonsense"}, "not an Avro schema"),
        ("{", "not JSON"),
    ],
)
def test_schemas_without_spark_type_are_rejected(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        spark_type(schema)


def test_column_of_values_becomes_structs(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(1, OLD_VALUE), (2, NEW_VALUE), (3, None), (4, b"rubbish")], "n int, value binary"
    )
    order = from_confluent_avro("value", SCHEMAS, NEW, mode="PERMISSIVE").alias("order")
    read = [row.order for row in rows.select("n", order).orderBy("n").collect()]
    assert (read[0].id, read[0].who, read[0].tags) == (1, "a", [])
    shown = rows.select("n", order).where("n = 2").selectExpr("cast(order.at as string)").first()
    assert shown is not None
    assert (read[1].tags, shown[0]) == (["x", "y"], "2026-03-01 12:30:00")
    assert read[2:] == [None, None]
    with pytest.raises(Exception, match="first byte is 0x72"):
        rows.select(from_confluent_avro("value", SCHEMAS, NEW)).collect()
    with pytest.raises(ValueError, match="valid: FAILFAST, PERMISSIVE"):
        from_confluent_avro("value", SCHEMAS, NEW, mode="ignore")
