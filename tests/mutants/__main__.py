"""Command line of the mutation tests: `python -m tests.mutants M3 M9`."""

from __future__ import annotations

import sys
import time

import click

from .mutant import InvalidMutant, Mutant, mutants


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--minutes", default=10.0, show_default=True, help="Time limit per mutant in minutes."
)
def main(names: tuple[str, ...], minutes: float) -> None:
    """Run the mutants NAMES (default: all). Exit with status 1 if one was not detected."""
    known = mutants()
    unknown = set(names) - {each.name for each in known}
    if unknown:
        valid = ", ".join(each.name for each in known)
        raise click.UsageError(f"unknown mutant: {', '.join(sorted(unknown))} (valid: {valid})")
    chosen = [each for each in known if not names or each.name in names]
    killed = sum(_run(each, minutes * 60) for each in chosen)
    print(f"figures: {killed} of {len(chosen)} mutants killed")
    sys.exit(killed < len(chosen))


def _run(mutant: Mutant, seconds: float) -> bool:
    """Run a mutant and print the result. Returns True if it was detected."""
    began = time.monotonic()
    try:
        killer = mutant.killed_by(seconds)
        result = f"killed by {killer}" if killer else "SURVIVED"
    except InvalidMutant as error:
        killer, result = None, f"INVALID: {error}"
    took = time.monotonic() - began
    print(f"{mutant.name:<4} {mutant.breaks}: {result} ({took:.0f} s)", flush=True)
    return killer is not None


if __name__ == "__main__":
    main()
