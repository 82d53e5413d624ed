"""Values of all three schema types, written and read by confluent-kafka with a registry."""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.protobuf.timestamp_pb2 import Timestamp

AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
BROKEN = '{"type":"record","name":"R","fields":[{"name":"b","type":"string"}]}'
JSON = '{"title":"t","type":"object","properties":{"a":{"type":"integer"}}}'


def order_class() -> Any:
    """Return a message class whose file imports a file that imports one of Google's files."""
    types = FieldDescriptorProto
    line = FileDescriptorProto(
        name="shop/line.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    message = line.message_type.add(name="Line")
    message.field.add(name="id", number=1, label=types.LABEL_OPTIONAL, type=types.TYPE_INT64)
    at = message.field.add(name="at", number=2, label=types.LABEL_OPTIONAL)
    at.type, at.type_name = types.TYPE_MESSAGE, ".google.protobuf.Timestamp"
    order = FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3", dependency=["shop/line.proto"]
    )
    order.message_type.add(name="First")
    message = order.message_type.add(name="Order")
    entry = message.nested_type.add(name="RestEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=types.LABEL_OPTIONAL, type=types.TYPE_STRING)
    for made, name, number in (
        (entry, "value", 2),
        (message, "lines", 1),
    ):
        label = types.LABEL_OPTIONAL if made is entry else types.LABEL_REPEATED
        field = made.field.add(name=name, number=number, label=label, type=types.TYPE_MESSAGE)
        field.type_name = ".shop.Line"
    rest = message.field.add(name="rest", number=2, label=types.LABEL_REPEATED)
    rest.type, rest.type_name = types.TYPE_MESSAGE, ".shop.Order.RestEntry"
    pool = DescriptorPool()
    pool.AddSerializedFile(TIMESTAMP.serialized_pb)
    pool.Add(line)
    pool.Add(order)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def main(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    results: dict[str, Any] = {}

    def at(topic: str) -> SerializationContext:
        return SerializationContext(topic, MessageField.VALUE)

    data = AvroSerializer(client, AVRO)({"a": 7}, at("py-avro"))
    results["avro"] = AvroDeserializer(client)(data, at("py-avro"))
    results["frame"] = data[0]
    data = JSONSerializer(JSON, client)({"a": 7}, at("py-json"))
    results["json"] = JSONDeserializer(JSON, schema_registry_client=client)(data, at("py-json"))
    options = {"use.deprecated.format": False}

    def round_trip(
        message: Any, topic: str, source: SchemaRegistryClient | None = client, **more: Any
    ) -> Any:
        """Serialize a message, and deserialize it with the schemas of a registry."""
        data = ProtobufSerializer(type(message), client, options | more)(message, at(topic))
        return ProtobufDeserializer(type(message), options, source)(data, at(topic))

    # The deserializer already has Google's messages, and accepts no second definition of them.
    results["protobuf"] = round_trip(Timestamp(seconds=7), "py-protobuf", None).seconds
    struct = Struct()
    struct["a"] = 7
    results["struct"] = round_trip(struct, "py-struct", None)["a"]
    order = order_class()(lines=[{"id": 7, "at": {"seconds": 8}}], rest={"a": {"id": 9}})
    known = {"skip.known.types": False}
    for topic, more in (("py-order", {}), ("py-known", known)):
        read = round_trip(order, topic, **more)
        results[topic] = [read.lines[0].id, read.lines[0].at.seconds, read.rest["a"].id]
    of_order = client.get_latest_version("py-known-value").schema.references
    results["references"] = [each.name for each in of_order]
    try:
        client.register_schema("py-avro-value", Schema(BROKEN, "AVRO"))
    except SchemaRegistryError as error:
        results["refused"] = [error.http_status_code, error.error_code]
    results["compatible"] = client.test_compatibility("py-avro-value", Schema(BROKEN, "AVRO"))
    results["latest"] = client.get_latest_version("py-avro-value").version
    client.set_compatibility("py-avro-value", "NONE")
    results["level"] = client.get_compatibility("py-avro-value")
    results["second"] = client.get_version("py-avro-value", 1).version
    client.register_schema("py-avro-value", Schema(BROKEN, "AVRO"))
    results["versions"] = client.get_versions("py-avro-value")
    results["deleted"] = client.delete_subject("py-avro-value")
    client.delete_subject("py-avro-value", permanent=True)
    results["gone"] = "py-avro-value" not in client.get_subjects()
    print(json.dumps(results))


main(sys.argv[1])
