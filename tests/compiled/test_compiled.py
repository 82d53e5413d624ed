"""Tests with compiled modules of the code that each request runs through.

`make soak PART=compiled` runs all other tests with compiled modules.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from . import runs
from .making import make

TESTS = (
    "tests/net/test_readiness_poller.py",
    "tests/net/test_connection.py",
    "tests/handlers/test_fetch.py",
    "tests/net/test_connection_order.py",
    "tests/handlers/test_produce.py",
    "tests/protocol/test_framing.py",
    "tests/protocol/test_records.py",
    "tests/replication/test_racks.py",
    "tests/storage/test_log.py",
    "tests/storage/test_producer_state.py",
    "tests/storage/test_segment.py",
    "tests/testing/test_local.py",
)


HAS_COMPILER = (
    shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="a C compiler and Python's headers are required"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("compiled"))


def test_tests_pass_with_compiled_modules(copy: Path) -> None:
    outcome = runs.run(copy, *TESTS)
    assert outcome.passed > 500
    assert outcome.skipped < outcome.passed / 20


def test_version_option_shows_compiled_modules(copy: Path) -> None:
    def version(directory: Path) -> str:
        command = [sys.executable, "-m", "kbroker", "--version"]
        return subprocess.check_output(command, cwd=directory, text=True).strip()

    assert version(copy).endswith(", compiled")
    assert "compiled" not in version(Path(__file__).parents[2])


def test_editable_install_with_compilation_is_rejected(copy: Path) -> None:
    command = [sys.executable, "setup.py", "editable_wheel"]
    ended = subprocess.run(
        command,
        cwd=copy,
        env={"KBROKER_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode
    assert "install without --editable" in ended.stderr
