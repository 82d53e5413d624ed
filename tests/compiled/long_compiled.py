"""All unit tests with compiled modules, and the wheel that pip builds of them; see soak.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..release.long_release import MINORS, done, found_python, made, smoked
from ..repository import ROOT
from . import runs
from .making import make

NOT_OF_A_COPY = ("--ignore=tests/mutants", "--ignore=tests/compiled")
"""They ask git about their own checkout, or make a copy of it."""


def test_all_unit_tests_pass_with_compiled_modules() -> None:
    directory = make(ROOT / ".work" / "compiled")
    outcome = runs.run(
        directory, "-m", "not spark", "-n", "3", "--dist=loadfile", "-rs", *NOT_OF_A_COPY, "tests"
    )
    left_out = [line for line in outcome.said.splitlines() if line.startswith("SKIPPED")]
    print("", *left_out, sep="\n")
    print(f"\nfigures: {outcome.passed} passed, {outcome.skipped} left out")
    assert outcome.skipped < outcome.passed / 100


@pytest.mark.parametrize("minor", MINORS)
def test_pip_builds_a_wheel_with_compiled_modules(
    minor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, install = made(tmp_path, found_python(minor))
    monkeypatch.setenv("KBROKER_COMPILE", "1")
    done(*install, ROOT)
    assert "compiled" in done(own, "-I", "-m", "kbroker", "--version")
    smoked(own, tmp_path, "base")
    print(f"\nfigures: a wheel of Python 3.{minor}")
