"""Completion scripts, run by the shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli.completion import SHELLS

from ..commands import invoke

BASH = """
source "$SCRIPT"
compopt() { echo "compopt $*"; }
COMP_LINE=$LINE COMP_POINT=${#LINE}
_kbroker_completion kbroker
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a program `kbroker`."""
    program = tmp_path / "kbroker"
    code = "from kbroker.cli import main; main(prog_name='kbroker')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kbroker topic create -c cleanup", ["compopt -o nospace", "cleanup.policy="]),
        ("kbroker topic create -c cleanup.policy=", ["compact", "delete"]),
        ("kbroker topic create --file ", ["compopt -o default", ""]),
        ("kbroker topic de", ["describe", "delete"]),
        ("kbroker nothing topi", ["topic"]),
    ],
)
def test_bash_script_proposes_words(
    line: str, expected: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(invoke("completion", "bash").stdout)
    done = subprocess.run(
        ["bash", "-c", BASH],
        env=environment | {"SCRIPT": str(script), "LINE": line},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == expected
    assert done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_script_has_valid_syntax(shell: str, tmp_path: Path) -> None:
    assert shutil.which(shell), f"{shell} is missing: `make test` installs it"
    script = tmp_path / "script"
    script.write_text(invoke("completion", shell).stdout)
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
