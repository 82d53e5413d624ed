"""Load processes of long tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from . import under_load

COUNT_CHILDREN = """
import os, pathlib, sys
parent = os.getppid()
found = 0
for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        continue
    found += int(fields[1]) == parent and int(path.parent.name) != os.getpid()
sys.exit(found)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="counts processes in /proc")
def test_load_runs_only_during_command() -> None:
    count = [sys.executable, "-c", COUNT_CHILDREN]
    load_count = subprocess.run(count, check=False).returncode
    assert under_load.main(3, count) == load_count + 3
    assert subprocess.run(count, check=False).returncode == load_count


def test_stopped_load_process_fails_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_load, "BURN", "")
    wait = "import time; time.sleep(0.1)"
    while under_load.main(1, [sys.executable, "-c", wait]) == 0:
        wait = wait.replace("0.1", "1")
