"""One planted defect: a patch, and the harness that must notice it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent
HEADER = re.compile(r"(?P<name>\S+): (?P<breaks>.+)\nCaught by: (?P<harness>\w+)\n")
ENDLESS = 1_000_000
"""Seeds: more than there is time for."""


class UselessMutant(Exception):
    """A mutant that says nothing: it cannot be run, or what finds it fails without it too."""


@dataclass(frozen=True)
class Mutant:
    """A patch that breaks one thing."""

    path: Path
    name: str
    breaks: str
    harness: str

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Read a patch; its first two lines say what it is. Raises UselessMutant."""
        header = HEADER.match(path.read_text())
        if header is None or header["harness"] not in HARNESSES:
            raise UselessMutant(
                f"{path}: begin it with lines 'NAME: what it breaks' and 'Caught by: HARNESS', "
                f"HARNESS being one of {', '.join(HARNESSES)}"
            )
        return cls(path, header["name"], header["breaks"], header["harness"])

    def applies(self, to: Path = ROOT) -> str:
        """Why the patch cannot be applied, empty when it can be."""
        return _git_apply(self.path, to, "--check").stderr

    def killed_by(self, seconds: float) -> str | None:
        """Run the harness over a copy of the repository with this defect.

        Returns what failed, or None when the defect was not noticed in `seconds`. Raises
        UselessMutant.
        """
        run = HARNESSES[self.harness]
        with copy_of_the_repository() as copy:
            applied = _git_apply(self.path, copy)
            if applied.returncode:
                raise UselessMutant(f"{self.path} cannot be applied: {applied.stderr}")
            killer = run(copy, "", seconds)
        if killer is None:
            return None
        with copy_of_the_repository() as copy:
            if run(copy, killer, seconds) is not None:
                raise UselessMutant(f"{killer} fails without the defect as well")
        return killer


def mutants() -> list[Mutant]:
    """All of them, by number."""
    read = [Mutant.read(path) for path in PATCHES.glob("*.patch")]
    return sorted(read, key=lambda each: (len(each.name), each.name))


@contextmanager
def copy_of_the_repository() -> Iterator[Path]:
    """Copy the files that git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with TemporaryDirectory(prefix="mutant-") as folder:
        for name in filter(None, listed.stdout.split("\0")):
            source, target = ROOT / name, Path(folder) / name
            if source.is_symlink() or source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        yield Path(folder)


def _git_apply(patch: Path, to: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "apply", *options, str(patch)]
    return subprocess.run(command, cwd=to, capture_output=True, text=True, check=False)


# Harnesses: each runs in a copy, either as a whole or only what `again` names, which failed before,
# and returns what failed.


def simulation(copy: Path, again: str, seconds: float) -> str | None:
    """Simulate seed after seed."""
    which = again.split() if again else ["--seeds", str(ENDLESS)]
    run = _python(copy, seconds, "-m", "tests.simulation", *which)
    if run is None or run.returncode == 0:
        return None
    seeds = re.findall(r"--seed \d+", run.stdout + run.stderr)
    if not seeds:
        raise UselessMutant(f"the simulator failed without naming a seed:\n{run.stderr[-2000:]}")
    return str(seeds[-1])


def contract(copy: Path, again: str, seconds: float) -> str | None:
    """Check the contract of metadata stores."""
    tests = again or "tests/cluster/test_contract.py::test_a_store_keeps_the_contract"
    run = _python(copy, seconds, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests)
    if run is None or run.returncode == 0:
        return None
    failed = re.search(r"^FAILED (.+\])", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise UselessMutant(f"the tests could not be run:\n{run.stdout[-2000:]}")
    return failed[1]


Harness = Callable[[Path, str, float], str | None]
HARNESSES: dict[str, Harness] = {each.__name__: each for each in (simulation, contract)}


def _python(copy: Path, seconds: float, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run Python on a copy; None when it had to be ended after `seconds`."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env=environment,
            timeout=seconds,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
