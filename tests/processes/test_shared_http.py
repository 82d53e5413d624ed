"""One console, metrics address and schema registry of `kbroker serve --processes`."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from ..ports import free_ports
from .commands import serve_error, wait_until_healthy
from .test_supervisor import running_supervisor

pytestmark = pytest.mark.slow

SECONDS = 60
UP = 'kbroker_node_metrics_up{{kbroker_node="{}"}} {}'


def read(url: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        text: str = response.read().decode()
        return text


def test_one_http_address_serves_all_nodes_while_nodes_restart(tmp_path: Path) -> None:
    port = free_ports(2)
    flags = ("--http-port", str(port), "--registry-port", str(port + 1))
    http, registry = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    with running_supervisor(tmp_path, *flags) as server:
        ready = server.start_and_wait()
        assert (ready["http"], ready["schema_registry"]) == (http, registry)
        assert server.log.count(f"  Console  {http}/console/\n") == 1
        assert server.log.count(f"  Schemas  {registry}\n") == 1
        assert "kbroker" in read(f"{http}/console/")
        text = read(f"{http}/metrics")
        for node in (1, 2, 3):
            assert UP.format(node, "1.0") in text
            assert f'process_resident_memory_bytes{{kbroker_node="{node}"}}' in text
        schema = json.dumps({"schema": '"string"'}).encode()
        assert json.loads(read(f"{registry}/subjects/s/versions", schema))["id"] == 1
        # Another node takes over from each node that served the address.
        for _ in range(2):
            node = json.loads(read(f"{http}/readyz"))["node_id"]
            os.kill(server.pid_of(node), signal.SIGKILL)
            assert json.loads(read(f"{http}/livez"))
            assert json.loads(read(f"{registry}/subjects")) == ["s"]
            wait_until_healthy(server.bootstrap)
        text = read(f"{http}/metrics")
        assert all(UP.format(node, "1.0") in text for node in (1, 2, 3))
        server.stop()


def test_http_port_in_use_and_that_of_a_node_are_rejected(tmp_path: Path) -> None:
    first = free_ports(4)
    flags = ("--processes", "3", "--port", str(first), "--data-dir", str(tmp_path / "d"))
    output = serve_error(*flags, "--http-port", str(first + 3))
    assert output.endswith(
        f"http.port and PLAINTEXT://localhost:{first + 3} have the same port; give one of them "
        "another one"
    )
    assert not (tmp_path / "d").exists()
