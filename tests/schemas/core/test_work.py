"""Comparisons of schemas, split into tasks."""

from __future__ import annotations

from kbroker.schemas.core.values import AVRO
from kbroker.schemas.core.work import BATCH_CHARACTERS, batches

from ..attacks import GOOD, Attack


def test_comparison_with_many_versions_is_split() -> None:
    old = Attack(AVRO, '"int"', json_of(BATCH_CHARACTERS // 3)).registered()
    compared = GOOD._replace(earlier=tuple((old, {}) for _ in range(10)))
    parts = [*batches(compared)]
    assert [len(each.earlier) for each in parts] == [2, 2, 2, 2, 2]
    assert [*batches(GOOD)] == [GOOD]


def json_of(size: int) -> str:
    return '"' + "x" * size + '"'
