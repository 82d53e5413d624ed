"""Run seeds: `python -m tests.simulation --seed 42 --trace`, or `--seeds 1000` from `--first`."""

from __future__ import annotations

import sys
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
    total: Counter[str] = Counter()
    for each in range(first, first + seeds) if seed is None else [seed]:
        outcome = simulate(each, trace=sys.stdout if trace else None, nodes=nodes)
        total.update(outcome.work)
        if seed is not None:
            _print(outcome)
    print(", ".join(f"{number} {what}" for what, number in sorted(total.items())))


def _print(outcome: Outcome) -> None:
    print(f"seed {outcome.seed}: {outcome.events} events, digest {outcome.digest:08x}")


if __name__ == "__main__":
    main()
