"""A copy of this project whose hot modules are compiled in their places, for tests and benchmarks.

It is used like a clone: who runs Python in it imports its `kbroker`.
Usage: python -m tests.compiled.making DIRECTORY
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..repository import ROOT, copy_repository

LIBRARY = "compiled__mypyc"
"""What the compiled modules have in common stands in a module of this name."""
ENVIRONMENTS = (".venv", ".work")
"""What was installed for this checkout is for its copy, too."""
LAST_WORDS = 4000


class CompileError(Exception):
    """The compiler's last words."""


def make(directory: Path) -> Path:
    """Copy the repository, and compile what `setup.py` names.

    Raises CompileError.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    copy_repository(directory)
    for name in ENVIRONMENTS:
        if (ROOT / name).exists():
            (directory / name).symlink_to(ROOT / name)
    ended = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=directory,
        env=os.environ | {"KBROKER_COMPILE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode or not [*directory.glob(f"kbroker/{LIBRARY}.*")]:
        raise CompileError(ended.stdout[-LAST_WORDS:])
    return directory


def main() -> None:
    try:
        print(make(Path(sys.argv[1]).resolve()))
    except CompileError as error:
        sys.exit(f"{error}\nIt takes a C compiler and Python's headers (Debian: gcc, python3-dev).")


if __name__ == "__main__":
    main()
