"""A mutant: a patch that plants a bug, and the tests that must detect it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ..repository import ROOT, copy_repository

PATCHES = Path(__file__).parent
HEADER = re.compile(r"(?P<name>\S+): (?P<breaks>.+)\nCaught by: (?P<harness>\S+)\n")
# The simulator's message for a cluster that lost nothing but did not recover in time.
SLOW_RECOVERY = re.compile(r"did not recover within")
# Errors of a patch that uses old names of the code: its bug was not planted.
STALE_CODE = re.compile(r"(Attribute|Name|Import|Syntax|Indentation)Error: ")
SIMULATION = "simulation"
# Number of seeds, more than can run within the time limit.
MANY_SEEDS = 1_000_000
REASON_MAX = 300
# Timeout in seconds for the failed command without the bug.
RUN_SECONDS_MAX = 120


class InvalidMutant(Exception):
    """A mutant that cannot be applied or tested."""


@dataclass(frozen=True)
class Mutant:
    """A patch with one bug; `harness` is `simulation` or the path of tests."""

    path: Path
    name: str
    breaks: str
    harness: str

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Read a patch with a header of two lines. Raises InvalidMutant."""
        header = HEADER.match(path.read_text())
        if header is None or not _is_harness(header["harness"]):
            raise InvalidMutant(
                f"{path}: invalid header; start it with lines 'NAME: what it breaks' and "
                f"'Caught by: HARNESS' (valid harnesses: '{SIMULATION}' or the path of tests)"
            )
        return cls(path, header["name"], header["breaks"], header["harness"])

    def applies(self, to: Path = ROOT) -> str:
        """Return the error of applying the patch, or an empty string."""
        return _git_apply(self.path, to, "--check").stderr

    def killed_by(self, seconds: float) -> str | None:
        """Run the harness on a copy of the repository with this bug.

        Returns the failed command, or None if nothing failed within `seconds`. Failures that also
        occur without the bug do not count. Raises InvalidMutant.
        """
        with repository_copy() as unchanged, repository_copy() as broken:
            applied = _git_apply(self.path, broken)
            if applied.returncode:
                raise InvalidMutant(f"{self.path} cannot be applied: {applied.stderr}")
            for failed in failures(self.harness, broken, time.monotonic() + seconds):
                if STALE_CODE.match(failed.reason):
                    raise InvalidMutant(f"{self.path} does not fit the code: {failed}")
                if not also_fails(unchanged, failed.arguments):
                    return str(failed)
        return None


def mutants() -> list[Mutant]:
    """Return all mutants in order."""
    read = [Mutant.read(path) for path in PATCHES.glob("*.patch")]
    return sorted(read, key=lambda each: (len(each.name), each.name))


@contextmanager
def repository_copy() -> Iterator[Path]:
    """Create a temporary copy of the repository."""
    with TemporaryDirectory(prefix="mutant-") as directory:
        copy_repository(Path(directory))
        yield Path(directory)


def _git_apply(patch: Path, to: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "apply", *options, str(patch)]
    return subprocess.run(command, cwd=to, capture_output=True, text=True, check=False)


# Harnesses


class Failure(NamedTuple):
    """A failed Python command and its error."""

    arguments: Sequence[str]
    reason: str

    def __str__(self) -> str:
        return f"python {' '.join(self.arguments)}: {self.reason}"


def _is_harness(name: str) -> bool:
    return name == SIMULATION or (ROOT / name).is_file()


def failures(harness: str, copy: Path, deadline: float) -> Iterator[Failure]:
    """Run a harness in a copy until the deadline and yield its failures."""
    return _simulate(copy, deadline) if harness == SIMULATION else _test(copy, deadline, harness)


def _simulate(copy: Path, deadline: float) -> Iterator[Failure]:
    """Run seeds and yield failures, except of clusters that only recovered too slowly."""
    module, first = ("-m", "tests.simulation"), 0
    while True:
        run = _python(copy, deadline, *module, "--first", str(first), "--seeds", str(MANY_SEEDS))
        if run is None or run.returncode == 0:
            return
        seeds = re.findall(r"--seed (\d+)", run.stdout + run.stderr)
        if not seeds:
            raise InvalidMutant(f"the simulator failed without naming a seed:\n{_end_of(run)}")
        reason = reason_of(run)
        if not SLOW_RECOVERY.search(reason):
            yield Failure((*module, "--seed", seeds[-1]), reason)
        first = int(seeds[-1]) + 1


def _test(copy: Path, deadline: float, tests: str) -> Iterator[Failure]:
    """Run tests and yield the failed ones."""
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    run = _python(copy, deadline, *pytest, tests)
    if run is None or run.returncode == 0:
        return
    failed = re.findall(r"^FAILED (\S+?(?:\[.+?\])?)(?: - |$)", run.stdout, re.MULTILINE)
    if not failed:
        raise InvalidMutant(f"the tests could not be run:\n{_end_of(run)}")
    yield from (Failure((*pytest, each), "it failed") for each in failed)


def also_fails(copy: Path, arguments: Sequence[str]) -> bool:
    """Return True if a command also fails in this copy."""
    run = _python(copy, time.monotonic() + RUN_SECONDS_MAX, *arguments)
    return run is None or run.returncode != 0


def _python(
    copy: Path, deadline: float, *arguments: str
) -> subprocess.CompletedProcess[str] | None:
    """Run Python in a copy. Returns None if it exceeded the deadline."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env=environment,
            timeout=max(deadline - time.monotonic(), 0),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def reason_of(run: subprocess.CompletedProcess[str]) -> str:
    """Return the violation or another error of a failed run."""
    lines = [line.strip(" |") for line in (run.stdout + run.stderr).splitlines()]
    found = [line for line in lines if re.match(r"[\w.]*(Violation|Error): ", line)]
    return found[-1][:REASON_MAX] if found else "it failed"


def _end_of(run: subprocess.CompletedProcess[str]) -> str:
    return (run.stdout + run.stderr)[-2000:]
