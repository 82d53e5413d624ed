"""Run seeds: `python -m tests.simulation --seed 42 --trace`, or `--seeds 1000` from `--first`."""

from __future__ import annotations

import logging
import sys
import traceback
from collections import Counter

import click

from .world import Outcome, simulate


@click.command()
@click.option("--seed", type=int, help="One seed; without it, many.")
@click.option("--first", type=int, default=0, show_default=True, help="The first of many seeds.")
@click.option("--seeds", type=int, default=200, show_default=True, help="How many seeds.")
@click.option("--nodes", type=int, help="How many nodes; without it, as the seed says.")
@click.option("--trace", is_flag=True, help="Print every event.")
def main(seed: int | None, first: int, seeds: int, nodes: int | None, trace: bool) -> None:
    """Simulate clusters and say what took place in them."""
    _let_logs_be_seen(trace)
    total: Counter[str] = Counter()
    worthless = 0
    for each in range(first, first + seeds) if seed is None else [seed]:
        outcome = _run(each, nodes, trace)
        worthless += not outcome.counts
        total.update(outcome.work)
    if seed is None:
        print(f"{seeds} seeds, {worthless} of them without an election, truncation or ISR change")
    print(", ".join(f"{number} {what}" for what, number in sorted(total.items())))


def _let_logs_be_seen(trace: bool) -> None:
    if trace:
        logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s", level=logging.INFO)
    else:
        logging.disable()


def _run(seed: int, nodes: int | None, trace: bool) -> Outcome:
    """Run one seed; one that fails ends everything."""
    try:
        outcome = simulate(seed, trace=sys.stdout if trace else None, nodes=nodes)
    except Exception:  # noqa: BLE001 - whatever it is
        traceback.print_exc(file=sys.stdout)
        sys.exit(1)
    print(
        f"seed {seed}: digest {outcome.digest:08x}, {outcome.events} events, "
        f"{outcome.seconds:.1f} s, {outcome.work['elections']} elections, "
        f"{outcome.work['truncations']} truncations, {outcome.work['ISR changes']} ISR changes",
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    main()
