"""Each way to install kbroker on a machine, from a local wheel and with empty caches.

The lines that start with "figures:" are the seconds from the first command to the first record, with
the download of all dependencies.
"""

from __future__ import annotations

import hashlib
import http.server
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from harness.channels import (
    channel_program,
    clean_environment,
    copy_checkout,
    directory_of,
    first_record,
    node_program,
    output_of,
)
from harness.places import ROOT

CLIENT = "installation"
PYTHON = str(Path(sys.executable).resolve())
NODE_PACKAGE = ROOT / "release/channels/npm"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    checkout = copy_checkout(directory / "checkout")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", directory]
    subprocess.run([*command, checkout], check=True)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packed Node package."""
    directory = tmp_path_factory.mktemp("npm")
    npm = [*node_program("npm"), "pack", "--silent", str(NODE_PACKAGE)]
    return directory / output_of(npm, clean_environment(directory / "home"), directory).strip()


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return clean_environment(tmp_path / "home")


class Started(NamedTuple):
    """Clock, and the processor time of the processes that had ended, at the first command."""

    clock: float
    processor: float


def start_measurement() -> Started:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Started(time.monotonic(), used.ru_utime + used.ru_stime)


def report(channel: str, started: Started) -> None:
    now = start_measurement()
    print(
        f"figures: {channel}: first record after {now.clock - started.clock:.1f} s, "
        f"with {now.processor - started.processor:.1f} s of CPU time"
    )


def test_pip_installs_broker_that_stores_record(
    wheel: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    started = start_measurement()
    output_of([PYTHON, "-m", "venv", "kafka"], variables, tmp_path)
    pip = [str(tmp_path / "kafka/bin/pip"), "install", "-q", str(wheel)]
    output_of(pip, variables, tmp_path)
    first_record([str(tmp_path / "kafka/bin/kbroker")], variables, tmp_path)
    report("pip", started)


def test_uvx_runs_broker_that_stores_record(
    wheel: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    variables["UV_PYTHON"] = PYTHON
    started = start_measurement()
    first_record([channel_program("uvx"), str(wheel)], variables, tmp_path)
    report("uvx", started)


def test_pipx_installs_broker_that_stores_record(
    wheel: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    variables["PIPX_DEFAULT_PYTHON"] = PYTHON
    started = start_measurement()
    output_of([channel_program("pipx"), "install", str(wheel)], variables, tmp_path)
    first_record([str(tmp_path / "home/.local/bin/kbroker")], variables, tmp_path)
    report("pipx", started)


def npx_variables(
    variables: dict[str, str], wheel: Path, directory: Path, **programs: str
) -> dict[str, str]:
    """Return variables with a PATH of Node and some programs only."""
    (node, _) = node_program("npx")
    path = directory_of({"node": node, **programs}, directory / "programs")
    return {**variables, "PATH": path, "KBROKER_PACKAGE": str(wheel)}


def npx_command(tarball: Path, directory: Path) -> list[str]:
    """Return the command line that runs the tarball from a directory with a copy of it."""
    shutil.copy(tarball, directory)
    return [*node_program("npx"), "--yes", f"./{tarball.name}"]


def test_npx_with_python_runs_broker_that_stores_record(
    wheel: Path, tarball: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    variables = npx_variables(variables, wheel, tmp_path, python3=PYTHON)
    started = start_measurement()
    first_record(npx_command(tarball, tmp_path), variables, tmp_path)
    report("npx with Python", started)


def test_npx_with_uv_runs_broker_that_stores_record(
    wheel: Path, tarball: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    variables = npx_variables(variables, wheel, tmp_path, uv=channel_program("uv"))
    variables["UV_PYTHON"] = PYTHON
    started = start_measurement()
    first_record(npx_command(tarball, tmp_path), variables, tmp_path)
    report("npx with uv", started)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """File server without log lines."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Return the directory and the URL of a mirror of uv, which contains this machine's uv."""
    directory = tmp_path / "mirror"
    directory.mkdir()
    name = f"uv-{os.uname().machine}-unknown-linux-gnu"
    archive = directory / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(os.path.realpath(channel_program("uv")), f"{name}/uv")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    Path(f"{archive}.sha256").write_text(f"{digest} *{archive.name}\n")
    handler = partial(QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield directory, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_npx_without_python_downloads_uv(
    wheel: Path,
    tarball: Path,
    variables: dict[str, str],
    mirror: tuple[Path, str],
    tmp_path: Path,
) -> None:
    """uv gets this Python, because it could not download one here."""
    directory, url = mirror
    variables = npx_variables(variables, wheel, tmp_path)
    variables |= {"UV_PYTHON": PYTHON, "UV_DOWNLOAD_URL": url}
    command = [*npx_command(tarball, tmp_path), "--version"]
    assert output_of(command, variables, tmp_path).startswith("kbroker ")
    for file in directory.iterdir():
        file.unlink()
    assert output_of(command, variables, tmp_path).startswith("kbroker "), "the cache is not used"


def test_npx_rejects_uv_with_wrong_checksum(
    wheel: Path,
    tarball: Path,
    variables: dict[str, str],
    mirror: tuple[Path, str],
    tmp_path: Path,
) -> None:
    directory, url = mirror
    (checksum,) = directory.glob("*.sha256")
    checksum.write_text("0" * 64)
    variables = npx_variables(variables, wheel, tmp_path) | {"UV_DOWNLOAD_URL": url}
    printed = output_of(
        [*npx_command(tarball, tmp_path), "--version"], variables, tmp_path, status=1
    )
    assert f"expected {'0' * 64}" in printed


def test_npx_names_package_that_cannot_be_installed(
    tarball: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    variables = npx_variables(variables, tmp_path / "missing.whl", tmp_path, python3=PYTHON)
    variables["KBROKER_CACHE_DIR"] = str(tmp_path / "cache")
    printed = output_of(
        [*npx_command(tarball, tmp_path), "--version"], variables, tmp_path, status=1
    )
    assert "missing.whl: cannot be installed" in printed
    assert "KBROKER_PACKAGE" in printed
    assert [*(tmp_path / "cache").iterdir()] == []


def test_npm_launcher_forwards_signals_and_exit_status(
    wheel: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    variables = npx_variables(variables, wheel, tmp_path, uv=channel_program("uv"))
    variables["UV_PYTHON"] = PYTHON
    launcher = [variables["PATH"] + "/node", str(NODE_PACKAGE / "bin/kbroker.js")]
    run = ["run", "--", "sh", "-c"]
    output_of([*launcher, *run, "exit 7"], variables, tmp_path, status=7)
    serve = [*launcher, "serve", "--memory", "--port", "0"]
    with subprocess.Popen(
        serve, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any(line.startswith("ready in") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 0, rest
