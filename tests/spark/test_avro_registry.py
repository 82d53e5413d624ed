"""Values with schema IDs, written and read by Spark with kbroker's registry."""

from __future__ import annotations

import json
import pickle
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.client.schema_registry import SchemaError, UnencodableError, split_header
from kbroker.spark.avro import (
    Decoder,
    Encoder,
    from_confluent_avro,
    to_confluent_avro,
)
from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": ["null", "string"]}],
}
NEW: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        *OLD["fields"],
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
        {
            "name": "price",
            "type": ["null", {"type": "record", "name": "Price", "fields": [
                {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            ]}],
            "default": None,
        },
    ],
}  # fmt: skip
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(schema_registry=True) as broker:
        yield broker


def test_encoded_value_is_decoded_by_schema_id(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    old, new = (Encoder.registered(url, "orders-value", each) for each in (OLD, NEW))
    again = pickle.loads(pickle.dumps(Encoder.registered(url, "orders-value", json.dumps(OLD))))
    price = {"sum": Decimal("1.25"), "at": AT}
    values = [
        old.encode({"id": 1, "who": None}),
        new.encode({"id": 2, "who": "b", "raw": b"\x00", "price": price}),
        again.encode({"id": 3, "who": "c"}),
    ]
    assert [split_header(each)[0] for each in values] == [1, 2, 1]
    decoder = Decoder(url)
    assert [decoder.decode(each) for each in values] == [
        {"id": 1, "who": None},
        {"id": 2, "who": "b", "tags": [], "raw": b"\x00", "price": price},
        {"id": 3, "who": "c"},
    ]


@pytest.mark.parametrize("fields", [{"id": "x", "who": None}, {"who": "a"}, {"id": 1, "nobody": 1}])
def test_mismatching_fields_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(UnencodableError, match=r"do not match shop\.Order"):
        Encoder(1, OLD).encode(fields)


def test_error_of_registry_is_quoted(broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    Encoder.registered(url, "s", OLD)
    stricter = {**OLD, "fields": [*OLD["fields"], {"name": "more", "type": "long"}]}
    with pytest.raises(SchemaError, match="returned 409 Schema being registered is incompatible"):
        Encoder.registered(url, "s", stricter)
    broker.registry_fault("POST", error=50001)
    with pytest.raises(SchemaError, match="returned 500 fault: error 50001"):
        Encoder.registered(url, "s", OLD)
    with pytest.raises(SchemaError, match="the schema is not a record"):
        Encoder.registered(url, "t", "string")
    with urllib.request.urlopen(f"{url}/subjects") as answer:
        assert json.load(answer) == ["s"]


def test_encoded_columns_are_decoded_equal(spark: SparkSession, broker: LocalBroker) -> None:
    url = broker.schema_registry_url
    orders = spark.sql(
        "select named_struct('id', id, 'who', if(id = 1, null, 'x'), 'tags', array('a', 'b'), "
        "'raw', x'00ff', 'price', named_struct('sum', cast(id + 0.25 as decimal(9, 2)), "
        "'at', timestamp'2026-03-01 12:30:00')) as made from range(3)"
    )
    older = spark.sql("select named_struct('id', 7L, 'who', 'old') as made union all select null")
    values = orders.select(to_confluent_avro("made", url, "orders-value", NEW).alias("value"))
    values = values.unionAll(older.select(to_confluent_avro("made", url, "orders-value", OLD)))
    for row in values.collect():
        broker.produce("orders", None if row.value is None else bytes(row.value))
    ids = [each.value and split_header(each.value)[0] for each in broker.records("orders")]
    assert ids == [1, 1, 1, 2, None]

    stored = spark.createDataFrame(
        [(each.value,) for each in broker.records("orders")], "value binary"
    )
    read = stored.select(from_confluent_avro("value", url, NEW).alias("order"))
    assert read.where("order is not null").select("order.id").collect() == [(0,), (1,), (2,), (7,)]
    kept = read.where("order.id < 7").select("order").collect()
    assert kept == orders.selectExpr("made as order").collect()
    wrong = older.select(to_confluent_avro("made", url, "orders-value", NEW)).collect()
    assert len(wrong) == 2
    with pytest.raises(Exception, match=r"the fields do not match shop\.Order"):
        orders.select(to_confluent_avro("made", url, "others", OLD)).collect()
