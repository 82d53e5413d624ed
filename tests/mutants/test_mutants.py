"""The mutation tests: patches apply, and bugs are distinguished from harmless changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..repository import ROOT
from . import mutant
from .mutant import (
    SLOW_RECOVERY,
    Failure,
    InvalidMutant,
    Mutant,
    mutants,
    reason_of,
)

MUTANTS = mutants()
HARMLESS = """\
X1: nothing
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
def test_patch_of_mutant_applies(planted: Mutant) -> None:
    """A patch that no longer applies after a change of the code must be rewritten."""
    assert planted.applies() == ""
    assert planted.path.name == f"{planted.name}.patch"


@pytest.mark.long
def test_bug_is_detected_and_harmless_change_is_not(tmp_path: Path) -> None:
    (compares_values,) = (each for each in MUTANTS if each.name == "M9")
    killer = compares_values.killed_by(seconds=60)
    assert killer is not None
    assert "rewritten_equal_value_has_new_revision" in killer
    source = Path(__file__).parents[2] / "kbroker/cluster/local_store.py"
    harmless = tmp_path / "X1.patch"
    harmless.write_text(HARMLESS.format(lines=source.read_text().splitlines()))
    assert Mutant.read(harmless).killed_by(seconds=60) is None


@pytest.mark.slow
def test_patch_with_unknown_name_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a patch would fail the harness without planting its bug."""
    stale = Failure(("-c", "pass"), "AttributeError: 'Partitions' object has no attribute 'clock'")
    monkeypatch.setattr(mutant, "failures", lambda *_: iter([stale]))
    with pytest.raises(InvalidMutant, match=r"does not fit the code: .* no attribute 'clock'"):
        MUTANTS[0].killed_by(seconds=60)


@pytest.mark.long
def test_failure_without_the_bug_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    always = Failure(("-c", "raise SystemExit(1)"), "always")
    path = "Path('kbroker/cluster/watchers.py')"
    code = f"from pathlib import Path; assert 'watcher(change)' in {path}.read_text()"
    broken = Failure(("-c", code), "with the defect")
    monkeypatch.setattr(mutant, "failures", lambda *_: iter([always, broken]))
    (skips_history,) = (each for each in MUTANTS if each.name == "M10")
    assert skips_history.killed_by(seconds=60) == str(broken)
    monkeypatch.setattr(mutant, "failures", lambda *_: iter([always]))
    assert skips_history.killed_by(seconds=60) is None


@pytest.mark.slow
def test_violation_of_simulator_is_parsed() -> None:
    """The simulator reports violations in an exception group, with a seed."""
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
    assert SLOW_RECOVERY.pattern in (ROOT / "tests/simulation/world.py").read_text()


@pytest.mark.long
def test_patch_that_does_not_apply_is_invalid(tmp_path: Path) -> None:
    misfit = tmp_path / "X2.patch"
    misfit.write_text(HARMLESS.format(lines=["not", "what stands", "there"]))
    unfit = Mutant.read(misfit)
    assert "patch does not apply" in unfit.applies()
    with pytest.raises(InvalidMutant, match="cannot be applied"):
        unfit.killed_by(seconds=60)
    misfit.write_text("--- a/x\n")
    with pytest.raises(InvalidMutant, match="start it with lines 'NAME: what it breaks'"):
        Mutant.read(misfit)
