"""python -m tests.hostile --bootstrap host:port: see the text of the package."""

from __future__ import annotations

import argparse
import sys

import trio

from .attacks import Target
from .run import Run


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--bootstrap", type=address, required=True, help="host:port of the broker")
    parser.add_argument(
        "--control", type=address, help="host:port of its control port, if it has one"
    )
    parser.add_argument("--seconds", type=float, default=5, help="how long each attack goes on")
    parser.add_argument("--pid", type=int, help="the broker's process, to watch its memory")
    options = parser.parse_args()
    run = Run(Target(options.bootstrap, options.control), pid=options.pid)
    trio.run(run.attack, options.seconds)
    wrongs = run.wrongs()
    print("\n".join([f"{len(wrongs)} wrongs:", *wrongs]) if wrongs else "nothing is wrong")
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
