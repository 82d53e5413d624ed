"""Paths of client environments, jars and logs, and the error for a missing environment."""

from __future__ import annotations

import os
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[1]
ROOT = COMPAT.parent
WORK = Path(os.environ.get("KBROKER_COMPAT_WORK", ROOT / ".work" / "compat"))
CLIENTS = COMPAT / "clients"


class EnvironmentMissing(Exception):
    """An environment was not created, or not completely."""


def environment(name: str) -> Path:
    """Return the directory of a client's environment.

    Raises:
        EnvironmentMissing: It is not complete. The message names the command that creates it.
    """
    if not (WORK / name / "ready").exists():
        raise EnvironmentMissing(
            f"The environment {name!r} is missing: run `make -C compat-tests environments`."
        )
    return WORK / name


def environment_python(name: str) -> Path:
    """Return the Python interpreter of a client's virtual environment.

    Raises:
        EnvironmentMissing: It is not complete.
    """
    return environment(name) / "bin" / "python"


def jars(name: str) -> str:
    """Return the class path (`directory/*`) of a set of jars.

    Raises:
        EnvironmentMissing: It is not complete.
    """
    return f"{environment(name) / 'lib'}/*"
