"""All unit tests with compiled modules, and the wheel that pip builds of them; see soak.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..release.long_release import MINORS, found_python, made, smoked
from . import runs
from .making import ROOT, make

NOT_OF_A_COPY = "--ignore=tests/mutants"
"""They ask git about their own checkout."""


def test_all_unit_tests_pass_with_compiled_modules() -> None:
    folder = make(ROOT / ".work" / "compiled")
    outcome = runs.run(
        folder, "-m", "not spark", "-n", "3", "--dist=loadfile", "-rs", NOT_OF_A_COPY, "tests"
    )
    left_out = [line for line in outcome.said.splitlines() if line.startswith("SKIPPED")]
    print("", *left_out, sep="\n")
    print(f"\nfigures: {outcome.passed} passed, {outcome.skipped} left out")
    assert outcome.skipped < outcome.passed / 100


@pytest.mark.parametrize("minor", MINORS)
def test_pip_builds_a_wheel_with_compiled_modules(minor: int, tmp_path: Path) -> None:
    own, install = made(tmp_path, found_python(minor))
    environment = os.environ | {"KBROKER_COMPILE": "1"}
    subprocess.run([*install, str(ROOT)], env=environment, check=True)
    said = subprocess.check_output([own, "-P", "-m", "kbroker", "--version"], text=True)
    assert "compiled" in said
    print(f"\nfigures: Python 3.{minor}: {smoked(own, tmp_path, 'base')}")


def test_a_wheel_is_for_every_python_and_machine_unless_it_is_asked_for(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
