"""Command line of the simulator: `python -m tests.simulation --seed 42 --trace`, or `--seeds N`."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import Counter
from functools import partial
from multiprocessing import get_context

import click

from .world import Outcome, simulate, simulate_in_worker

SEEDS_PER_CHUNK = 10


@click.command()
@click.option("--seed", type=int, help="Run only this seed. [default: run --seeds seeds]")
@click.option("--first", type=int, default=0, show_default=True, help="First seed to run.")
@click.option("--seeds", type=int, default=200, show_default=True, help="Number of seeds to run.")
@click.option("--nodes", type=int, help="Number of nodes. [default: chosen by the seed]")
@click.option("--trace", is_flag=True, help="Print every event of --seed.")
def main(seed: int | None, first: int, seeds: int, nodes: int | None, trace: bool) -> None:
    """Simulate clusters and print a summary of each run; stop at the first failure."""
    try:
        if seed is None:
            _run_many(first, seeds, nodes)
        else:
            _run_one(seed, nodes, trace)
    except Exception:  # noqa: BLE001 - the command reports any failure
        traceback.print_exc(file=sys.stdout)
        sys.exit(1)


def _run_one(seed: int, nodes: int | None, trace: bool) -> None:
    if trace:
        logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s", level=logging.INFO)
    else:
        logging.disable()
    outcome = simulate(seed, trace=sys.stdout if trace else None, nodes=nodes)
    _print_outcome(outcome)
    print(_format_counts(outcome.work))


def _run_many(first: int, seeds: int, nodes: int | None) -> None:
    """Run the seeds on all cores; the first failure stops the others, even if they hang."""
    total: Counter[str] = Counter()
    uneventful = 0
    run = partial(simulate_in_worker, nodes=nodes)
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        for outcome in pool.imap_unordered(run, range(first, first + seeds), SEEDS_PER_CHUNK):
            _print_outcome(outcome)
            total.update(outcome.work)
            uneventful += not outcome.counts
    print(
        f"figures: {seeds} seeds from {first} on, {uneventful} of them without an election, "
        f"truncation or ISR change; {_format_counts(total)}"
    )


def _print_outcome(outcome: Outcome) -> None:
    print(
        f"seed {outcome.seed}: digest {outcome.digest:08x}, {outcome.events} events, "
        f"{outcome.seconds:.1f} s simulated, {outcome.work['elections']} elections, "
        f"{outcome.work['truncations']} truncations, {outcome.work['ISR changes']} ISR changes",
        flush=True,
    )


def _format_counts(work: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(work.items()))


if __name__ == "__main__":
    main()
