"""Comparison of a run's results with the expected ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from . import truth
from .readback import Record

_EXAMPLES = 3
G = TypeVar("G", bound=tuple[object, ...])


@dataclass
class Check:
    """One comparison with its result."""

    subject: str
    # Description of the result if the check passes.
    finding: str
    differences: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if there are no differences."""
        return not self.differences

    def examples(self) -> list[str]:
        """Return the first differences and the number of further ones."""
        more = len(self.differences) - _EXAMPLES
        return self.differences[:_EXAMPLES] + ([f"and {more:,} more"] if more > 0 else [])


def check_records(
    subject: str,
    expected: Mapping[truth.Identity, bytes],
    identity_columns: Iterable[str],
    records: Iterable[Record],
) -> Check:
    """Check that a topic contains exactly the expected records, each once and unchanged.

    Args:
        subject: Name of the check.
        expected: Digest of each record by its identity.
        identity_columns: Columns that identify a record.
        records: Records of the topic.

    Returns:
        The check.
    """
    check = Check(subject, f"{len(expected):,} records, each exactly once and unchanged")
    columns = tuple(identity_columns)
    missing = set(expected)
    for record in records:
        where = f"partition {record.partition} offset {record.offset}"
        try:
            values = json.loads(record.value or b"null")
            identity = tuple(values[column] for column in columns)
            found = truth.digest((record.key or b"").decode(), record.timestamp_ms, values)
        except (ValueError, KeyError, TypeError, AttributeError):
            check.differences.append(f"{where} is not a record of the data set")
            continue
        name = " ".join(map(str, identity))
        if identity not in expected:
            check.differences.append(f"{name} ({where}) is not in the data set")
        elif identity not in missing:
            check.differences.append(f"{name} ({where}) is a duplicate")
        elif found != expected[identity]:
            check.differences.append(f"{name} ({where}) differs from the data set")
        missing.discard(identity)
    check.differences += [f"{' '.join(map(str, i))} is missing" for i in sorted(missing, key=str)]
    return check


def check_figures(
    subject: str,
    expected: Mapping[G, Mapping[str, object]],
    found: Mapping[G, Mapping[str, object] | None],
) -> Check:
    """Check that the statistics of every group are the expected ones.

    Args:
        subject: Name of the check.
        expected: Expected statistics by group.
        found: Actual statistics by group.

    Returns:
        The check.
    """
    figures = sum(map(_count, expected.values()))
    check = Check(subject, f"{figures:,} results of {len(expected):,} groups, all equal")
    for group in sorted(expected.keys() | found.keys(), key=str):
        name = " ".join(map(str, group))
        if group not in expected:
            check.differences.append(f"group {name} should not exist")
        elif group not in found:
            check.differences.append(f"group {name} is missing")
        elif found[group] != expected[group]:
            check.differences.append(
                f"group {name}: {_first_difference(expected[group], found[group])}"
            )
    return check


def check_late(late_rows: int) -> Check:
    """Check that Spark dropped no late rows."""
    check = Check("late rows", "none dropped")
    if late_rows:
        check.differences.append(f"Spark dropped {late_rows:,} rows older than its watermark")
    return check


def _count(figures: Mapping[str, object]) -> int:
    return sum(_count(value) if isinstance(value, Mapping) else 1 for value in figures.values())


def _first_difference(expected: object, found: object) -> str:
    """Describe the first difference of two dicts, such as ``rain delayed is 3, should be 4``."""
    if not isinstance(expected, Mapping) or not isinstance(found, Mapping):
        return f"is {found}, should be {expected}"
    for inner in sorted(expected.keys() | found.keys()):
        if inner not in expected or inner not in found:
            return f"{inner} is {'missing' if inner in expected else 'unexpected'}"
        if expected[inner] != found[inner]:
            return f"{inner} {_first_difference(expected[inner], found[inner])}"
    return "equal"
