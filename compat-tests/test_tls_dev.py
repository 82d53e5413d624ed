"""The output of `kbroker serve --tls-dev`, used unchanged with every client that it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.places import environment_python
from harness.secure import PYTHON, ServerInfo, secure_server
from harness.tools import Tools

CLIENT = "as printed"
KCAT = "kcat"
SCRAM_MIN_VERSION = (2, 6, 1)
SECONDS = 60

Unique = Callable[[str], str]

READ_SETTINGS = """
from confluent_kafka import Producer
settings = dict(line.rstrip("\\n").split("=", 1) for line in open({path!r}))
producer = Producer(settings)
"""
SEND_KAFKA_PYTHON = """
producer.send({topic!r}, b"hello").get(30)
producer.close()
from kafka import KafkaConsumer
consumer = KafkaConsumer({topic!r}, auto_offset_reset="earliest", **settings)
print(next(consumer).value.decode())
"""
SEND_CONFLUENT = """
producer.produce({topic!r}, b"hello")
assert producer.flush(30) == 0
from confluent_kafka import Consumer
consumer = Consumer(dict(settings, **{{"group.id": "g", "auto.offset.reset": "earliest"}}))
consumer.subscribe([{topic!r}])
message = consumer.poll(30)
assert message.error() is None, message.error()
print(message.value().decode())
consumer.close()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInfo]:
    with secure_server(tmp_path_factory.mktemp("secure")) as server:
        yield server


def test_all_named_clients_are_tested(server: ServerInfo) -> None:
    """The Spark options are tested in test_spark.py."""
    assert {*server.examples} == {"kbroker", KCAT, "Java", *PYTHON}


@pytest.mark.parametrize(
    ("environment", "named", "more"),
    [
        ("kafka-python-3", "kafka-python", SEND_KAFKA_PYTHON),
        ("kafka-python-2", "kafka-python", SEND_KAFKA_PYTHON),
        ("confluent-kafka", "confluent-kafka", SEND_CONFLUENT),
    ],
)
def test_python_client_sends_with_printed_settings(
    server: ServerInfo, unique: Unique, environment: str, named: str, more: str, tmp_path: Path
) -> None:
    topic = unique("topic")
    script = tmp_path / "script.py"
    script.write_text(server.examples[named] + more.format(topic=topic))
    assert _output(environment, script) == "hello\n"


def _output(environment: str, script: Path) -> str:
    done = subprocess.run(
        [str(environment_python(environment)), str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_sends_with_printed_command(server: ServerInfo, unique: Unique) -> None:
    """Debian's old version cannot authenticate with SCRAM, on Apache Kafka 4 either."""
    command = server.examples[KCAT]
    if _librdkafka() < SCRAM_MIN_VERSION:
        _shell(f"! {command}")
        assert "upgrade the client" in server.log.read_text()
        return
    listed = _shell(command)
    assert "broker 1 at localhost:" in listed, listed
    topic, base = unique("topic"), command.removesuffix(" -L")
    _shell(f"echo hello | {base} -P -t {topic}")
    assert _shell(f"{base} -C -t {topic} -e -q") == "hello\n"


def _librdkafka() -> tuple[int, ...]:
    found = re.search(r"librdkafka ([\d.]+)", _shell("kcat -V"))
    assert found
    return tuple(map(int, found[1].split(".")))


def test_librdkafka_settings_file_works(server: ServerInfo, unique: Unique, tmp_path: Path) -> None:
    """confluent-kafka's librdkafka reads the file that kcat reads."""
    path = shlex.split(server.examples[KCAT])[2]
    script = tmp_path / "script.py"
    script.write_text(
        READ_SETTINGS.format(path=path) + SEND_CONFLUENT.format(topic=unique("topic"))
    )
    assert _output("confluent-kafka", script) == "hello\n"


def test_java_tools_work_with_printed_command(
    server: ServerInfo, unique: Unique, tools: Tools
) -> None:
    program, *words = shlex.split(server.examples["Java"])
    listed = tools.run(program.removesuffix(".sh"), *words)
    assert listed.status == 0, listed
    connection_options = [word for word in words if word != "--list"]
    topic = unique("topic")
    sent = tools.run(
        "kafka-console-producer", *connection_options, "--topic", topic, stdin="hello\n"
    )
    assert sent.status == 0, sent
    read = tools.run(
        "kafka-console-consumer",
        *connection_options,
        *("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000"),
    )
    assert read.stdout == "hello\n", read


def test_kbroker_commands_work_with_printed_profile(
    server: ServerInfo, unique: Unique, tmp_path: Path
) -> None:
    topic = unique("topic")
    lines = [
        server.examples["kbroker"],
        f"kbroker topic create {topic}",
        f"echo hello | kbroker topic produce {topic} -q",
        f"kbroker topic consume {topic} -o :end -f '%v\\n'",
    ]
    output = _shell("\n".join(lines), KBROKER_PROFILES=str(tmp_path / "profiles.toml"))
    assert output.splitlines()[-1] == "hello", output


def _shell(text: str, **variables: str) -> str:
    """Return the output of shell commands, with this environment's programs first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env=os.environ | {"PATH": path} | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
