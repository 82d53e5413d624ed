"""Build script; pyproject.toml contains the metadata.

With KBROKER_COMPILE=1, mypyc compiles the modules that process each request and each batch
(docs/explanation/performance.md). The wheel then works with one Python version on one platform, and
also contains the source. The build needs a C compiler and takes two minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

VARIABLE = "KBROKER_COMPILE"
COMPILER = "mypy>=1.18"
# Commands that compile; other commands only read the metadata.
BUILDING = {"bdist_wheel", "build", "build_ext"}
EDITABLE = "editable_wheel"
BUILD = Path("build").resolve()
# Names of compiled modules by package of `kbroker`.
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


def project() -> dict[str, Any]:
    # Not at the top: pip runs this script also with an older Python, to read which one it needs.
    import tomllib

    return tomllib.loads(Path("pyproject.toml").read_text())


def needed() -> list[str]:
    """Return the requirements of a compiled build: mypyc reads the types of all dependencies."""
    return [COMPILER, *project()["project"]["dependencies"]]


def copy_as_installed(directory: Path) -> None:
    """Copy all packages into the layout of an installation; some are top-level directories here."""
    said = project()["tool"]["setuptools"]
    for package in said["packages"]:
        target = directory / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for module in source_directory(package, said["package-dir"]).glob("*.py"):
            shutil.copy(module, target)


def source_directory(package: str, directories: dict[str, str]) -> Path:
    """Return the directory of a package, as setuptools does.

    A source distribution has no links, so `kbroker/protocol/messages` may not exist.

    Args:
        package: Name of the package.
        directories: Directories of packages by name; subpackages are below them.
    """
    if package in directories or "." not in package:
        return Path(directories.get(package, package))
    parent, _, name = package.rpartition(".")
    return source_directory(parent, directories) / name


def extensions() -> list[Extension]:
    """Return the compiled modules, as one library."""
    from contextlib import chdir

    from mypyc.build import mypycify

    directory = BUILD / "as-installed"
    shutil.rmtree(directory, ignore_errors=True)
    copy_as_installed(directory)
    paths = [
        f"kbroker/{package}/{name}.py" for package, names in COMPILED.items() for name in names
    ]
    with chdir(directory):
        return mypycify(
            ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *paths],
            group_name="kbroker.compiled",
            target_dir=str(BUILD / "c"),
        )


if os.environ.get(VARIABLE) != "1":
    setup()
elif EDITABLE in sys.argv:
    sys.exit(
        f"{VARIABLE}=1 hides edits of compiled modules: install without --editable, or unset it"
    )
elif BUILDING.isdisjoint(sys.argv):
    setup(setup_requires=needed())  # pip asks for the build requirements first, and installs them
elif find_spec("mypyc") is None:
    sys.exit(f"{VARIABLE}=1 needs mypy: pip install '{COMPILER}'")
else:
    setup(ext_modules=extensions())
