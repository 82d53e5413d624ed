"""Run seeds: `python -m tests.simulation --seed 42 --trace`, or `--seeds 1000` from `--first`."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import Counter
from functools import partial
from multiprocessing import get_context

import click

from .world import Outcome, simulate, simulate_aside

SEEDS_OF_A_TURN = 10


@click.command()
@click.option("--seed", type=int, help="One seed; without it, many.")
@click.option("--first", type=int, default=0, show_default=True, help="The first of many seeds.")
@click.option("--seeds", type=int, default=200, show_default=True, help="How many seeds.")
@click.option("--nodes", type=int, help="How many nodes; without it, as the seed says.")
@click.option("--trace", is_flag=True, help="Print every event of the one seed.")
def main(seed: int | None, first: int, seeds: int, nodes: int | None, trace: bool) -> None:
    """Simulate clusters and say what took place in them; one that fails ends everything."""
    try:
        if seed is None:
            _run_many(first, seeds, nodes)
        else:
            _run_one(seed, nodes, trace)
    except Exception:  # noqa: BLE001 - whatever it is
        traceback.print_exc(file=sys.stdout)
        sys.exit(1)


def _run_one(seed: int, nodes: int | None, trace: bool) -> None:
    if trace:
        logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s", level=logging.INFO)
    else:
        logging.disable()
    outcome = simulate(seed, trace=sys.stdout if trace else None, nodes=nodes)
    _tell(outcome)
    print(_listed(outcome.work))


def _run_many(first: int, seeds: int, nodes: int | None) -> None:
    """On as many cores as there are; when one fails the others end, where they hang too."""
    total: Counter[str] = Counter()
    worthless = 0
    run = partial(simulate_aside, nodes=nodes)
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for outcome in pool.imap_unordered(run, range(first, first + seeds), SEEDS_OF_A_TURN):
            _tell(outcome)
            total.update(outcome.work)
            worthless += not outcome.counts
    print(
        f"figures: {seeds} seeds from {first} on, {worthless} of them without an election, "
        f"truncation or ISR change; {_listed(total)}"
    )


def _tell(outcome: Outcome) -> None:
    print(
        f"seed {outcome.seed}: digest {outcome.digest:08x}, {outcome.events} events, "
        f"{outcome.seconds:.1f} s, {outcome.work['elections']} elections, "
        f"{outcome.work['truncations']} truncations, {outcome.work['ISR changes']} ISR changes",
        flush=True,
    )


def _listed(work: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(work.items()))


if __name__ == "__main__":
    main()
