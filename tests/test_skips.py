"""The rule that nothing is skipped silently holds, and is seen to hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .skips import read_listed

SKIPPED = "import pytest\n\ndef test_a():\n    pytest.skip('not today')\n"


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("false", 0)])
def test_a_skip_that_is_not_listed_fails_in_ci_only(tmp_path: Path, ci: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = os.environ | {
        "CI": ci,
        "PYTEST_PLUGINS": "skips",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert "skipped: 1" in done.stdout
    assert "not listed in tests/skips.txt: test_it.py::test_a" in done.stdout


def test_a_listed_skip_needs_a_reason() -> None:
    text = "# head\ntests/a.py::one: needs a desktop\ntests/a.py::two: \ntests/a.py::three\n"
    assert read_listed(text) == {"tests/a.py::one"}
