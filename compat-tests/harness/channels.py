"""Installations of kbroker from a local wheel, with empty caches, and the time to the first record."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .places import ROOT, environment

INSTALL_SECONDS = 600
ACTION = "release/channels/action"
SYSTEM_PROGRAMS = ("sh", "env", "tar", "gzip", "uname")


def node_program(name: str) -> list[str]:
    """Return the command line of Node's `npm` or `npx`."""
    node = environment("node")
    return [str(node / "node"), str(node / f"wheel/lib/node_modules/npm/bin/{name}-cli.js")]


def channel_program(name: str) -> str:
    """Return the path of an installer or linter."""
    return str(environment("channels") / "bin" / name)


def copy_checkout(to: Path) -> Path:
    """Copy the files from which kbroker is built, and the action."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("kbroker", "protocol", "storage", "coordinator", ACTION):
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    return to


def clean_environment(home: Path) -> dict[str, str]:
    """Return the variables of a user whose caches are empty."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KBROKER_", "PYTEST_", "VIRTUAL_ENV", "XDG_", "PIPX_", "npm_"))
        and name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    }
    home.mkdir(parents=True, exist_ok=True)
    return kept | {"HOME": str(home), "PIP_NO_CACHE_DIR": "1"}


def directory_of(programs: Mapping[str, str], directory: Path) -> str:
    """Create a directory with links to some programs and to those that every system has."""
    directory.mkdir()
    found = {name: shutil.which(name) for name in SYSTEM_PROGRAMS}
    for name, path in {**found, **programs}.items():
        if path is not None:
            (directory / name).symlink_to(path)
    return str(directory)


def output_of(
    command: Sequence[str | Path], variables: Mapping[str, str], cwd: Path, status: int = 0
) -> str:
    """Run a command and return its output; fail with all output if its status is another one."""
    done = subprocess.run(
        [*command],
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@contextmanager
def process_group(
    command: Sequence[str], variables: Mapping[str, str], cwd: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background; stop it and its children at the end."""
    process = subprocess.Popen(
        [*command],
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def first_record(command: Sequence[str], variables: Mapping[str, str], cwd: Path) -> None:
    """Start a broker with a command line of kbroker, and write and read a record with it."""
    address_file = cwd / "address"
    options = ["--memory", "--port", "0", "--port-file", str(address_file), "--topic", "hello"]
    with process_group([*command, "serve", *options], variables, cwd) as broker:
        deadline = time.monotonic() + INSTALL_SECONDS
        while not (address_file.exists() and address_file.read_text()):
            assert broker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        address = {"KBROKER_BOOTSTRAP": address_file.read_text().strip()}
        write_and_read(command, {**variables, **address}, cwd)


def write_and_read(command: Sequence[str], variables: Mapping[str, str], cwd: Path) -> None:
    output_of([*command, "topic", "produce", "hello", "hi"], variables, cwd)
    read = output_of([*command, "topic", "consume", "hello", "-o", ":end"], variables, cwd)
    assert "hi" in read
