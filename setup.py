"""Builds what is installed; what there is to say of it stands in pyproject.toml.

With KBROKER_COMPILE=1 the modules that see each request and each batch are compiled by mypyc: from the same
source, which is in the wheel as well, for one version of Python and one kind of machine (docs/explanation/performance.md). It takes a
C compiler and two minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

VARIABLE = "KBROKER_COMPILE"
COMPILER = "mypy>=1.18"
BUILDING = {"bdist_wheel", "build", "build_ext"}
"""Commands that want more than to know what the package is called."""
EDITABLE = "editable_wheel"
BUILD = Path("build").resolve()
COMPILED = {
    "protocol": (
        "framing",
        "headers",
        "log_validator",
        "record_walk",
        "records",
        "response_template",
    ),
    "storage": (
        "epochs",
        "index",
        "log",
        "log_segments",
        "lookups",
        "open_segments",
        "pending",
        "producer_state",
        "segment",
        "segment_file",
        "segment_indexes",
        "sync",
    ),
    "runtime": ("rates", "time_slices"),
    "partitions": ("flusher", "leader_state", "partitions", "replica", "traffic"),
    "node": ("activity", "client_quota_manager", "fetch_sessions", "request_memory"),
    "handlers": ("context", "fetch_operation", "produce_operation"),
    "net": ("connection", "readiness_poller", "replies", "requests", "stored", "transport"),
}
"""Modules by the room of `kbroker` that they are in."""


def project() -> dict[str, Any]:
    return tomllib.loads(Path("pyproject.toml").read_text())


def needed() -> list[str]:
    """What has to be there to compile: the types of what kbroker uses are what the compiler goes by."""
    return [COMPILER, *project()["project"]["dependencies"]]


def copy_as_installed(directory: Path) -> None:
    """Copy all packages to where they stand when they are installed: some lie beside `kbroker` here."""
    said = project()["tool"]["setuptools"]
    for package in said["packages"]:
        place = package.replace(".", "/")
        target = directory / place
        target.mkdir(parents=True, exist_ok=True)
        for module in Path(said["package-dir"].get(package, place)).glob("*.py"):
            shutil.copy(module, target)


def extensions() -> list[Extension]:
    """The compiled modules, in one library."""
    from mypyc.build import mypycify

    directory = BUILD / "as-installed"
    shutil.rmtree(directory, ignore_errors=True)
    copy_as_installed(directory)
    paths = [f"kbroker/{room}/{name}.py" for room, names in COMPILED.items() for name in names]
    with chdir(directory):
        return mypycify(
            ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *paths],
            group_name="kbroker.compiled",
            target_dir=str(BUILD / "c"),
        )


if os.environ.get(VARIABLE) != "1":
    setup()
elif EDITABLE in sys.argv:
    sys.exit(f"{VARIABLE}=1 would hide what is edited: install without --editable, or unset it")
elif BUILDING.isdisjoint(sys.argv):
    setup(setup_requires=needed())  # pip asks first what a build needs, and brings it
elif find_spec("mypyc") is None:
    sys.exit(f"{VARIABLE}=1 needs mypy: pip install '{COMPILER}'")
else:
    setup(ext_modules=extensions())
