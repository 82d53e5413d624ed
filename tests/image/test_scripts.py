"""The image's start script: the server environment it derives. A stub `kbroker` prints it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import ROOT
from .containerfile import instructions

RUN = ROOT / "image/etc/kafka/docker/run"
STUB = "#!/bin/sh\nenv\necho WORDS=$*\n"
DEFAULTS = {
    "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
    "KBROKER_ADVERTISE": "localhost:9092",
    "KBROKER_DATA_DIR": "/var/lib/kafka/data",
    "KBROKER_HOST": "0.0.0.0",
}


def server_environment(directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which the script would start the server."""
    stub = directory / "kbroker"
    stub.write_text(STUB)
    stub.chmod(0o755)
    path = f"{directory}:{os.defpath}"
    done = subprocess.run(
        ["sh", RUN], env={"PATH": path, **environment}, capture_output=True, text=True, check=True
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found.pop("WORDS").startswith("serve --env-config --log-compat kafka")
    ignored = {"PATH", "PWD", "OLDPWD", "_", "SHLVL", "KBROKER_PORT_FILE"}
    return {name: value for name, value in found.items() if name not in ignored}


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({}, {}),
        ({"KBROKER_PORT": "9095"}, {"KBROKER_ADVERTISE": "localhost:9095"}),
        ({"KAFKA_NUM_PARTITIONS": "3"}, {}),
        ({"KAFKA_LISTENERS": "A://:1"}, {"KBROKER_HOST": None, "KBROKER_ADVERTISE": None}),
        ({"KAFKA_CFG_LISTENERS": "A://:1"}, {"KBROKER_HOST": None, "KBROKER_ADVERTISE": None}),
        (
            {"KAFKA_ADVERTISED_LISTENERS": "A://b:1"},
            {"KBROKER_HOST": None, "KBROKER_ADVERTISE": None},
        ),
        (
            {"KAFKA_ADVERTISED_HOST_NAME": "b"},
            {"KBROKER_HOST": None, "KBROKER_ADVERTISE": None},
        ),
        ({"KAFKA_ADVERTISED_PORT": "1"}, {"KBROKER_HOST": None, "KBROKER_ADVERTISE": None}),
        ({"KBROKER_CFG_ADVERTISED_LISTENERS": "PLAINTEXT://b:1"}, {"KBROKER_ADVERTISE": None}),
        ({"KAFKA_LOG_DIRS": "/a"}, {"KBROKER_DATA_DIR": None}),
        ({"KBROKER_MEMORY": "1"}, {"KBROKER_DATA_DIR": None}),
        ({"CLUSTER_ID": "x"}, {"CLUSTER_ID": "x"}),
        ({"KAFKA_KRAFT_CLUSTER_ID": "y"}, {"CLUSTER_ID": "y"}),
        ({"KBROKER_CLUSTER": "etcd://e:1/main"}, {"CLUSTER_ID": None}),
    ],
)
def test_unset_variables_get_defaults(
    given: dict[str, str], differs: dict[str, str | None], tmp_path: Path
) -> None:
    expected = {**DEFAULTS, **given, **differs}
    assert server_environment(tmp_path, given) == {
        name: text for name, text in expected.items() if text is not None
    }


def test_settings_file_replaces_defaults_of_listeners_and_directories(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a file\n listeners = A://:1\nlog.dir=/b\n")
    found = server_environment(tmp_path, {"KBROKER_CONFIG": str(file)})
    assert found.keys() == {"CLUSTER_ID", "KBROKER_CONFIG"}


def test_containerignore_includes_files_of_containerfile() -> None:
    text = (ROOT / "Containerfile").read_text()
    sent = (ROOT / ".containerignore").read_text().splitlines()
    copied = [arguments.split()[0] for name, arguments in instructions(text) if name == "COPY"]
    assert copied == [".", "--from=wheel", "image/"]
    for each in sent:
        if each.startswith("!") and each != "!dist":  # builds create it
            assert (ROOT / each[1:]).exists()
    for name in ("Containerfile", "image/etc/confluent/docker/run"):
        assert (ROOT / name).exists()
    for script in (ROOT / "image").rglob("*"):
        assert script.is_dir() or os.access(script, os.X_OK), script
