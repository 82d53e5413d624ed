"""This checkout beside an older one of the same repository: which rows have become slower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .brokers import Kbroker, output
from .rows import ROWS, Row
from .table import OURS, cell, matching, ratio

TOLERATED = 0.03
"""How much slower a row may be: two runs of the same code differ by about as much."""


class Slower(NamedTuple):
    """A row that is behind. `apart`: no round of now was as good as any round of before."""

    row: Row
    durable: bool
    ratio: float
    apart: bool


@contextmanager
def checkout(ref: str, root: Path) -> Iterator[Path]:
    """The files of a commit of the repository at `root`, in a work tree that goes at the end.

    Raises BenchmarkFailed when git knows no such commit.
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
    """The broker of another checkout, with the packages of this environment."""

    class Before(Kbroker):
        name = directory.name
        root = directory

    return Before


def slower_rows(samples: list[dict[str, Any]], before: str) -> list[Slower]:
    """The rows whose median is more than `TOLERATED` behind that of `before`, worst first."""
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
    """What to say below the tables."""
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
