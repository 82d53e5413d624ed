"""The registry of `kbroker serve`: its flags, what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..broker.test_serve import SECONDS, refused, serving, wait_for
from ..web.test_serving import RUN


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=SECONDS) as answer:
        return json.loads(answer.read())


@contextmanager
def registry_at(folder: Path, run: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server with a registry on a data folder."""
    port_file = folder / f"ready-{run}.json"
    flags = ("--data-dir", str(folder / "data"), "--port", "0", "--registry-port", "0")
    with serving(*flags, "--port-file", str(port_file)) as process:
        yield process, json.loads(wait_for(port_file))["schema_registry"]


@pytest.mark.slow
def test_banner_and_event_say_where_it_is(tmp_path: Path) -> None:
    with registry_at(tmp_path, 0) as (process, url):
        assert ask(f"{url}/subjects") == []
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=SECONDS)
    assert f"  Schemas  {url}\n" in output
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.slow
def test_each_of_several_processes_serves_the_same_schemas(tmp_path: Path) -> None:
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


def test_it_is_not_served_where_clients_have_to_log_in() -> None:
    done = refused("--memory", "--port", "0", "--registry-port", "0", "--tls-dev")
    assert done.returncode == 3
    assert "asks for no login" in done.stderr


def test_beyond_this_machine_it_is_worth_a_word_or_refused() -> None:
    flags = ("--memory", "--port", "0", "--registry-host", "0.0.0.0", "--registry-port", "0")
    done = refused(*flags, "--strict")
    assert done.returncode == 3
    assert "can register and delete schemas" in done.stderr


def test_without_the_extra_the_command_that_helps_is_named() -> None:
    command = [sys.executable, "-c", RUN, "-", "hypercorn,starlette,jsonschema,google"]
    flags = ["serve", "--memory", "--port", "0", "--registry-port", "0"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 3
    assert "pip install 'kbroker[registry]'" in done.stderr
