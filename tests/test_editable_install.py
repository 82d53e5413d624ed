"""`pip install -e .` on a system without symbolic links, where git writes each link as a text file."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from .repository import copy_repository

LINKS = ("protocol", "storage", "coordinator")
SESSION = """
import kbroker, kbroker.coordinator, kbroker.protocol, kbroker.storage
from kbroker.testing import LocalBroker
with LocalBroker() as broker:
    broker.produce("orders", "x")
    print(len(broker.records("orders")), *(module.__path__[0] for module in (
        kbroker, kbroker.protocol, kbroker.storage, kbroker.coordinator)))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the sources in which each package link is a text file with its target."""
    directory = tmp_path / "clone"
    copy_repository(directory)
    for name in LINKS:
        link = directory / "kbroker" / name
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    return directory


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the interpreter of a new environment with this one's packages, except kbroker."""
    directory = tmp_path / "environment"
    venv.create(directory)
    python = directory / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.check_output(command, text=True).strip())
    # Python ignores .pth files in a directory that is on the path in this way.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.long
def test_editable_install_works_without_symbolic_links(clone: Path, python: Path) -> None:
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    installed = subprocess.run(
        [*pip, "-e", str(clone)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert installed.returncode == 0, installed.stdout
    environment = {**os.environ, "PYTHONPATH": ""}
    output = subprocess.check_output([python, "-c", SESSION], cwd="/", text=True, env=environment)
    count, *directories = output.split()
    assert count == "1"
    assert [Path(directory) for directory in directories] == [
        clone / "kbroker",
        *(clone / n for n in LINKS),
    ]
