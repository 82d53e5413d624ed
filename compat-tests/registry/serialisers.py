"""Serialisers of confluent-kafka against a registry: what they write they read, in all three types."""

from __future__ import annotations

import json
import sys

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
BROKEN = '{"type":"record","name":"R","fields":[{"name":"b","type":"string"}]}'
JSON = '{"title":"t","type":"object","properties":{"a":{"type":"integer"}}}'


def main(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    told = {}

    def at(topic: str) -> SerializationContext:
        return SerializationContext(topic, MessageField.VALUE)

    data = AvroSerializer(client, AVRO)({"a": 7}, at("py-avro"))
    told["avro"] = AvroDeserializer(client)(data, at("py-avro"))
    told["frame"] = data[0]
    data = JSONSerializer(JSON, client)({"a": 7}, at("py-json"))
    told["json"] = JSONDeserializer(JSON, schema_registry_client=client)(data, at("py-json"))
    options = {"use.deprecated.format": False}
    data = ProtobufSerializer(Timestamp, client, options)(Timestamp(seconds=7), at("py-protobuf"))
    read = ProtobufDeserializer(Timestamp, options)(data, at("py-protobuf"))
    told["protobuf"] = read.seconds
    struct = Struct()
    struct["a"] = 7
    data = ProtobufSerializer(Struct, client, options)(struct, at("py-struct"))
    told["struct"] = ProtobufDeserializer(Struct, options)(data, at("py-struct"))["a"]
    try:
        client.register_schema("py-avro-value", Schema(BROKEN, "AVRO"))
    except SchemaRegistryError as error:
        told["refused"] = [error.http_status_code, error.error_code]
    told["compatible"] = client.test_compatibility("py-avro-value", Schema(BROKEN, "AVRO"))
    told["latest"] = client.get_latest_version("py-avro-value").version
    client.set_compatibility("py-avro-value", "NONE")
    told["level"] = client.get_compatibility("py-avro-value")
    told["second"] = client.get_version("py-avro-value", 1).version
    client.register_schema("py-avro-value", Schema(BROKEN, "AVRO"))
    told["versions"] = client.get_versions("py-avro-value")
    told["deleted"] = client.delete_subject("py-avro-value")
    client.delete_subject("py-avro-value", permanent=True)
    told["gone"] = "py-avro-value" not in client.get_subjects()
    print(json.dumps(told))


main(sys.argv[1])
