"""Protobuf messages, written and read by Spark with kbroker's registry."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.client.schema_registry import (
    SchemaError,
    UndecodableError,
    UnencodableError,
    UnknownSchemaError,
    header_of,
    split_header,
)
from kbroker.spark import avro
from kbroker.spark.protobuf import (
    Decoder,
    Encoder,
    MessageType,
    from_confluent_protobuf,
    spark_type,
    to_confluent_protobuf,
)
from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; string who = 2; }
"""
NEW = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
enum State { OPEN = 0; PAID = 1; }
message Order {
  int64 id = 1;
  string who = 2;
  optional string note = 3;
  repeated string tags = 4;
  map<string, Line> lines = 5;
  State state = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.Duration took = 8;
  oneof paid { Card card = 9; bytes voucher = 10; }
  uint64 large = 11;
  uint32 count = 12;
  double price = 13;
  bool is_new = 14;
  repeated Line more = 15;
  message Line { sint32 count = 1; float weight = 2; }
}
message Card { string number = 1; }
"""
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
FULL: dict[str, Any] = {
    "id": -2,
    "who": "b",
    "note": "",
    "tags": ["x", "y"],
    "lines": {"a": {"count": -1, "weight": 0.5}},
    "state": "PAID",
    "at": AT,
    "took": timedelta(seconds=90, milliseconds=5),
    "card": {"number": "1"},
    "voucher": None,
    "large": Decimal(2**64 - 1),
    "count": 2**32 - 1,
    "price": 1.25,
    "is_new": True,
    "more": [{"count": 7, "weight": 0.0}],
}
EMPTY: dict[str, Any] = FULL | {
    "id": 1,
    "who": "a",
    "note": None,
    "tags": [],
    "lines": {},
    "state": "OPEN",
    "at": None,
    "took": None,
    "card": None,
    "large": Decimal(0),
    "count": 0,
    "price": 0.0,
    "is_new": False,
    "more": [],
}


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(schema_registry=True) as broker:
        yield broker


def test_encoded_message_is_decoded_by_schema_id(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    old = Encoder.registered(url, "orders-value", OLD)
    new = pickle.loads(pickle.dumps(Encoder.registered(url, "orders-value", NEW)))
    values = [old.encode({"id": 1, "who": "a"}), new.encode(FULL)]
    assert [split_header(each)[0] for each in values] == [1, 2]
    assert values[0] == header_of(1) + b"\0" + b"\x08\x01\x12\x01a"
    decoder = pickle.loads(pickle.dumps(Decoder(url, MessageType.latest(url, "orders-value"))))
    assert [decoder.decode(each) for each in values] == [EMPTY, FULL]


def test_message_type_is_encoded_by_its_indexes(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    card = Encoder.registered(url, "orders-value", NEW, "shop.Card").encode({"number": "7"})
    line = Encoder.registered(url, "orders-value", NEW, "shop.Order.Line").encode({"count": 3})
    # one index, which is 1
    assert card[5:7] == b"\x02\x02"
    # two indexes: the first message of the first message
    assert line[5:8] == b"\x04\x00\x00"
    read_as = MessageType.latest(url, "orders-value", "shop.Order.Line")
    decoder = Decoder(url, read_as)
    assert decoder.decode(line) == {"count": 3, "weight": 0.0}
    with pytest.raises(UndecodableError, match=r"is a shop\.Card, not a shop\.Order\.Line"):
        decoder.decode(card)
    with pytest.raises(SchemaError, match=r"declares no message shop\.Nothing"):
        MessageType.latest(url, "orders-value", "shop.Nothing")


def test_imported_files_are_resolved_by_reference(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    Encoder.registered(
        url, "card", 'syntax = "proto3"; package shop; message Card { string number = 1; }'
    )
    text = 'syntax = "proto3"; import "shop/card.proto"; message Paid { shop.Card card = 1; }'
    reference = {"name": "shop/card.proto", "subject": "card", "version": 1}
    paid = Encoder.registered(url, "paid", text, references=[reference])
    decoder = Decoder(url, MessageType.latest(url, "paid"))
    assert decoder.decode(paid.encode({"card": {"number": "1"}})) == {"card": {"number": "1"}}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\0\0\0\0", "value of 4 bytes is too short"),
        (b"\1\0\0\0\1\0", "first byte is 0x01"),
        (header_of(1), "index path is truncated"),
        (header_of(1) + b"\x80" * 20, "index path is truncated"),
        (header_of(1) + b"\x03", "index path has -2 levels"),
        (header_of(1) + b"\x82\x01", "index path has 65 levels"),
        (header_of(1) + b"\x02\x08", "declares no message at index 4"),
        (header_of(1) + b"\x00\x08", r"not a shop\.Order of schema 1"),
        (header_of(1) + b"\x00\x12\x02\xff\xff", r"not a shop\.Order of schema 1"),
        (header_of(2) + b"\x00", "schema 2 is AVRO, not PROTOBUF"),
    ],
)
def test_undecodable_value_names_reason(broker: LocalBroker, value: bytes, reason: str) -> None:
    url = broker.schema_registry_url
    Encoder.registered(url, "orders-value", NEW)
    avro.Encoder.registered(url, "avro", {"type": "record", "name": "R", "fields": []})
    with pytest.raises(UndecodableError, match=reason):
        Decoder(url, MessageType.latest(url, "orders-value")).decode(value)


@pytest.mark.parametrize(
    "fields",
    [{"id": "x"}, {"nobody": 1}, {"state": "LOST"}, {"count": -1}, {"tags": [1]}, {"card": "1"}],
)
def test_mismatching_fields_are_rejected(broker: LocalBroker, fields: dict[str, Any]) -> None:
    encoder = Encoder.registered(broker.schema_registry_url, "orders-value", NEW)
    with pytest.raises(UnencodableError, match=r"do not match shop\.Order"):
        encoder.encode(fields)


def test_error_of_registry_is_quoted(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    Encoder.registered(url, "s", OLD)
    with pytest.raises(SchemaError, match="returned 409 Schema being registered is incompatible"):
        Encoder.registered(url, "s", OLD.replace("string who = 2", "int64 who = 2"))
    with pytest.raises(SchemaError, match="returned 422"):
        Encoder.registered(url, "s", "message {")
    with pytest.raises(SchemaError, match="has no subject nothing"):
        MessageType.latest(url, "nothing")
    avro.Encoder.registered(url, "avro", {"type": "record", "name": "R", "fields": []})
    with pytest.raises(SchemaError, match="schema of avro is AVRO"):
        MessageType.latest(url, "avro")
    decoder = Decoder(url, MessageType.latest(url, "s"))
    with pytest.raises(UnknownSchemaError, match="no schema 9"):
        decoder.decode(header_of(9) + b"\0")


def test_unknown_enum_values_are_decoded_to_numbers(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    encoder = Encoder.registered(url, "orders-value", NEW)
    decoder = Decoder(url, MessageType.latest(url, "orders-value"))
    assert decoder.decode(encoder.encode({"state": "9"}))["state"] == "9"


def test_protobuf_types_are_converted_to_spark_types(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    Encoder.registered(url, "orders-value", NEW)
    assert spark_type(MessageType.latest(url, "orders-value")).simpleString() == (
        "struct<id:bigint,who:string,note:string,tags:array<string>,"
        "lines:map<string,struct<count:int,weight:float>>,state:string,at:timestamp,"
        "took:interval day to second,card:struct<number:string>,voucher:binary,"
        "large:decimal(20,0),count:bigint,price:double,is_new:boolean,"
        "more:array<struct<count:int,weight:float>>>"
    )
    text = 'syntax = "proto3"; message List { List rest = 1; }'
    Encoder.registered(url, "list", text)
    with pytest.raises(SchemaError, match="message List is recursive"):
        spark_type(MessageType.latest(url, "list"))


def test_encoded_columns_are_decoded_equal(spark: SparkSession, broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    older = spark.sql("select named_struct('id', 7L, 'who', 'old') as made")
    old_values = older.select(to_confluent_protobuf("made", url, "orders-value", OLD))
    Encoder.registered(url, "orders-value", NEW)
    order = MessageType.latest(url, "orders-value")
    orders = spark.createDataFrame(
        [(FULL,), (EMPTY,), (None,)], f"made {spark_type(order).simpleString()}"
    )
    values = orders.select(to_confluent_protobuf("made", url, "orders-value", NEW).alias("value"))
    for row in values.unionAll(old_values).collect():
        broker.produce("orders", None if row.value is None else bytes(row.value))
    stored = spark.createDataFrame(
        [(each.value,) for each in broker.records("orders")] + [(b"rubbish",)], "value binary"
    )
    column = from_confluent_protobuf("value", url, order, mode="PERMISSIVE").alias("order")
    read = stored.select(column).collect()
    assert read[:3] == orders.selectExpr("made as order").collect()
    assert (read[3].order.id, read[3].order.who, read[3].order.at) == (7, "old", None)
    assert read[4].order is None
    with pytest.raises(Exception, match="first byte is 0x72"):
        stored.select(from_confluent_protobuf("value", url, order)).collect()
    wrong = spark.sql("select named_struct('nobody', 1) as made")
    values = wrong.select(to_confluent_protobuf("made", url, "orders-value", NEW))
    with pytest.raises(Exception, match=r"the fields do not match shop\.Order"):
        values.collect()
