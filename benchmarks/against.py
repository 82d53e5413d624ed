"""Comparison of this checkout with an older commit: the rows that became slower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .brokers import Kbroker, output
from .rows import ROWS, Row
from .table import OURS, cell, matching, ratio

# Relative slowdown that is ignored: two runs of the same code differ by about as much.
TOLERATED = 0.03


class Slower(NamedTuple):
    """A row that became slower. `apart`: every round is worse than every round of the other commit."""

    row: Row
    durable: bool
    ratio: float
    apart: bool


@contextmanager
def checkout(ref: str, root: Path) -> Iterator[Path]:
    """Check out a commit of the repository at `root` in a temporary work tree.

    Raises:
        BenchmarkFailed: The commit does not exist.
    """
    commit = _git(root, "rev-parse", "--short", f"{ref}^{{commit}}")
    directory = root / ".work" / "against" / commit
    _git(root, "worktree", "prune")
    if not directory.exists():
        _git(root, "worktree", "add", "--detach", str(directory), commit)
    try:
        yield directory
    finally:
        _git(root, "worktree", "remove", "--force", str(directory))


def kbroker_at(directory: Path) -> type[Kbroker]:
    """Return the broker of another checkout, run with the packages of this environment."""

    class Before(Kbroker):
        name = directory.name
        root = directory

    return Before


def slower_rows(samples: list[dict[str, Any]], before: str) -> list[Slower]:
    """Return the rows whose median is more than `TOLERATED` worse than `before`, worst first."""
    found = []
    for name, row in ROWS.items():
        for durable in (False, True):
            now, then = (
                cell(matching(samples, name, broker, durable)) for broker in (OURS, before)
            )
            value = ratio(row, now, then)
            if now and then and value is not None and value < 1 - TOLERATED:
                apart = now.high < then.low if row.more_is_better else now.low > then.high
                found.append(Slower(row, durable, value, apart))
    return sorted(found, key=lambda one: one.ratio)


def verdict(slower: list[Slower], before: str) -> str:
    """Return the summary below the tables."""
    limit = f"{TOLERATED:.0%}"
    if not slower:
        return f"No row is more than {limit} slower than at {before}."
    lines = [f"More than {limit} slower than at {before} (median of the rounds):"]
    for one in slower:
        apart = "in every round" if one.apart else "rounds overlap"
        flushed = "with fsync" if one.durable else "without fsync"
        lines.append(f"  {one.ratio:.2f}  {one.row.title}, {flushed} ({apart})")
    return "\n".join(lines)


def _git(root: Path, *arguments: str) -> str:
    return output(["git", *arguments], f"git {' '.join(arguments)}", directory=root).strip()
