"""Authentication at a schema registry with confluent-kafka, by each of its methods."""

from __future__ import annotations

import json
import sys

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError


def main(url: str) -> None:
    results = {}
    try:
        SchemaRegistryClient({"url": url, "max.retries": 0}).get_subjects()
    except SchemaRegistryError as error:
        results["nobody"] = [error.http_status_code, error.error_code]
    inside = SchemaRegistryClient({"url": url.replace("://", "://alice:secret@")})
    results["in_url"] = inside.get_subjects()
    client = SchemaRegistryClient({"url": url, "basic.auth.user.info": "alice:secret"})
    client.register_schema("a-value", Schema('"string"', "AVRO"))
    results["by_setting"] = client.get_versions("a-value")
    print(json.dumps(results))


main(sys.argv[1])
