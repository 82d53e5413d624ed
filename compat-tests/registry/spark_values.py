"""Values of `kbroker.spark.avro` and those of confluent-kafka's serialisers: each reads the other's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

sys.path.insert(0, str(Path(__file__).parents[2]))

from kbroker.spark.avro import Decoder, Encoder

FIELDS = '{"name":"a","type":"int"},{"name":"b","type":["null","string"],"default":null}'
SCHEMA = f'{{"type":"record","name":"R","fields":[{FIELDS}]}}'


def main(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    at = SerializationContext("orders", MessageField.VALUE)
    theirs = AvroSerializer(client, SCHEMA)({"a": 7, "b": "x"}, at)
    ours = Encoder.registered(url, "orders-value", SCHEMA).encode({"a": 7, "b": "x"})
    told = {
        "same": theirs == ours,
        "ours": AvroDeserializer(client)(ours, at),
        "theirs": Decoder(url).decode(theirs),
    }
    print(json.dumps(told))


main(sys.argv[1])
