"""Programs in Java, Go and Node inject faults through the control socket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from harness.java import command_line
from harness.places import COMPAT, ROOT, environment

CLIENT = "faults of others"
SECONDS = 90
SCENARIOS = [
    "a leader that moves",
    "an answer that is lost",
    "a fetch that is slow",
    "a broker that restarts",
]


def java() -> list[str]:
    return command_line("kafka-4.4", str(COMPAT / "java" / "Faults.java"))


def go() -> list[str]:
    return [str(environment("go") / "faults")]


def node() -> list[str]:
    return [str(environment("node") / "node"), str(environment("node") / "faults.mjs")]


@pytest.mark.parametrize("program", [java, go, node], ids=lambda program: program.__name__)
def test_program_injects_faults_and_client_survives(program: Callable[[], list[str]]) -> None:
    python = os.environ.get("KBROKER_PYTHON", sys.executable)
    done = subprocess.run(
        [python, "-m", "kbroker", "run", "--control", "--", *program()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == SCENARIOS
