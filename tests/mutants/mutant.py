"""One planted defect: a patch, and the harness that must notice it."""

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
IS_SLOW = re.compile(r"were too few until")
"""What the simulator says of a cluster that loses nothing, and does not come back in time."""
SIMULATION = "simulation"
ENDLESS = 1_000_000
"""Seeds: more than there is time for."""
REASON_MAX = 300
RUN_SECONDS_MAX = 120
"""Of what failed, run again without the defect."""


class UselessMutant(Exception):
    """A mutant that says nothing, because it cannot be planted or run."""


@dataclass(frozen=True)
class Mutant:
    """A patch that breaks one thing; `harness` is `simulation`, or the path of tests."""

    path: Path
    name: str
    breaks: str
    harness: str

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Read a patch; its first two lines say what it is. Raises UselessMutant."""
        header = HEADER.match(path.read_text())
        if header is None or not _is_harness(header["harness"]):
            raise UselessMutant(
                f"{path}: begin it with lines 'NAME: what it breaks' and 'Caught by: HARNESS', "
                f"HARNESS being '{SIMULATION}' or the path of tests"
            )
        return cls(path, header["name"], header["breaks"], header["harness"])

    def applies(self, to: Path = ROOT) -> str:
        """Why the patch cannot be applied, empty when it can be."""
        return _git_apply(self.path, to, "--check").stderr

    def killed_by(self, seconds: float) -> str | None:
        """Run the harness over a copy of the repository with this defect.

        Returns what failed, or None when the defect was not noticed in `seconds`. What fails
        without the defect as well does not count. Raises UselessMutant.
        """
        with copy_of_the_repository() as sound, copy_of_the_repository() as broken:
            applied = _git_apply(self.path, broken)
            if applied.returncode:
                raise UselessMutant(f"{self.path} cannot be applied: {applied.stderr}")
            for failed in failures(self.harness, broken, time.monotonic() + seconds):
                if not fails(sound, failed.arguments):
                    return str(failed)
        return None


def mutants() -> list[Mutant]:
    """All of them, by number."""
    read = [Mutant.read(path) for path in PATCHES.glob("*.patch")]
    return sorted(read, key=lambda each: (len(each.name), each.name))


@contextmanager
def copy_of_the_repository() -> Iterator[Path]:
    """A copy that goes at the end."""
    with TemporaryDirectory(prefix="mutant-") as directory:
        copy_repository(Path(directory))
        yield Path(directory)


def _git_apply(patch: Path, to: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "apply", *options, str(patch)]
    return subprocess.run(command, cwd=to, capture_output=True, text=True, check=False)


# Harnesses


class Failed(NamedTuple):
    """A run of Python that failed, and what it said."""

    arguments: Sequence[str]
    reason: str

    def __str__(self) -> str:
        return f"python {' '.join(self.arguments)}: {self.reason}"


def _is_harness(name: str) -> bool:
    return name == SIMULATION or (ROOT / name).is_file()


def failures(harness: str, copy: Path, deadline: float) -> Iterator[Failed]:
    """Run a harness in a copy until a time, and give what failed."""
    return _simulate(copy, deadline) if harness == SIMULATION else _test(copy, deadline, harness)


def _simulate(copy: Path, deadline: float) -> Iterator[Failed]:
    """Simulate seed after seed, for anything but a cluster that only takes long to be whole."""
    module, first = ("-m", "tests.simulation"), 0
    while True:
        run = _python(copy, deadline, *module, "--first", str(first), "--seeds", str(ENDLESS))
        if run is None or run.returncode == 0:
            return
        seeds = re.findall(r"--seed (\d+)", run.stdout + run.stderr)
        if not seeds:
            raise UselessMutant(f"the simulator failed without naming a seed:\n{_end_of(run)}")
        reason = reason_of(run)
        if not IS_SLOW.search(reason):
            yield Failed((*module, "--seed", seeds[-1]), reason)
        first = int(seeds[-1]) + 1


def _test(copy: Path, deadline: float, tests: str) -> Iterator[Failed]:
    """Run tests."""
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    run = _python(copy, deadline, *pytest, tests)
    if run is None or run.returncode == 0:
        return
    failed = re.findall(r"^FAILED (\S+?(?:\[.+?\])?)(?: - |$)", run.stdout, re.MULTILINE)
    if not failed:
        raise UselessMutant(f"the tests could not be run:\n{_end_of(run)}")
    yield from (Failed((*pytest, each), "it failed") for each in failed)


def fails(copy: Path, arguments: Sequence[str]) -> bool:
    """Whether what failed in another copy fails in this one as well."""
    run = _python(copy, time.monotonic() + RUN_SECONDS_MAX, *arguments)
    return run is None or run.returncode != 0


def _python(
    copy: Path, deadline: float, *arguments: str
) -> subprocess.CompletedProcess[str] | None:
    """Run Python on a copy; None when it had to be ended at the deadline."""
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
    """The violation, or another last word."""
    lines = [line.strip(" |") for line in (run.stdout + run.stderr).splitlines()]
    found = [line for line in lines if re.match(r"[\w.]*(Violation|Error): ", line)]
    return found[-1][:REASON_MAX] if found else "it failed"


def _end_of(run: subprocess.CompletedProcess[str]) -> str:
    return (run.stdout + run.stderr)[-2000:]
