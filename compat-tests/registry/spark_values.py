"""Values written by `kbroker.spark` and read by confluent-kafka, and the reverse."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

sys.path.insert(0, str(Path(__file__).parents[2]))

from kbroker.spark import avro, protobuf

FIELDS = '{"name":"a","type":"int"},{"name":"b","type":["null","string"],"default":null}'
SCHEMA = f'{{"type":"record","name":"R","fields":[{FIELDS}]}}'
FILE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Line { int32 a = 1; }
message Order { repeated Line lines = 1; google.protobuf.Timestamp at = 2; map<string, Line> rest = 3; }
"""
ORDER = {"lines": [{"a": 7}], "at": datetime(2026, 1, 2, tzinfo=UTC), "rest": {"x": {"a": 8}}}


def main(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    at = SerializationContext("orders", MessageField.VALUE)
    theirs = AvroSerializer(client, SCHEMA)({"a": 7, "b": "x"}, at)
    ours = avro.Encoder.registered(url, "orders-value", SCHEMA).encode({"a": 7, "b": "x"})
    results = {
        "same": theirs == ours,
        "ours": AvroDeserializer(client)(ours, at),
        "theirs": avro.Decoder(url).decode(theirs),
    } | messages(client, url)
    print(json.dumps(results))


def messages(client: SchemaRegistryClient, url: str) -> dict[str, object]:
    at = SerializationContext("messages", MessageField.VALUE)
    encoder = protobuf.Encoder.registered(url, "shop", FILE, "shop.Order")
    ours = encoder.encode(ORDER)
    kind = protobuf.MessageType.latest(url, "shop", "shop.Order")
    options = {"use.deprecated.format": False}
    read = ProtobufDeserializer(type(kind.new()), options)(ours, at)
    theirs = ProtobufSerializer(type(read), client, options)(read, at)
    written = protobuf.MessageType.latest(url, "messages-value", "shop.Order")
    decoded = protobuf.Decoder(url, written).decode(theirs)
    return {
        "ours protobuf": [read.lines[0].a, read.at.seconds, read.rest["x"].a],
        "theirs protobuf": decoded == ORDER,
        "frame": [ours[5:7].hex(), theirs[5:7].hex()],
    }


main(sys.argv[1])
