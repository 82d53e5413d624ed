"""The registry of `kbroker serve`: flags, banner and errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..cli.test_serve import SECONDS, run_serve, serving, wait_for
from ..web.secured import basic_auth
from ..web.test_service import RUN

ALICE = basic_auth("alice", "secret")


def ask(url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {**(headers or {})})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return json.loads(response.read())


@contextmanager
def registry_at(directory: Path, run: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server with a registry on a data directory."""
    port_file = directory / f"ready-{run}.json"
    flags = ("--data-dir", str(directory / "data"), "--port", "0", "--registry-port", "0")
    with serving(*flags, "--port-file", str(port_file)) as process:
        yield process, json.loads(wait_for(port_file))["schema_registry"]


@pytest.mark.slow
def test_banner_and_event_contain_http_address(tmp_path: Path) -> None:
    with registry_at(tmp_path, 0) as (process, url):
        assert ask(f"{url}/subjects") == []
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=SECONDS)
    assert f"  Schemas  {url}\n" in output
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.slow
def test_all_processes_serve_the_same_schemas(tmp_path: Path) -> None:
    port_file = tmp_path / "ready.json"
    flags = ("--processes", "2", "--data-dir", str(tmp_path / "data"), "--port", "0")
    with serving(*flags, "--registry-port", "0", "--port-file", str(port_file)) as process:
        ready = json.loads(wait_for(port_file))
        first, second = (each["schema_registry"] for each in ready["nodes"])
        body = {"schema": '"string"'}
        assert ask(f"{first}/subjects/a/versions", body)["id"] == 1
        assert ask(f"{second}/schemas/ids/1")["schema"] == '"string"'
        assert ask(f"{second}/subjects/b/versions", {"schema": '"int"'})["id"] == 2
        assert ask(f"{first}/subjects/b/versions") == [1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.mark.slow
def test_users_can_authenticate_at_each_process(tmp_path: Path) -> None:
    """Nodes connect to each other through the second listener, which requires authentication."""
    port_file = tmp_path / "ready.json"
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    users = 'username="node" password="hush" user_node="hush" user_alice="secret";'
    flags = [
        *("--processes", "2", "--data-dir", str(tmp_path / "data"), "--registry-port", "0"),
        *("-o", "listeners=CLIENTS://127.0.0.1:0,NODES://127.0.0.1:0"),
        *("-o", "listener.security.protocol.map=CLIENTS:PLAINTEXT,NODES:SASL_PLAINTEXT"),
        *("-o", "inter.broker.listener.name=NODES"),
        *("-o", "sasl.enabled.mechanisms=PLAIN"),
        *("-o", "sasl.mechanism.inter.broker.protocol=PLAIN"),
        *("-o", f"listener.name.nodes.plain.sasl.jaas.config={plain}{users}"),
    ]
    with serving(*flags, "--port-file", str(port_file)) as process:
        ready = json.loads(wait_for(port_file))
        first, second = (each["schema_registry"] for each in ready["nodes"])
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            ask(f"{first}/subjects")
        refused.value.close()
        for number, url in enumerate((first, second, first), 1):
            body = {"schema": json.dumps({"type": "fixed", "name": "F", "size": number})}
            assert ask(f"{url}/subjects/a-{number}/versions", body, ALICE)["id"] == number
        assert len(ask(f"{second}/subjects", None, ALICE)) == 3
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.mark.slow
def test_registry_with_users_is_not_served_on_exposed_address() -> None:
    flags = ("--memory", "--port", "0", "--registry-port", "0", "--registry-host", "0.0.0.0")
    done = run_serve(*flags, "--tls-dev")
    assert done.returncode == 3
    assert "passwords over unencrypted HTTP" in done.stderr
    assert "--registry-host" in done.stderr


@pytest.mark.slow
def test_exposed_address_is_warned_about_or_rejected() -> None:
    flags = ("--memory", "--port", "0", "--registry-host", "0.0.0.0", "--registry-port", "0")
    done = run_serve(*flags, "--strict")
    assert done.returncode == 3
    assert "can register and delete schemas" in done.stderr


@pytest.mark.slow
def test_missing_extra_is_reported_with_install_command() -> None:
    command = [sys.executable, "-c", RUN, "-", "hypercorn,starlette,jsonschema,google"]
    flags = ["serve", "--memory", "--port", "0", "--registry-port", "0"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 3
    assert "pip install 'kbroker[registry]'" in done.stderr
