"""Plant one defect after the other, and say what noticed it: `python -m tests.mutants M3 M9`."""

from __future__ import annotations

import sys
import time

import click

from .mutant import Mutant, UselessMutant, mutants


@click.command()
@click.argument("names", nargs=-1)
@click.option("--minutes", default=10.0, show_default=True, help="For each of them.")
def main(names: tuple[str, ...], minutes: float) -> None:
    """Run the mutants NAMES, by default all; exit status 1 when one was not noticed."""
    known = mutants()
    unknown = set(names) - {each.name for each in known}
    if unknown:
        there = ", ".join(each.name for each in known)
        raise click.UsageError(f"no mutant {', '.join(sorted(unknown))}; there are {there}")
    chosen = [each for each in known if not names or each.name in names]
    killed = sum(_run(each, minutes * 60) for each in chosen)
    print(f"figures: {killed} of {len(chosen)} mutants killed")
    sys.exit(killed < len(chosen))


def _run(mutant: Mutant, seconds: float) -> bool:
    """Run one mutant and print what became of it; returns whether it was noticed."""
    began = time.monotonic()
    try:
        killer = mutant.killed_by(seconds)
        result = f"killed by {killer}" if killer else "SURVIVED"
    except UselessMutant as error:
        killer, result = None, f"USELESS: {error}"
    took = time.monotonic() - began
    print(f"{mutant.name:<4} {mutant.breaks}: {result} ({took:.0f} s)", flush=True)
    return killer is not None


if __name__ == "__main__":
    main()
