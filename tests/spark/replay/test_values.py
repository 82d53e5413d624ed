"""NDJSON and lakes become Avro values, with the newest schema of kbroker's registry."""

from __future__ import annotations

import datetime
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.client.schema_registry import SchemaRegistry, split_header
from kbroker.schemas.encoding import SchemaChoice, load_writer
from kbroker.spark.avro import Decoder, Encoder
from kbroker.testing import LocalBroker

from ..lake.lakes import archive, conf_of, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": ["null", "string"]}],
}
SUM = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
TIME = {"type": "long", "logicalType": "timestamp-millis"}
PRICE = {"type": "record", "name": "Price", "fields": [
    {"name": "sum", "type": SUM}, {"name": "at", "type": TIME},
]}  # fmt: skip
NEW = OLD | {
    "fields": [
        *OLD["fields"],
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "price", "type": ["null", PRICE], "default": None},
        {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
    ]
}
AT = datetime.datetime(2026, 3, 1, 12, 30, tzinfo=datetime.UTC)
VALUES: list[dict[str, Any]] = [
    {"id": 1, "who": "a", "raw": b"\x00\xff", "price": {"sum": Decimal("1.25"), "at": AT},
     "counts": {"x": 1}},
    {"id": 2, "who": None, "raw": b"", "price": None, "counts": {}},
]  # fmt: skip


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(schema_registry=True) as broker:
        url = broker.schema_registry_url
        for each in (OLD, NEW):
            Encoder.registered(url, "orders-value", each)
        broker.create_topic("orders", 1)
        yield broker


def run(broker: LocalBroker, *options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Replay into the topic `orders`."""
    command = ["replay", "-b", broker.bootstrap_servers, "--to-topic", "orders", *options]
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *command],
        check=False, capture_output=True, timeout=60, text=True, input=stdin,
    )  # fmt: skip


def replay(broker: LocalBroker, *options: str, stdin: str = "") -> str:
    """Replay with the schema of orders-value, which must succeed. Return the standard error."""
    schema = ["--to-schema", "orders-value", "--to-registry", broker.schema_registry_url]
    done = run(broker, *schema, *options, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stderr


def refusal(broker: LocalBroker, *options: str, stdin: str = "{}\n") -> str:
    """Run a replay that must fail and write nothing. Return the standard error."""
    done = run(broker, *options, stdin=stdin)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert broker.records("orders") == []
    return done.stderr


def register(broker: LocalBroker, subject: str, **document: Any) -> None:
    request = urllib.request.Request(
        f"{broker.schema_registry_url}/subjects/{subject}/versions",
        json.dumps(document).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    urllib.request.urlopen(request).close()


def lines(*values: Any) -> str:
    return "".join(json.dumps({"value": each}) + "\n" for each in values)


def read(broker: LocalBroker) -> list[Any]:
    """Return the decoded values of the target. All must have the newest schema."""
    decoder = Decoder(broker.schema_registry_url)
    values = [each.value for each in broker.records("orders")]
    assert {split_header(each)[0] for each in values if each} == {2}
    return [None if each is None else decoder.decode(each) for each in values]


def test_ndjson_values_are_encoded_as_avro(broker: LocalBroker) -> None:
    price = {"sum": "1.25", "at": "2026-03-01T12:30:00Z"}
    first = {"id": 1, "who": "a", "raw": "\x00\u00ff", "price": price, "counts": {"x": 1}}
    text = lines(first, None, {"id": 2, "raw": ""}, {"id": 3, "who": "c"})
    stderr = replay(broker, "--ndjson", "-", "--dry-run", stdin=text)
    assert "4 records, " in stderr
    assert broker.records("orders") == []
    replay(broker, "--ndjson", "-", stdin=text)
    third = {"id": 3, "who": "c", "raw": b"\xff", "price": None, "counts": {}}
    assert read(broker) == [VALUES[0], None, VALUES[1], third]


def test_avro_lake_is_replayed_unchanged(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    url = broker.schema_registry_url
    encoder = Encoder.latest(url, "orders-value")
    broker.create_topic("source", 1)
    written = [*map(encoder.encode, VALUES), None]
    produce(broker, "source", written)
    archive(spark, conf_of(broker, tmp_path, "source", format="avro", schema=url))
    replay(broker, "source", "--lake", str(tmp_path))
    assert read(broker) == [*VALUES, None]
    assert [each.value for each in broker.records("orders")] == written


def test_value_that_does_not_match_schema_is_reported(broker: LocalBroker) -> None:
    options = ["--to-schema", "orders-value", "--to-registry", broker.schema_registry_url]
    text = lines({"id": 1}, {"id": "x"})
    for more in ([], ["--dry-run"]):
        stderr = refusal(broker, *options, "--ndjson", "-", *more, stdin=text)
        assert (
            "line 2 of <stdin> cannot be written as schema orders-value:2, ID 2 (AVRO): id: 'x' is not "
            "an integer of 32 bits; correct it, exclude it with a filter, or name another --to-schema"
        ) in stderr
    broker.create_topic("source", 1)
    for value in (b'{"id": 1}', b"\x00no"):
        broker.produce("source", value)
    stderr = refusal(broker, *options, "source")
    assert "offset 1 of partition 0 of topic source cannot be written" in stderr
    assert "is not a JSON document" in stderr
    replay(broker, "source", "--filter-field", "id=.")
    assert [each["id"] for each in read(broker)] == [1]


def test_unusable_schema_is_reported(broker: LocalBroker) -> None:
    def error_for_subject(subject: str, url: str = broker.schema_registry_url) -> str:
        options = ["--ndjson", "-", "--to-registry", url, "--to-schema", subject]
        return refusal(broker, *options)

    assert "has no subject nothing; `kbroker registry list`" in error_for_subject("nothing")
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))
        silent = f"http://bob:secret@127.0.0.1:{unused_port.getsockname()[1]}"
        error = error_for_subject("orders-value", silent)
    assert "no valid response from the schema registry" in error
    assert "secret" not in error
    broker.registry_fault("GET", error=50001)
    assert "returned 500 fault: error 50001" in error_for_subject("orders-value")


def test_schema_with_references_is_used(broker: LocalBroker) -> None:
    register(broker, "price", schema=json.dumps(PRICE))
    reference = {"name": "Price", "subject": "price", "version": 1}
    cart = {"type": "record", "name": "Cart", "fields": [
        {"name": "prices", "type": {"type": "array", "items": ["null", "Price"]}},
    ]}  # fmt: skip
    register(broker, "cart", schema=json.dumps(cart), references=[reference])
    url = broker.schema_registry_url
    price = {"sum": "1.25", "at": AT.isoformat()}
    writer = load_writer(SchemaRegistry(url), SchemaChoice(subject="cart"))
    encoded = writer.encode(json.dumps({"prices": [None, price]}).encode())
    assert Decoder(url).decode(encoded) == {"prices": [None, VALUES[0]["price"]]}


def test_progress_file_of_other_subject_is_rejected(broker: LocalBroker, tmp_path: Path) -> None:
    register(broker, "other", schema=json.dumps(OLD))
    file = tmp_path / "orders.ndjson"
    file.write_text(lines({"id": 1}))
    progress = ["--ndjson", str(file), "--progress", str(tmp_path / "progress")]
    replay(broker, *progress)
    url = broker.schema_registry_url
    done = run(broker, *progress, "--to-schema", "other", "--to-registry", url)
    assert "its to_schema is 'orders-value', not 'other'" in done.stderr
    assert [each["id"] for each in read(broker)] == [1]


def test_registry_setting_of_profile_is_used(broker: LocalBroker) -> None:
    options = ["--ndjson", "-", "--to-schema", "orders-value"]
    address = broker.schema_registry_url
    done = run(broker, *options, "-X", f"schema.registry.url={address}", stdin=lines({"id": 1}))
    assert done.returncode == 0, done.stderr
    assert [each["id"] for each in read(broker)] == [1]
