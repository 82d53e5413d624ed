"""Run a command while other processes load all cores.

Usage: python tests/under_load.py COUNT COMMAND [ARGUMENT ...]

COUNT processes run busy loops until the command ends. The exit status is that of the command, or 1
if one of these processes ended early.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

# The process exits by itself if its parent has exited.
BURN = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


def main(count: int, command: Sequence[str]) -> int:
    burn = [sys.executable, "-c", BURN, str(os.getpid())]
    burners = [subprocess.Popen(burn) for _ in range(count)]
    began = time.monotonic()
    try:
        status = subprocess.run(command, check=False).returncode
        ended = sum(burner.poll() is not None for burner in burners)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    minutes = (time.monotonic() - began) / 60
    print(f"figures: beside {count} busy processes for {minutes:.0f} min, {ended} of them ended")
    return status or (1 if ended else 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
