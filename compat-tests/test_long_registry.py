"""Unmodified clients of schema registries against kbroker's, and Avro's own library on what reads what."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from harness.avro_cases import Cases
from harness.java import command_line
from harness.places import COMPAT, environment, environment_python

from kbroker.config import BrokerConfig
from kbroker.schemas.core.avro import AvroSchema
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.limits import Budget
from kbroker.schemas.service import RegistryService
from kbroker.testing import LocalBroker

SECONDS = 300
CASES, SEED = 300, 1


@pytest.fixture
def url() -> Iterator[str]:
    """Where a broker serves schemas."""
    service = RegistryService(BrokerConfig.load(options={"registry.port": "0"}))
    with LocalBroker(service=service):
        yield f"http://{service.endpoint_of(1)}"


def told(*command: str) -> dict[str, Any]:
    """What a client was told."""
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS)
    assert not done.returncode, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_serialisers_of_confluent_kafka(url: str) -> None:
    python = str(environment_python("registry"))
    assert told(python, str(COMPAT / "registry" / "serialisers.py"), url) == {
        "avro": {"a": 7},
        "frame": 0,
        "json": {"a": 7},
        "protobuf": 7,
        "struct": 7.0,
        "py-order": [7, 8, 9],
        "py-known": [7, 8, 9],
        "references": ["shop/line.proto"],
        "refused": [409, 409],
        "compatible": False,
        "latest": 1,
        "level": "NONE",
        "second": 1,
        "versions": [1, 2],
        "deleted": [1, 2],
        "gone": True,
    }


def test_users_log_in_with_confluent_kafka() -> None:
    script = COMPAT / "registry" / "logins.py"
    with LocalBroker(schema_registry=True, users={"alice": "secret"}) as broker:
        found = told(str(environment_python("registry")), str(script), broker.schema_registry_url)
    assert found == {"nobody": [401, 401], "in_url": [], "by_setting": [1]}


def test_values_of_spark_and_of_confluent_kafka_are_the_same(url: str) -> None:
    python = str(environment_python("registry"))
    assert told(python, str(COMPAT / "registry" / "spark_values.py"), url) == {
        "same": True,
        "ours": {"a": 7, "b": "x"},
        "theirs": {"a": 7, "b": "x"},
    }


def test_clients_for_node(url: str) -> None:
    folder = environment("registry-node")
    node = str(environment("node") / "node")
    assert told(node, str(folder / "driver.mjs"), url) == {
        "kafkajs AVRO": 7,
        "kafkajs JSON": 7,
        "kafkajs PROTOBUF": 7,
        "kafkajs found": True,
        "kafkajs refused": 409,
        "confluent AVRO": 7,
        "confluent JSON": 7,
        "confluent compatible": False,
        "confluent versions": [1],
        "confluent deleted": [1],
    }


def test_clients_for_go(url: str) -> None:
    assert told(str(environment("registry-go") / "driver"), url) == {
        "sr compatible": False,
        "sr level": "FULL",
        "sr refused": True,
        "sr same id": True,
        "sr subjects": 3,
        "sr text": True,
        "sr types": 3,
        "sr versions": 2,
        "srclient compatible": False,
        "srclient gone": True,
        "srclient latest": 2,
        "srclient level": "FULL",
        "srclient references": 1,
        "srclient refused": True,
        "srclient same id": True,
        "srclient value": 7,
        "srclient versions": [1, 2],
    }


def ours(reader: str, writer: str) -> tuple[str, str]:
    """What we make of two schemas, and the text of the first one."""
    try:
        parsed = AvroSchema(reader)
        found = [*parsed.differences(AvroSchema(writer), Budget())]
    except RegistryError:
        return "INVALID", ""
    return ("INCOMPATIBLE" if found else "COMPATIBLE"), parsed.canonical


def test_readers_take_what_they_take_with_avros_own_library() -> None:
    cases = Cases(SEED)
    pairs = [cases.pair() for _ in range(CASES)]
    command = command_line("avro-1.12", str(COMPAT / "java" / "AvroReads.java"))
    given = "".join(f"{reader}\n{writer}\n" for reader, writer in pairs)
    done = subprocess.run(
        command, input=given, text=True, capture_output=True, check=True, timeout=SECONDS
    )
    differences = []
    kinds = set()
    for (reader, writer), line in zip(pairs, done.stdout.splitlines(), strict=True):
        said, _, text = line.partition("\t")
        found, canonical = ours(reader, writer)
        kinds.add(said)
        if (said, text if canonical else "") != (found, canonical):
            differences.append((said, found, reader, writer, text))
    assert differences == []
    assert kinds >= {"COMPATIBLE", "INCOMPATIBLE"}
