"""Command line of the attack program, see the package docstring."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from tempfile import TemporaryDirectory

import trio

from .attacks import Target
from .own import attack_own_broker, problems
from .run import Run

HOLD_SECONDS = 1.5
# Maximum attempts per attack, until the host of the virtual machine steals little CPU time.
TRIES = 6


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description="Attack a broker with expensive requests and measure the waits of a polite client.",
    )
    parser.add_argument(
        "--bootstrap",
        type=address,
        help="host:port of any disposable broker, kbroker or Apache Kafka; without it, start a "
        "broker and also measure its event loop and memory",
    )
    parser.add_argument(
        "--control", type=address, help="host:port of the control port of the broker, if it has one"
    )
    parser.add_argument("--pid", type=int, help="process ID of the broker, to measure its memory")
    parser.add_argument(
        "--seconds", type=float, default=5, help="duration of each attack in seconds"
    )
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
        found = problems(run)
    else:
        target = Target(options.bootstrap, HOLD_SECONDS, options.control)
        run = Run(target, pid=options.pid, tries=TRIES)
        trio.run(run.attack, options.seconds, options.only)
        found = run.problems()
    print(f"figures: {run.figures()}")
    print("\n".join([f"{len(found)} problems:", *found]) if found else "no problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
