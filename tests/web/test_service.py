"""HTTP of `kbroker serve`: flags, output, and no cost if it is disabled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ..cli.test_serve import SECONDS, run_serve, serving, wait_for

LIBRARIES = ("hypercorn", "starlette", "prometheus_client", "anyio", "h11", "h2", "http")


def status_of(url: str) -> int:
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        status: int = response.status
        return status


@pytest.mark.slow
def test_banner_and_event_contain_http_address(tmp_path: Path) -> None:
    port_file = tmp_path / "ready.json"
    flags = ("--memory", "--port", "0", "--http-port", "0", "--port-file", str(port_file))
    with serving(*flags) as process:
        ready = json.loads(wait_for(port_file))
        assert status_of(f"{ready['http']}/readyz") == 200
        assert ready["nodes"][0]["http"] == ready["http"]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=SECONDS)
    assert f"  HTTP     {ready['http']}/metrics\n" in output
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.slow
def test_http_is_served_with_control_port(tmp_path: Path) -> None:
    port_file = tmp_path / "ready.json"
    flags = ("--memory", "--port", "0", "--http-port", "0", "--control-port", "0", "--nodes", "2")
    with serving(*flags, "--port-file", str(port_file)) as process:
        ready = json.loads(wait_for(port_file))
        urls = [each["http"] for each in ready["nodes"]]
        assert [status_of(f"{each}/readyz") for each in urls] == [200, 200]
        assert [status_of(f"{each}/api/v1/tests") for each in urls] == [200, 200]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.mark.slow
def test_processes_have_own_http_besides_that_of_server(tmp_path: Path) -> None:
    port_file = tmp_path / "ready.json"
    flags = ("--processes", "2", "--data-dir", str(tmp_path / "data"), "--port", "0")
    with serving(*flags, "--http-port", "0", "--port-file", str(port_file)) as process:
        ready = json.loads(wait_for(port_file))
        urls = [ready["http"], *(each["http"] for each in ready["nodes"])]
        assert len(set(urls)) == 3
        assert [status_of(f"{each}/readyz") for each in urls] == [200, 200, 200]
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert output.count("  HTTP     ") == 1
    assert f"  HTTP     {ready['http']}/metrics\n" in output


@pytest.mark.slow
def test_exposed_address_is_warned_about_or_rejected() -> None:
    flags = ("--memory", "--port", "0", "--http-host", "0.0.0.0", "--http-port", "0")
    done = run_serve(*flags, "--strict")
    assert done.returncode == 3
    assert "anyone who can reach 0.0.0.0 can read metrics" in done.stderr


RUN = """
import sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None
from kbroker.cli import main
main(sys.argv[3:])
"""


@pytest.mark.slow
def test_missing_extra_is_reported_with_install_command() -> None:
    command = [sys.executable, "-c", RUN, "-", "hypercorn,starlette,prometheus_client"]
    flags = ["serve", "--memory", "--port", "0", "--http-port", "0"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 3
    assert "--http-port needs " in done.stderr
    assert "pip install 'kbroker[console]'" in done.stderr


COUNT = """
import sys
import trio
import kbroker
from kbroker.process.options import ServeOptions
from kbroker.process import serving

async def stop(self, nodes):
    print(*sys.modules)
    self.stop.cancel()

serving._Serving._announce = stop
serving.run_server(ServeOptions(memory=True, port=0))
"""


@pytest.mark.slow
def test_start_without_http_imports_no_web_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    loaded = done.stdout.splitlines()[0].split()
    assert "kbroker.net.server" in loaded
    assert [each for each in loaded if each.split(".")[0] in LIBRARIES] == []
    assert [each for each in loaded if each.startswith("kbroker.web")] == []
