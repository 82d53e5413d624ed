"""Test runner of `make test`: which tests each part runs, its time budget, output and failures."""

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
PARTS: dict[str, dict[str, Any]] = BUDGET["part"]


def minutes_of(command: str) -> float:
    return sum(float(PARTS[part]["minutes"]) for part in BUDGET["command"][command]["parts"])


def test_parts_fit_budget_of_their_command() -> None:
    assert minutes_of("quick") <= 3
    assert minutes_of("test") <= 12
    assert minutes_of("test") + minutes_of("test-all") <= 45
    for command, table in BUDGET["command"].items():
        assert minutes_of(command) < table["limit_minutes"], command


def test_every_part_belongs_to_a_command() -> None:
    assert {part for table in BUDGET["command"].values() for part in table["parts"]} == set(PARTS)


def expression(part: str) -> str:
    """Return the marker expression of a part's first command."""
    match = re.search(r"-m '([^']+)'", PARTS[part]["commands"][0])
    assert match is not None
    return match[1]


def test_every_unit_test_runs_in_test_or_in_test_all() -> None:
    assert expression("unit") == "not spark and not long"
    assert expression("long") == "not spark and (long or sized)"
    assert expression("quick") == "not spark and not slow and not long"


def test_every_client_test_runs_in_test_or_in_test_all() -> None:
    makefile = (ROOT / "compat-tests/Makefile").read_text()
    assert "-m sample" in makefile.partition("\nsample:")[2].partition("\n\n")[0]
    assert any("-m 'not sample'" in command for command in PARTS["clients"]["commands"])


def test_command_runs_all_or_named_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def note(name: str, part: dict[str, Any], give_up_at: float) -> run_parts.Result:
        ran.append(name)
        return run_parts.Result()

    monkeypatch.setattr(run_parts, "run", note)
    assert run_parts.main("test") == 0
    assert ran == ["lint", "unit"]
    ran.clear()
    assert run_parts.main("test", ["lint"]) == 0
    assert ran == ["lint"]


def test_unknown_part_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_parts.main("all") == 2
    assert "use quick, test, test-all" in capsys.readouterr().out
    assert run_parts.main("test", ["clients"]) == 2
    assert "no part clients in test: use lint, unit" in capsys.readouterr().out


def failures_of(*commands: str) -> list[str]:
    return run_parts.run("sample", {"commands": list(commands)}).failures


def test_part_fails_if_any_command_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert failures_of("echo alone") == []
    assert failures_of("echo one", "echo two >&2") == []
    assert failures_of("false", "true") == ["exit status 1: false"]
    assert failures_of("true", "exit 3") == ["exit status 3: exit 3"]
    output = capfd.readouterr().out
    assert "\nalone\n" in output
    assert "1| one\n" in output
    assert "2| two\n" in output


def test_part_writes_byte_code_despite_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert failures_of("test -z $PYTHONDONTWRITEBYTECODE") == []


def test_commands_of_part_run_concurrently(tmp_path: Path) -> None:
    # Succeeds only if the other command starts before it ends.
    meet = (
        "touch {0}/{1}; for i in $(seq 200); do test -e {0}/{2} && exit 0; sleep 0.05; done; exit 1"
    )
    commands = [meet.format(tmp_path, *names) for names in (("a", "b"), ("b", "a"))]
    assert failures_of(*commands) == []


SAMPLE = """
import os, time

def test_that_takes_long():
    time.sleep(1.1)
    assert "PYTEST_ADDOPTS" not in os.environ, "options of the outer run apply"
"""


@pytest.mark.slow
def test_slowest_tests_of_all_parts_are_printed_slowest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider --rootdir={tmp_path} {tmp_path}"
    slower = "echo 99.0s call slower.py::test"
    budget = {
        "command": {"test": {"parts": ["sample", "other"], "limit_minutes": 1}},
        "part": {
            "sample": {"commands": [command], "minutes": 1},
            "other": {"commands": [slower], "minutes": 1},
        },
    }
    monkeypatch.setattr(tomllib, "loads", lambda _: budget)
    assert run_parts.main("test") == 0
    *_, printed = capfd.readouterr().out.partition("\nthe 10 slowest tests:\n")
    first, second, *_ = printed.splitlines()
    assert first.split() == ["99.0", "s", "slower.py::test"]
    assert second.split()[1:] == ["s", "test_sample.py::test_that_takes_long"]


FAILING_SAMPLE = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no disk")

def test_that_passes(): pass
def test_that_fails(): assert False
def test_that_cannot_start(broken): pass
"""


@pytest.mark.slow
def test_summary_names_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_sample.py").write_text(FAILING_SAMPLE)
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider --rootdir={tmp_path} {tmp_path}"
    budget = {
        "command": {"test": {"parts": ["sample"], "limit_minutes": 1}},
        "part": {"sample": {"commands": [command], "minutes": 1}},
    }
    monkeypatch.setattr(tomllib, "loads", lambda _: budget)
    assert run_parts.main("test") == 1
    *_, output = capfd.readouterr().out.partition("\nfailed:\n")
    fails, cannot_start, exits, *_ = output.splitlines()
    assert re.search(r"FAILED .*test_sample.py::test_that_fails", fails)
    assert re.search(r"ERROR .*test_sample.py::test_that_cannot_start", cannot_start)
    assert exits.strip() == f"exit status 1: {command}"


@pytest.mark.slow
def test_hanging_command_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_parts, "STOP_SECONDS", 2)
    hanging = "echo so far; trap 'exit 0' INT; sleep 1000 & wait"
    result = run_parts.run("sample", {"commands": [hanging]}, time.monotonic() + 3)
    assert result.failures == [f"stopped: {hanging}"]
    assert result.minutes < 5
    output = capfd.readouterr().out
    assert "so far\n" in output
    assert "stopped: the run exceeded its time limit" in output


def test_leftover_processes_do_not_delay_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_parts, "STOP_SECONDS", 0.1)
    assert run_parts.run("sample", {"commands": ["setsid sleep 60 & true"]}).minutes < 0.5


def test_output_shows_time_and_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lint, unit = (PARTS[name]["minutes"] for name in ("lint", "unit"))
    took = {"lint": 0.4, "unit": unit + 1.0}
    monkeypatch.setattr(run_parts, "run", lambda name, *_: run_parts.Result(took[name]))
    assert run_parts.main("test") == 0
    rows = capsys.readouterr().out.splitlines()[-3:]
    over = ["passed,", "over", "its", "budget"]
    assert rows[0].split() == ["lint", "0.4", f"{lint:.1f}", "passed"]
    assert rows[1].split() == ["unit", f"{unit + 1:.1f}", f"{unit:.1f}", *over]
    assert rows[2].split() == ["sum", f"{unit + 1.4:.1f}", f"{lint + unit:.1f}"]
