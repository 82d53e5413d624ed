"""The mutants can be run, and running them tells a defect from none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..repository import ROOT
from . import mutant
from .mutant import (
    IS_SLOW,
    Failed,
    Mutant,
    UselessMutant,
    mutants,
    reason_of,
)

MUTANTS = mutants()
UNNOTICED = """\
X1: nothing that anybody could notice
Caught by: tests/cluster/test_store.py

--- a/kbroker/cluster/local_store.py
+++ b/kbroker/cluster/local_store.py
@@ -1,3 +1,4 @@
+# planted
 {lines[0]}
 {lines[1]}
 {lines[2]}
"""


@pytest.mark.parametrize("planted", MUTANTS, ids=[each.name for each in MUTANTS])
def test_a_mutant_can_be_planted(planted: Mutant) -> None:
    """A patch that no longer fits is written anew when the code that it breaks is changed."""
    assert planted.applies() == ""
    assert planted.path.name == f"{planted.name}.patch"


@pytest.mark.long
def test_a_defect_is_told_from_none(tmp_path: Path) -> None:
    (compares_values,) = (each for each in MUTANTS if each.name == "M9")
    killer = compares_values.killed_by(seconds=60)
    assert killer is not None
    assert "rewritten_equal_value_has_new_revision" in killer
    source = Path(__file__).parents[2] / "kbroker/cluster/local_store.py"
    harmless = tmp_path / "X1.patch"
    harmless.write_text(UNNOTICED.format(lines=source.read_text().splitlines()))
    assert Mutant.read(harmless).killed_by(seconds=60) is None


@pytest.mark.long
def test_what_fails_without_the_defect_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    always = Failed(("-c", "raise SystemExit(1)"), "always")
    where = "Path('kbroker/cluster/watchers.py')"
    code = f"from pathlib import Path; assert 'watcher(change)' in {where}.read_text()"
    broken = Failed(("-c", code), "with the defect")
    monkeypatch.setattr(mutant, "failures", lambda *_: iter([always, broken]))
    (skips_history,) = (each for each in MUTANTS if each.name == "M10")
    assert skips_history.killed_by(seconds=60) == str(broken)
    monkeypatch.setattr(mutant, "failures", lambda *_: iter([always]))
    assert skips_history.killed_by(seconds=60) is None


def test_what_the_simulator_says_is_understood() -> None:
    """As it says it: a violation in a group of exceptions, and which seed that was."""
    code = (
        "import traceback\n"
        "from tests.simulation.clients import Violation\n"
        "try:\n"
        "    raise ExceptionGroup('of a nursery', [Violation('7 is lost')])\n"
        "except ExceptionGroup:\n"
        "    traceback.print_exc()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert reason_of(run) == "tests.simulation.clients.Violation: 7 is lost"
    assert IS_SLOW.pattern in (ROOT / "tests/simulation/world.py").read_text()


@pytest.mark.long
def test_a_patch_that_does_not_fit_is_not_taken_for_a_defect(tmp_path: Path) -> None:
    misfit = tmp_path / "X2.patch"
    misfit.write_text(UNNOTICED.format(lines=["not", "what stands", "there"]))
    unfit = Mutant.read(misfit)
    assert "patch does not apply" in unfit.applies()
    with pytest.raises(UselessMutant, match="cannot be applied"):
        unfit.killed_by(seconds=60)
    misfit.write_text("--- a/x\n")
    with pytest.raises(UselessMutant, match="begin it with lines 'NAME: what it breaks'"):
        Mutant.read(misfit)
