"""`kbroker registry` and records with schemas, with kbroker's registry and with Apicurio's."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from harness.brokers import free_port
from harness.clients import eventually
from harness.places import environment

from kbroker.cli import main
from kbroker.testing import LocalBroker

SECONDS = 120
FILES: dict[str, Any] = {
    "first.avsc": {"type": "record", "name": "o", "fields": [{"name": "id", "type": "int"}]},
    "second.avsc": {
        "type": "record",
        "name": "o",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "c", "type": "string", "default": ""},
        ],
    },
    "wrong.avsc": {"type": "record", "name": "o", "fields": [{"name": "id", "type": "string"}]},
    "order.json": {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "required": ["id"],
    },
    "order.proto": 'syntax = "proto3";\npackage shop;\nmessage Order { int32 id = 1; }\n',
}
# Expected exit status and command; {} is the directory of the files.
COMMANDS: list[tuple[int, str]] = [
    (0, "registry list -o json"),
    (0, "registry level set BACKWARD"),
    (0, "registry register avro-value {}/first.avsc"),
    (0, "registry register avro-value {}/first.avsc"),
    (0, "registry check avro-value {}/second.avsc"),
    (0, "registry register avro-value {}/second.avsc"),
    (1, "registry check avro-value {}/wrong.avsc"),
    (1, "registry register avro-value {}/wrong.avsc"),
    (1, "registry check missing {}/first.avsc"),
    (0, "registry register proto-value {}/order.proto"),
    (0, "registry register json-value {}/order.json"),
    (0, "registry list -o json"),
    (0, "registry show avro-value:1 --schema"),
    (0, "registry show avro-value -o json"),
    (1, "registry show avro-value:9"),
    (1, "registry show missing"),
    (0, "registry compare avro-value"),
    (0, "registry level get avro-value"),
    (0, "registry level set FULL avro-value"),
    (0, "registry level get avro-value"),
    (0, "registry level unset avro-value --yes"),
    (0, "registry level get avro-value"),
    (0, 'topic produce avro --value-schema avro-value {"id":1,"c":"x"}'),
    (0, 'topic produce avro --value-schema avro-value:1 {"id":2}'),
    (1, 'topic produce avro --value-schema avro-value {"id":"x"}'),
    (1, 'topic produce avro --value-schema missing {"id":1}'),
    (1, 'topic produce avro --value-schema 99999 {"id":1}'),
    (0, 'topic produce proto --value-schema proto-value {"id":1}'),
    (0, 'topic produce json --value-schema json-value {"id":1}'),
    (1, 'topic produce json --value-schema json-value {"id":"1"}'),
    (0, 'topic produce file --value-schema @{}/first.avsc {"id":1}'),
    *((0, f"topic consume {name} -o :end") for name in ("avro", "proto", "json", "file")),
    (0, "registry delete avro-value --yes"),
    (1, "registry delete missing --yes"),
    (1, "registry show avro-value"),
]
# Registries choose IDs, and word their own errors and the reasons of incompatible schemas.
VOLATILE = re.compile(
    r'\bID \d+|"(?:latest_)?id": \d+|"value_schema_id": \d+|"timestamp": \d+|timestamp \d+'
    r"|http://[^ ]+|(?<=kbroker: )(?:Subject|Version|No) [^\n]*(?=;)"
)
REASONS = re.compile(r"(incompatible with \S+ \(\w+\)|not registered).*", re.DOTALL)


def run(broker: LocalBroker, url: str, directory: Path) -> dict[str, tuple[int, str]]:
    """Return exit status and output of each command; a repeated one has a number."""
    found: dict[str, tuple[int, str]] = {}
    environ = {"KBROKER_BOOTSTRAP": broker.bootstrap_servers, "KBROKER_PROFILES": "/nonexistent"}
    for number, (_, command) in enumerate(COMMANDS):
        words = [each.replace("{}", str(directory)) for each in command.split()]
        done = CliRunner(env=environ).invoke(
            main, [*words, "--registry", url], catch_exceptions=False
        )
        output = REASONS.sub(r"\1", VOLATILE.sub("...", done.stdout + done.stderr))
        found[f"{number} {command}"] = done.exit_code, output
    return found


@contextmanager
def apicurio(directory: Path) -> Iterator[str]:
    """Start Apicurio Registry with its store in memory, and yield the URL of Confluent's API."""
    (jar,) = environment("apicurio").glob("*-runner.jar")
    port = free_port()
    options = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (directory / "apicurio.log").open("wb") as log:
        command = ["java", "-Xmx512m", *options, "-jar", str(jar)]
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
        try:
            eventually(lambda: _subjects(url), lambda found: found == [], "Apicurio", SECONDS)
            yield url
        finally:
            process.kill()
            process.wait()


def _subjects(url: str) -> Any:
    """Return the subjects of a registry, or None if it does not respond."""
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=SECONDS) as response:
            return json.load(response)
    except OSError:
        return None


def test_commands_print_same_with_both_registries(tmp_path: Path) -> None:
    for name, content in FILES.items():
        # kbroker's registry returns JSON without spaces.
        compact = json.dumps(content, separators=(",", ":"))
        text = content if isinstance(content, str) else compact
        (tmp_path / name).write_text(text)
    topics = ["avro", "proto", "json", "file"]
    with LocalBroker(topics=topics, schema_registry=True) as broker:
        ours = run(broker, broker.schema_registry_url, tmp_path)
    with LocalBroker(topics=topics) as broker, apicurio(tmp_path) as url:
        theirs = run(broker, url, tmp_path)
    different = [
        f"{command}\n  kbroker  {ours[command]}\n  Apicurio {theirs[command]}"
        for (status, _), command in zip(COMMANDS, ours, strict=True)
        if ours[command] != theirs[command] or ours[command][0] != status
    ]
    assert not different, "\n".join(different)
