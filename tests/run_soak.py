"""Run one long test of tests/soak.toml and write its result into docs/dev/soak.md.

Usage: python tests/run_soak.py PART
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "dev" / "soak.md"
HEAD = """# Long tests

`make soak PART=NAME` runs one long test and writes its row. A row shows the last run of its part.
The last column quotes the lines that the test printed after `figures:`.

| part | test | date | commit | minutes | result | output |
|---|---|---|---|--:|---|---|
"""


def main(wanted: str) -> int:
    parts = tomllib.loads((ROOT / "tests" / "soak.toml").read_text())["part"]
    if wanted not in parts:
        print(f"no part named {wanted}; there are {', '.join(parts)}")
        return 2
    started = time.monotonic()
    status, figures = _run(parts[wanted]["command"])
    minutes = (time.monotonic() - started) / 60
    result = "passed" if status == 0 else "FAILED"
    today = datetime.datetime.now(datetime.UTC).date()
    row = (
        f"| {wanted} | {parts[wanted]['what']} | {today} | {_commit()} "
        f"| {minutes:.1f} | {result} | {'; '.join(figures)} |"
    )
    _write_row(wanted, row)
    print(f"\n{row}")
    return status


def _run(command: str) -> tuple[int, list[str]]:
    """Run a command and forward its output; return its status and its results."""
    environment = dict(os.environ)
    # Keep byte code, as in an installation; otherwise each start would compile all modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    figures = []
    with subprocess.Popen(
        command, shell=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if match := re.match(r"\s*figures: (.*)", line):
                figures.append(match[1].replace("|", "/"))
    return process.returncode, figures


def _commit() -> str:
    """Return the tested commit, with "-dirty" if files differ from it, except for result rows."""
    head = _git("rev-parse", "--short", "HEAD") or "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/dev/soak.md")
    return f"{head}-dirty" if changed else head


def _git(*arguments: str) -> str:
    finished = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return finished.stdout.strip()


def _write_row(part: str, row: str) -> None:
    text = PAGE.read_text() if PAGE.exists() else HEAD
    rows = [line for line in text.removeprefix(HEAD).splitlines() if line.startswith("|")]
    kept = [line for line in rows if not line.startswith(f"| {part} |")]
    PAGE.write_text(HEAD + "\n".join(sorted([*kept, row])) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else 2)
