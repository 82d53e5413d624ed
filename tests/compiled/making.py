"""A copy of this project with compiled modules, for tests and benchmarks.

Use the copy like a clone: Python imports its `kbroker` when started there.

Usage: python -m tests.compiled.making DIRECTORY
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..repository import ROOT, copy_repository

# Module name of the code that all compiled modules share.
LIBRARY = "compiled__mypyc"
# Installed tools of this checkout that the copy uses as well.
ENVIRONMENTS = (".venv", ".work")
OUTPUT_TAIL = 4000


class CompileError(Exception):
    """The compilation failed; the message is the end of the compiler's output."""


def make(directory: Path) -> Path:
    """Copy the repository and compile the modules that `setup.py` lists. Raises CompileError."""
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
        raise CompileError(ended.stdout[-OUTPUT_TAIL:])
    return directory


def main() -> None:
    try:
        print(make(Path(sys.argv[1]).resolve()))
    except CompileError as error:
        sys.exit(f"{error}\nInstall a C compiler and Python's headers (Debian: gcc, python3-dev).")


if __name__ == "__main__":
    main()
