"""`make test`: which tests belong to its parts, and how they are run."""

from __future__ import annotations

import re
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from . import run_parts

ROOT = Path(__file__).parent.parent
BUDGET = tomllib.loads((ROOT / "tests/budget.toml").read_text())
PARTS = {part["name"]: part for part in BUDGET["part"]}


def test_the_parts_fit_the_budget() -> None:
    minutes = [part["minutes"] for part in BUDGET["part"] if not part.get("again")]
    assert sum(minutes) <= 45 < BUDGET["limit_minutes"]
    assert PARTS["lint"]["minutes"] + PARTS["quick"]["minutes"] <= 3


def test_quick_is_unit_without_what_is_slow() -> None:
    (quick,), unit = PARTS["quick"]["commands"], PARTS["unit"]["commands"][0]
    assert quick.replace(" and not slow", "").replace("-n 4", "-n 3") == unit


def test_what_is_there_again_runs_by_its_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def note(part: dict[str, Any], give_up_at: float) -> tuple[float, list[str]]:
        ran.append(part["name"])
        return 0.0, []

    monkeypatch.setattr(run_parts, "run", note)
    assert run_parts.main([]) == 0
    assert ran == [name for name in PARTS if name != "quick"]
    ran.clear()
    assert run_parts.main(["quick", "lint"]) == 0
    assert ran == ["lint", "quick"]


def part(*commands: str, **more: Any) -> dict[str, Any]:
    return {"name": "sample", "commands": list(commands), **more}


def failures_of(*commands: str, **more: Any) -> list[str]:
    return run_parts.run(part(*commands, **more))[1]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_part_fails_with_any_of_its_commands(
    at_once: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert failures_of("echo one", "echo two >&2", at_once=at_once) == []
    assert failures_of("false", "true", at_once=at_once) == ["exit status 1: false"]
    assert failures_of("true", "exit 3", at_once=at_once) == ["exit status 3: exit 3"]
    said = capfd.readouterr().out
    assert ("1| one\n" if at_once else "\none\n") in said
    assert ("2| two\n" if at_once else "\ntwo\n") in said


def test_byte_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert failures_of("test -z $PYTHONDONTWRITEBYTECODE") == []


def test_commands_at_once_do_not_wait_for_each_other(tmp_path: Path) -> None:
    meet = (
        "touch {0}/{1}; for i in $(seq 200); do test -e {0}/{2} && exit 0; sleep 0.05; done; exit 1"
    )
    both = [meet.format(tmp_path, *names) for names in (("a", "b"), ("b", "a"))]
    assert failures_of(*both, at_once=True) == []


SAMPLE = """
import os, time

def test_that_takes_long():
    time.sleep(1.1)
    assert "PYTEST_ADDOPTS" not in os.environ, "runs inside of tests are their own"
"""


def test_the_slowest_tests_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider --rootdir={tmp_path} {tmp_path}"
    assert failures_of(command) == []
    assert "s call     test_sample.py::test_that_takes_long" in capfd.readouterr().out


FAILING_SAMPLE = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no disk")

def test_that_passes(): pass
def test_that_fails(): assert False
def test_that_cannot_start(broken): pass
"""


def test_what_failed_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_sample.py").write_text(FAILING_SAMPLE)
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider --rootdir={tmp_path} {tmp_path}"
    budget = {**BUDGET, "part": [part(command, "true", minutes=1)]}
    monkeypatch.setattr(tomllib, "loads", lambda _: budget)
    assert run_parts.main([]) == 1
    *_, said = capfd.readouterr().out.partition("\nfailed:\n")
    fails, cannot_start, exits, *_ = said.splitlines()
    assert re.search(r"FAILED .*test_sample.py::test_that_fails", fails)
    assert re.search(r"ERROR .*test_sample.py::test_that_cannot_start", cannot_start)
    assert exits.strip() == f"exit status 1: {command}"


@pytest.mark.slow
def test_what_hangs_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_parts, "STOP_SECONDS", 2)
    hangs = "echo so far; trap 'exit 0' INT; sleep 1000 & wait"
    minutes, failures = run_parts.run(part(hangs), time.monotonic() + 3)
    assert failures == [f"stopped: {hangs}"]
    assert minutes < 5
    said = capfd.readouterr().out
    assert "so far\n" in said
    assert "stopped, for the run is over its limit" in said


def test_nobody_waits_for_what_a_command_leaves_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_parts, "STOP_SECONDS", 0.1)
    assert run_parts.run(part("setsid sleep 60 & true"))[0] < 0.5


def test_the_time_stands_beside_its_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lint, unit = (PARTS[name]["minutes"] for name in ("lint", "unit"))
    took = {"lint": 0.4, "unit": unit + 1.0}
    monkeypatch.setattr(run_parts, "run", lambda part, _: (took[part["name"]], []))
    assert run_parts.main(["lint", "unit"]) == 0
    rows = capsys.readouterr().out.splitlines()[-3:]
    over = ["passed,", "over", "its", "budget"]
    assert rows[0].split() == ["lint", "0.4", f"{lint:.1f}", "passed"]
    assert rows[1].split() == ["unit", f"{unit + 1:.1f}", f"{unit:.1f}", *over]
    assert rows[2].split() == ["sum", f"{unit + 1.4:.1f}", f"{lint + unit:.1f}"]
