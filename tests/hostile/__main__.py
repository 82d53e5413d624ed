"""python -m tests.hostile [--bootstrap host:port]: see the text of the package."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from tempfile import TemporaryDirectory

import trio

from .attacks import Target
from .own import attack_own_broker, wrongs
from .run import Run

HOLD_SECONDS = 1.5
TRIES = 6
"""How often each attack is made, until the host of a virtual machine leaves it the processors."""


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description="Do to a broker what may hold up others, and measure what a polite client waits.",
    )
    parser.add_argument(
        "--bootstrap",
        type=address,
        help="host:port of any broker that may be spoilt, also one of Apache Kafka; without it one "
        "is started, whose event loop and memory are measured as well",
    )
    parser.add_argument(
        "--control", type=address, help="host:port of that broker's control port, if it has one"
    )
    parser.add_argument("--pid", type=int, help="that broker's process, to watch its memory")
    parser.add_argument("--seconds", type=float, default=5, help="how long each attack goes on")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ATTACK",
        help="run only this attack (repeat)",
    )
    options = parser.parse_args()
    if options.bootstrap is None:
        with TemporaryDirectory() as data_dir:
            attack = partial(
                attack_own_broker,
                data_dir,
                options.seconds,
                HOLD_SECONDS,
                tries=TRIES,
                only=options.only,
            )
            run = trio.run(attack)
        found = wrongs(run)
    else:
        target = Target(options.bootstrap, HOLD_SECONDS, options.control)
        run = Run(target, pid=options.pid, tries=TRIES)
        trio.run(run.attack, options.seconds, options.only)
        found = run.wrongs()
    print(f"figures: {run.figures()}")
    print("\n".join([f"{len(found)} wrongs:", *found]) if found else "nothing is wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
