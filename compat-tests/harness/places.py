"""Where environments, jars and logs lie, and the sentence to say when one is missing."""

from __future__ import annotations

import os
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[1]
ROOT = COMPAT.parent
WORK = Path(os.environ.get("KBROKER_COMPAT_WORK", ROOT / ".work" / "compat"))
CLIENTS = COMPAT / "clients"


class EnvironmentMissing(Exception):
    """An environment was never made, or only half of it."""


def environment(name: str) -> Path:
    """The directory of one client's environment.

    Raises EnvironmentMissing with the command that makes it.
    """
    if not (WORK / name / "ready").exists():
        raise EnvironmentMissing(
            f"The environment {name!r} is missing: run `make -C compat-tests environments`."
        )
    return WORK / name


def environment_python(name: str) -> Path:
    """The interpreter of one client's virtual environment; raises EnvironmentMissing."""
    return environment(name) / "bin" / "python"


def jars(name: str) -> str:
    """The class path (`directory/*`) of one set of jars; raises EnvironmentMissing."""
    return f"{environment(name) / 'lib'}/*"
