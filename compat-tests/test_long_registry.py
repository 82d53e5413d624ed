"""Soak tests of the schema registry with unmodified clients, Karapace and Avro's own libraries.

No package registry has Karapace ready to run. KBROKER_COMPAT_KARAPACE is the command to start it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.avro_aliases import AliasCases
from harness.avro_cases import Cases
from harness.brokers import free_port
from harness.clients import eventually
from harness.java import command_line
from harness.places import COMPAT, environment, environment_python

from kbroker.config import BrokerConfig
from kbroker.schemas.core.avro import AvroSchema
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.limits import Budget
from kbroker.schemas.service import RegistryService
from kbroker.testing import LocalBroker

SECONDS = 300
CASES, ALIAS_CASES, SEED = 300, 3000, 1
# Error of Avro for Java for a field that matches several fields; no reader can read such data.
AMBIGUOUS = "matches multiple fields in writer record schema"
KARAPACE = os.environ.get("KBROKER_COMPAT_KARAPACE")


@pytest.fixture
def url() -> Iterator[str]:
    """Return the URL of a broker's schema registry."""
    service = RegistryService(BrokerConfig.load(options={"registry.port": "0"}))
    with LocalBroker(service=service):
        yield f"http://{service.endpoint_of(1)}"


def run_client(*command: str) -> dict[str, Any]:
    """Run a client program and return its JSON output."""
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS)
    assert not done.returncode, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_confluent_kafka_serializers_work(url: str) -> None:
    python = str(environment_python("registry"))
    assert run_client(python, str(COMPAT / "registry" / "serialisers.py"), url) == {
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


def test_confluent_kafka_authenticates_at_registry() -> None:
    script = COMPAT / "registry" / "logins.py"
    with LocalBroker(schema_registry=True, users={"alice": "secret"}) as broker:
        found = run_client(
            str(environment_python("registry")), str(script), broker.schema_registry_url
        )
    assert found == {"nobody": [401, 401], "in_url": [], "by_setting": [1]}


def test_spark_and_confluent_kafka_values_are_same(url: str) -> None:
    python = str(environment_python("registry"))
    assert run_client(python, str(COMPAT / "registry" / "spark_values.py"), url) == {
        "same": True,
        "ours": {"a": 7, "b": "x"},
        "theirs": {"a": 7, "b": "x"},
        "ours protobuf": [7, 1767312000, 8],
        "theirs protobuf": True,
        "frame": ["0202", "0202"],
    }


def test_node_clients_work(url: str) -> None:
    directory = environment("registry-node")
    node = str(environment("node") / "node")
    assert run_client(node, str(directory / "driver.mjs"), url) == {
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


def test_go_clients_work(url: str) -> None:
    assert run_client(str(environment("registry-go") / "driver"), url) == {
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


class Registry:
    """A client of a registry's REST API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema and return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found: int = self.ask(f"/subjects/{subject}/versions", {"schema": text, **more})["id"]
        return found

    def everything(self) -> dict[str, Any]:
        """Return the registry's responses for all subjects."""
        subjects = self.ask("/subjects?deleted=true")
        left = self.ask("/subjects")
        return {
            "subjects": sorted(subjects),
            "left": sorted(left),
            "versions": {
                each: [
                    self.id_of(each, number) for number in self.ask(f"/subjects/{each}/versions")
                ]
                for each in left
            },
            "level": self.ask("/config")["compatibilityLevel"],
        }

    def id_of(self, subject: str, version: int) -> int:
        found: int = self.ask(f"/subjects/{subject}/versions/{version}")["id"]
        return found


@contextmanager
def karapace(command: str, bootstrap: str, directory: Path) -> Iterator[Registry]:
    """Start Karapace with a broker's schema topic."""
    port = free_port()
    settings = {
        "BOOTSTRAP_URI": bootstrap,
        "HOST": "127.0.0.1",
        "ADVERTISED_HOSTNAME": "127.0.0.1",
        "PORT": str(port),
        "KARAPACE_REGISTRY": "true",
        "KARAPACE_REST": "false",
        "PROTOBUF_RUNTIME_DIRECTORY": str(directory / "protobuf"),
    }
    environ = os.environ | {f"KARAPACE_{name}": value for name, value in settings.items()}
    with (directory / "karapace.log").open("wb") as log:
        process = subprocess.Popen(shlex.split(command), env=environ, stdout=log, stderr=log)
        try:
            found = Registry(f"http://127.0.0.1:{port}")
            eventually(lambda: _may_write(found), bool, "Karapace", SECONDS)
            yield found
        finally:
            process.kill()
            process.wait()


def _may_write(registry: Registry) -> bool:
    """Return True if the registry answers and is the primary."""
    try:
        found: bool = registry.ask("/master_available")["master_available"]
    except OSError:
        return False
    return found


def fill(registry: Registry, name: str) -> None:
    """Register schemas of all types, references and levels, and delete a subject."""
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": ""}]
    for count in (1, 2):
        schema = {"type": "record", "name": name, "fields": fields[:count]}
        registry.register(f"{name}-avro", schema)
    registry.register(f"{name}-json", {"type": "object", "title": name}, schemaType="JSON")
    line = f'syntax = "proto3"; message {name}Line {{ int32 count = 1; }}'
    registry.register(f"{name}-line", line, schemaType="PROTOBUF")
    order = (
        f'syntax = "proto3"; import "line.proto"; message {name}Order {{ {name}Line line = 1; }}'
    )
    reference = {"name": "line.proto", "subject": f"{name}-line", "version": 1}
    registry.register(f"{name}-order", order, schemaType="PROTOBUF", references=[reference])
    registry.register(f"{name}-gone", '"string"')
    registry.ask(f"/subjects/{name}-gone", method="DELETE")


def test_karapace_and_kbroker_share_schema_topic(tmp_path: Path) -> None:
    """Each registry sees the schemas of the other one, and no id is assigned twice."""
    if KARAPACE is None:
        print("figures: Karapace is not installed")
        pytest.skip(
            "no package registry has Karapace: set KBROKER_COMPAT_KARAPACE to the command that starts it"
        )
    service = RegistryService(BrokerConfig.load(options={"registry.port": "0"}))
    with LocalBroker(service=service) as broker:
        mine = Registry(f"http://{service.endpoint_of(1)}")
        fill(mine, "Ours")
        with karapace(KARAPACE, broker.bootstrap_servers, tmp_path) as other:
            eventually(other.everything, lambda it: it == mine.everything(), "the same", SECONDS)
            fill(other, "Theirs")
            other.ask("/config", {"compatibility": "NONE"}, "PUT")
            eventually(mine.everything, lambda it: it == other.everything(), "the same", SECONDS)
            known = mine.everything()
            fill(mine, "Theirs")  # all of these schemas are already registered
            assert mine.everything() == known
            last = mine.register("last", '"long"')
            ids = [each for some in known["versions"].values() for each in some]
            assert last > max(ids)
            assert len(set(ids)) == len(ids)
            eventually(lambda: other.ask("/subjects"), lambda it: "last" in it, "last", SECONDS)
            assert other.id_of("last", 1) == last
    print(
        f"\nfigures: {len(known['subjects'])} subjects written by Karapace and kbroker to one topic"
    )


def ours(reader: str, writer: str) -> tuple[str, str]:
    """Return kbroker's verdict on two schemas, and the canonical form of the first."""
    try:
        parsed = AvroSchema(reader)
        found = [*parsed.differences(AvroSchema(writer), Budget())]
    except RegistryError:
        return "INVALID", ""
    return ("INCOMPATIBLE" if found else "COMPATIBLE"), parsed.canonical


def theirs(command: list[str], pairs: list[tuple[str, str]]) -> list[str]:
    """Return the verdicts of one of Avro's own libraries, one line per pair."""
    given = "".join(f"{reader}\n{writer}\n" for reader, writer in pairs)
    done = subprocess.run(
        command, input=given, text=True, capture_output=True, check=True, timeout=SECONDS
    )
    return done.stdout.splitlines()


def test_avro_compatibility_is_same_as_avros_own_libraries() -> None:
    cases = Cases(SEED)
    pairs = [cases.pair() for _ in range(CASES)]
    java = theirs(command_line("avro-1.12", str(COMPAT / "java" / "AvroReads.java")), pairs)
    python = [str(environment_python("registry")), str(COMPAT / "registry" / "avro_reads.py")]
    differences = []
    kinds: Counter[str] = Counter()
    for pair, line, python_verdict in zip(pairs, java, theirs(python, pairs), strict=True):
        verdict, _, text = line.partition("\t")
        found, canonical = ours(*pair)
        kinds[verdict] += 1
        if (verdict, python_verdict, text if canonical else "") != (found, found, canonical):
            differences.append((verdict, python_verdict, found, *pair, text))
    assert differences == []
    assert kinds.keys() >= {"COMPATIBLE", "INCOMPATIBLE"}
    print(
        f"\nfigures: {CASES} pairs of schemas, verdicts of Avro for Java and Python and of kbroker: {dict(kinds)}"
    )


def test_aliases_of_named_types_resolve_as_in_avros_java_library() -> None:
    cases = AliasCases(SEED)
    pairs = [cases.pair() for _ in range(ALIAS_CASES)]
    java = theirs(command_line("avro-1.12", str(COMPAT / "java" / "AvroReads.java")), pairs)
    differences = []
    kinds: Counter[str] = Counter()
    for pair, line in zip(pairs, java, strict=True):
        verdict, _, text = line.partition("\t")
        found, canonical = ours(*pair)
        if verdict == "INVALID" and AMBIGUOUS in text:
            verdict, text = "INCOMPATIBLE", canonical
        kinds[verdict] += 1
        if (verdict, text) != (found, canonical):
            differences.append((verdict, found, *pair, text))
    assert differences == []
    assert min(kinds["COMPATIBLE"], kinds["INCOMPATIBLE"]) > ALIAS_CASES // 10
    print(
        f"\nfigures: {ALIAS_CASES:,} pairs of schemas with aliases, verdicts of Avro for Java and of kbroker: {dict(kinds)}"
    )
