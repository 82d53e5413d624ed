"""The rule against unlisted skips."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from .skips import read_listed

SKIPPED = "import pytest\n\ndef test_a():\n    pytest.skip('not today')\n"


def run(directory: Path, *arguments: str, ci: str) -> subprocess.CompletedProcess[str]:
    """Run tests under the rule, as `tests/run_parts.py` does."""
    environment = os.environ | {
        "CI": ci,
        "PYTEST_PLUGINS": "skips",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["-n0", "-n2"])
@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("false", 0)])
def test_unlisted_skip_fails_in_ci_only(
    tmp_path: Path, ci: str, status: int, processes: str
) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run(tmp_path, ".", processes, ci=ci)
    assert done.returncode == status
    assert "skipped: 1" in done.stdout
    assert "not listed in tests/skips.txt: test_it.py::test_a" in done.stdout


@pytest.mark.slow
def test_nested_pytest_run_may_skip(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "test_it.py").write_text(SKIPPED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    outer = """
        import subprocess, sys

        def test_a():
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "inner"], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout
            assert "1 skipped" in done.stdout
    """
    (tmp_path / "test_it.py").write_text(dedent(outer))
    done = run(tmp_path, "test_it.py", ci="true")
    assert done.returncode == 0, done.stdout


def test_listed_skip_requires_reason() -> None:
    text = "# head\ntests/a.py::one: needs a desktop\ntests/a.py::two: \ntests/a.py::three\n"
    assert read_listed(text) == {"tests/a.py::one"}
