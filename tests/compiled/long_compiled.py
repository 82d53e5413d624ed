"""All unit tests with compiled modules, and a compiled wheel: see the soak test `compiled`."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.pythons import MINORS

from ..release.long_release import (
    create_environment,
    require_python,
    run_command,
    run_smoke_test,
)
from ..repository import ROOT
from . import runs
from .making import make

# These tests ask git about their checkout or copy it, so they do not work in a copy.
NOT_OF_A_COPY = ("--ignore=tests/mutants", "--ignore=tests/compiled")


def test_all_unit_tests_pass_with_compiled_modules() -> None:
    directory = make(ROOT / ".work" / "compiled")
    outcome = runs.run(
        directory, "-m", "not spark", "-n", "3", "--dist=loadfile", "-rs", *NOT_OF_A_COPY, "tests"
    )
    skipped = [line for line in outcome.output.splitlines() if line.startswith("SKIPPED")]
    print("", *skipped, sep="\n")
    print(f"\nfigures: {outcome.passed} passed, {outcome.skipped} skipped")
    assert outcome.skipped < outcome.passed / 100


@pytest.mark.parametrize("minor", MINORS)
def test_pip_builds_a_wheel_with_compiled_modules(
    minor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment_python, install = create_environment(tmp_path, require_python(minor))
    monkeypatch.setenv("KBROKER_COMPILE", "1")
    run_command(*install, ROOT)
    assert "compiled" in run_command(environment_python, "-I", "-m", "kbroker", "--version")
    run_smoke_test(environment_python, tmp_path, "base")
    print(f"\nfigures: a wheel of Python 3.{minor}")
