"""Tests of this project, run with the modules of a copy that is compiled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ASK = "import kbroker.net.connection as one; print(one.__file__)"
PLUGIN = "tests.compiled.twin"


class Outcome(NamedTuple):
    """How many tests passed, how many were left out, and what pytest said."""

    passed: int
    skipped: int
    said: str


def run(directory: Path, *arguments: str) -> Outcome:
    """Run tests of a copy. Fails when one of them does, or when nothing is compiled there."""
    environment = os.environ | {"PYTHONPATH": str(directory)}
    environment.pop("PYTEST_XDIST_WORKER", None)  # what runs this may be one
    asked = subprocess.check_output(
        [sys.executable, "-c", ASK], cwd=directory, env=environment, text=True
    )
    assert Path(asked.strip()).suffix in (".so", ".pyd")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = ended.stdout
    assert ended.returncode == 0, said[-20_000:]
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (passed|skipped)", said)}
    return Outcome(counts["passed"], counts.get("skipped", 0), said)
