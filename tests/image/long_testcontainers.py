"""Kafka modules of Testcontainers with the image; part of the soak test `image`.

The tests take command, environment and start script from the modules, without a container engine.
The script runs unchanged. `make -C compat-tests testcontainers` installs the modules.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import ROOT, Start, wait_for_line
from .test_image import output_of

COMPAT = ROOT / "compat-tests"
WORK = Path(os.environ.get("KBROKER_COMPAT_WORK", ROOT / ".work/compat"))
LOOP_SECONDS = 0.3


class Plan(NamedTuple):
    """The configuration of a module; `script` is copied to `path` in the running container."""

    command: list[str]
    environment: dict[str, str]
    path: str
    script: str
    until: str


def java(kind: str) -> Plan:
    """Return the plan of Testcontainers for Java."""
    command = ["java", "-cp", f"{WORK}/testcontainers-java/lib/*"]
    source = str(COMPAT / "testcontainers/StartScripts.java")
    done = subprocess.run([*command, source, kind], capture_output=True, text=True, check=True)
    rows: dict[str, list[list[str]]] = {}
    for line in done.stdout.splitlines():
        key, *values = line.split(" ")
        rows.setdefault(key, []).append([base64.b64decode(each).decode() for each in values])
    ((path, script),) = rows["script"]
    arguments = [*rows.get("entrypoint", [[]])[0], *rows["command"][0]]
    environment = {name: value for name, value in rows["env"]}
    return Plan(arguments, environment, path, script, rows["until"][0][0])


def python(kind: str) -> Plan:
    """Return the plan of Testcontainers for Python."""
    command = [f"{WORK}/testcontainers-python/bin/python"]
    source = str(COMPAT / "testcontainers/start_scripts.py")
    done = subprocess.run([*command, source, kind], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    path, script = found["script"]
    return Plan(found["command"], found["environment"], path, script, found["until"])


def go(_kind: str) -> Plan:
    """Return the plan of Testcontainers for Go, whose script is a string in its source."""
    module = json.loads((WORK / "testcontainers-go/module.json").read_text())
    source = Path(module["Dir"], "kafka.go").read_text()
    (script,) = re.findall(r"starterScriptContent = `(.*?)`", source, re.DOTALL)
    (path,) = re.findall(r'starterScript\s*= "(.*?)"', source)
    (environment,) = re.findall(r"// envVars \{\n(.*?)// \}", source, re.DOTALL)
    settings = dict(re.findall(r'"(KAFKA_\w+)":\s*"(.*?)",', environment))
    settings["KAFKA_LOG_FLUSH_INTERVAL_MESSAGES"] = str(2**63 - 1)
    settings["KAFKA_CONTROLLER_QUORUM_VOTERS"] = "1@localhost:9094"
    loop = f"while [ ! -f {path} ]; do sleep 0.1; done; bash {path}"
    (until,) = re.findall(r'wait.ForLog\("(.*?)"\)', source)
    script = script % ("PLAINTEXT://localhost:9093", "broker")
    return Plan(["sh", "-c", loop], settings, path, script, until)


MODULES: dict[str, tuple[Callable[[str], Plan], str]] = {
    "java-kafka": (java, "kafka"),
    "java-confluent": (java, "confluent"),
    "java-old-zookeeper": (java, "old-zookeeper"),
    "java-old-kraft": (java, "old-kraft"),
    "python-zookeeper": (python, "zookeeper"),
    "python-kraft": (python, "kraft"),
    "go": (go, ""),
}


@pytest.mark.parametrize("module", MODULES)
def test_start_script_of_testcontainers_module_starts_broker(module: str, start: Start) -> None:
    assert shutil.which("java") is not None
    describe, kind = MODULES[module]
    plan = describe(kind)
    container = start(plan.command, plan.environment, until=None)
    container.put(plan.path, plan.script)
    wait_for_line(container, plan.until)
    listeners = dict(
        re.findall(r"([\w-]+)://([\w.-]+:\d+)", re.sub(r"\$\(.*?\)", "broker", plan.script))
    )
    assert {"PLAINTEXT", "BROKER"} <= listeners.keys()
    for number, address in enumerate(listeners.values()):
        server = ("--bootstrap-server", address)
        topic = f"topic-{number}"
        output_of(container, "kafka-console-producer", *server, "--topic", topic, stdin="hello\n")
        read = ("--topic", topic, "--from-beginning", "--max-messages", "1")
        assert output_of(container, "kafka-console-consumer", *server, *read) == "hello\n"
    cluster = plan.environment.get("CLUSTER_ID")
    assert cluster is None or f"cluster {cluster}" in container.log_text()
    assert container.process.poll() is None
    print(f"figures: {module}: {len(listeners)} listeners, {plan.until!r}")
