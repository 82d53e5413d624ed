"""Run the parts of the test budget one after the other and print the time of each against it.

Usage: python tests/run_parts.py [PART ...]; without a name all parts of tests/budget.toml run.
Exit status 1 when a part fails or the whole run takes longer than the limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main(wanted: list[str]) -> int:
    budget = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    parts = [part for part in budget["part"] if not wanted or part["name"] in wanted]
    unknown = set(wanted) - {part["name"] for part in parts}
    if unknown:
        print(f"no part named {', '.join(sorted(unknown))} in tests/budget.toml")
        return 2
    rows = [(part, *_run(part)) for part in parts]
    print("\npart        minutes  budget  result")
    for part, minutes, passed in rows:
        verdict = "passed" if passed else "FAILED"
        print(f"{part['name']:<12}{minutes:7.1f} {part['minutes']:7.1f}  {verdict}")
    total = sum(minutes for _, minutes, _ in rows)
    print(f"{'sum':<12}{total:7.1f} {sum(part['minutes'] for part in parts):7.1f}")
    if total > budget["limit_minutes"]:
        print(f"the run took longer than {budget['limit_minutes']} minutes")
        return 1
    return 0 if all(passed for _, _, passed in rows) else 1


def _run(part: dict[str, Any]) -> tuple[float, bool]:
    """Run all commands of a part; returns minutes taken, and whether all of them passed."""
    started = time.monotonic()
    passed = True
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["PYTHONPATH"] = str(ROOT / "tests")
    environment["PYTEST_PLUGINS"] = "skips"
    for command in part["commands"]:
        print(f"\n--- {part['name']}: {command}", flush=True)
        finished = subprocess.run(command, shell=True, cwd=ROOT, env=environment, check=False)
        passed = passed and finished.returncode == 0
    return (time.monotonic() - started) / 60, passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
