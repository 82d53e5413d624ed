"""Console output of the demo: labelled lines, progress, checks, and a table."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from . import truth
from .verify import Check

_BAR_CELLS = 28
_LABEL_CELLS = 12
_PLAIN_EVERY_S = 5.0
_WEATHER_NAMES = {"rain": "rain", "dry": "dry", "no_weather": "not known", "all": "all flights"}


class Console:
    """Output to a terminal, or without styles to a file or pipe."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lively = out.isatty()
        self._colourful = self._lively and "NO_COLOR" not in os.environ
        self._passing = False
        self._plain_at = 0.0

    def headline(self, text: str) -> None:
        """Print the first line."""
        self._print(self._styled("1", text))

    def line(self, label: str, text: str) -> None:
        """Print a permanent line."""
        self._print(f"  {label:<{_LABEL_CELLS}}{text}")

    def blank(self) -> None:
        """Print an empty line."""
        self._print("")

    def transient_line(self, label: str, text: str) -> None:
        """Print a line that the next one replaces; print nothing without a terminal."""
        if self._lively:
            width = shutil.get_terminal_size().columns - 1
            self._out.write("\r\x1b[K" + f"  {label:<{_LABEL_CELLS}}{text}"[:width])
            self._out.flush()
            self._passing = True

    def progress(
        self, done: int, produced: int, total: int, rate: float, batch: int | None
    ) -> None:
        """Show the progress of Spark (full blocks) and of the producer (shaded blocks).

        Args:
            done: Rows processed by Spark.
            produced: Rows produced.
            total: Rows of the run.
            rate: Rows per second through Spark so far.
            batch: Last finished micro-batch.
        """
        text = f"{done:>9,} of {total:,} rows"
        if batch is not None:
            text += f" · {rate:,.0f} rows/s · batch {batch}"
        if self._lively:
            self.transient_line("departures", f"{bar(done, produced, total)} {text}")
        elif time.monotonic() - self._plain_at >= _PLAIN_EVERY_S:
            self._plain_at = time.monotonic()
            self.line("departures", f"{text} · producer at {produced:,}")

    def check(self, check: Check) -> None:
        """Print a check with its result and the first differences."""
        mark = self._styled("32", "✓") if check.passed else self._styled("1;31", "✗")
        finding = check.finding if check.passed else f"{len(check.differences):,} differences"
        self._print(f"  {mark} {check.subject:<18}{finding}")
        for example in check.examples():
            self._print(f"      {example}")

    def table(self, groups: Mapping[truth.Group, Mapping[str, truth.Figures]]) -> None:
        """Print departure delays by weather, over all groups."""
        for row in table(groups):
            self._print("  " + row)

    def verdict(self, passed: bool, text: str) -> None:
        """Print the overall result."""
        self._print(self._styled("1;32" if passed else "1;31", text))

    def _print(self, text: str) -> None:
        if self._passing:
            self._out.write("\r\x1b[K")
            self._passing = False
        self._out.write(text + "\n")
        self._out.flush()

    def _styled(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colourful else text


def bar(done: int, produced: int, total: int) -> str:
    """Return a progress bar of fixed width."""
    full = _BAR_CELLS * done // max(total, 1)
    ahead = max(0, _BAR_CELLS * produced // max(total, 1) - full)
    return "█" * full + "▒" * ahead + "░" * (_BAR_CELLS - full - ahead)


def table(groups: Mapping[truth.Group, Mapping[str, truth.Figures]]) -> Iterable[str]:
    """Yield the lines of a table of departure delays by weather, over all groups."""
    yield f"{'weather':<14}{'flights':>10}{'15 min late or more':>22}{'mean delay':>14}{'worst':>12}"
    yield "─" * 72
    for name in ("rain", "dry", "no_weather", "all"):
        total = total_of(group[name] for group in groups.values())
        departed = total.departed or 1
        share, mean = total.delayed / departed, total.delay_sum / departed
        yield (
            f"{_WEATHER_NAMES[name]:<14}{total.flights:>10,}{share:>22.1%}"
            f"{mean:>10.1f} min{total.delay_max or 0:>8,} min"
        )


def total_of(figures: Iterable[truth.Figures]) -> truth.Tally:
    """Return the sum of several statistics."""
    total = truth.Tally()
    for part in figures:
        total.flights += part["flights"] or 0
        total.departed += part["departed"] or 0
        total.delayed += part["delayed"] or 0
        total.delay_sum += part["delay_sum"] or 0
        worst = [d for d in (total.delay_max, part["delay_max"]) if d is not None]
        total.delay_max = max(worst, default=None)
    return total


def shown(path: Path) -> str:
    """Return a path relative to the current directory if possible."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
