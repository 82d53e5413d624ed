"""Serialisers of confluent-kafka against a registry: what they write they read, in all three types."""

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
    """Return a message class with nested imports: another file, and from there one of Google."""
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
    told: dict[str, Any] = {}

    def at(topic: str) -> SerializationContext:
        return SerializationContext(topic, MessageField.VALUE)

    data = AvroSerializer(client, AVRO)({"a": 7}, at("py-avro"))
    told["avro"] = AvroDeserializer(client)(data, at("py-avro"))
    told["frame"] = data[0]
    data = JSONSerializer(JSON, client)({"a": 7}, at("py-json"))
    told["json"] = JSONDeserializer(JSON, schema_registry_client=client)(data, at("py-json"))
    options = {"use.deprecated.format": False}

    def there_and_back(
        message: Any, topic: str, asked: SchemaRegistryClient | None = client, **more: Any
    ) -> Any:
        """Serialize a message, and deserialize it with the schemas of a registry."""
        data = ProtobufSerializer(type(message), client, options | more)(message, at(topic))
        return ProtobufDeserializer(type(message), options, asked)(data, at(topic))

    # Messages of Google's it has already, and takes no second ones from a registry.
    told["protobuf"] = there_and_back(Timestamp(seconds=7), "py-protobuf", None).seconds
    struct = Struct()
    struct["a"] = 7
    told["struct"] = there_and_back(struct, "py-struct", None)["a"]
    order = order_class()(lines=[{"id": 7, "at": {"seconds": 8}}], rest={"a": {"id": 9}})
    known = {"skip.known.types": False}
    for topic, more in (("py-order", {}), ("py-known", known)):
        read = there_and_back(order, topic, **more)
        told[topic] = [read.lines[0].id, read.lines[0].at.seconds, read.rest["a"].id]
    of_order = client.get_latest_version("py-known-value").schema.references
    told["references"] = [each.name for each in of_order]
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
