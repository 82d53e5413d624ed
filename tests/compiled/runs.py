"""Test runs against a copy with compiled modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PRINT_MODULE_PATH = "import kbroker.net.connection as one; print(one.__file__)"
PLUGIN = "tests.compiled.twin"


class Outcome(NamedTuple):
    """Number of passed and skipped tests, and the output of pytest."""

    passed: int
    skipped: int
    output: str


def run(directory: Path, *arguments: str) -> Outcome:
    """Run tests against a copy. Fails if a test fails or the copy is not compiled."""
    environment = os.environ | {"PYTHONPATH": str(directory)}
    environment.pop("PYTEST_XDIST_WORKER", None)  # this process may be a worker of pytest-xdist
    printed = subprocess.check_output(
        [sys.executable, "-c", PRINT_MODULE_PATH], cwd=directory, env=environment, text=True
    )
    assert Path(printed.strip()).suffix in (".so", ".pyd")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = ended.stdout
    assert ended.returncode == 0, output[-20_000:]
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (passed|skipped)", output)}
    return Outcome(counts["passed"], counts.get("skipped", 0), output)
