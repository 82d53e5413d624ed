"""Line-by-line comparison of two texts with bounded cost."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.runtime.time_slices import DutyCycle

from .answers import REST

# Maximum number of pairs of lines to compare, after the equal start and end of both texts. If there
# are more, all lines between count as replaced.
PAIRS_MAX = 1_000_000

Row = dict[str, object]


async def compare_lines(before: Sequence[str], after: Sequence[str]) -> list[Row]:
    """Return the lines of both texts in order.

    Args:
        before: Lines of the earlier text.
        after: Lines of the later text.

    Returns:
        Rows with the `text` of a line and its `change`: `same`, `removed` or `added`.
    """
    start = _equal_start(before, after)
    end = min(_equal_start(before[::-1], after[::-1]), min(len(before), len(after)) - start)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    rows = [_row("same", text) for text in before[:start]]
    if len(old) * len(new) > PAIRS_MAX:
        rows += [_row("removed", text) for text in old] + [_row("added", text) for text in new]
    else:
        rows += await _differences(old, new)
    return rows + [_row("same", text) for text in before[len(before) - end :]]


def _equal_start(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal lines at the start."""
    pairs = zip(one, other, strict=False)
    return next(
        (at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other))
    )


async def _differences(old: Sequence[str], new: Sequence[str]) -> list[Row]:
    """Return the rows of two texts by their longest common subsequence."""
    duty_cycle = DutyCycle(rest=REST)
    # Length of the longest common subsequence of the rests of both texts.
    lengths = [[0] * (len(new) + 1)]
    for left in reversed(old):
        below, row = lengths[-1], [0]
        for at in range(len(new) - 1, -1, -1):
            is_same = left == new[at]
            row.append(below[at + 1] + 1 if is_same else max(row[-1], below[at]))
        lengths.append(row[::-1])
        await duty_cycle.pause()
    lengths.reverse()
    rows, first, second = [], 0, 0
    while first < len(old) and second < len(new):
        if old[first] == new[second]:
            rows.append(_row("same", old[first]))
            first, second = first + 1, second + 1
        elif lengths[first + 1][second] >= lengths[first][second + 1]:
            rows.append(_row("removed", old[first]))
            first += 1
        else:
            rows.append(_row("added", new[second]))
            second += 1
    rows += [_row("removed", text) for text in old[first:]]
    return rows + [_row("added", text) for text in new[second:]]


def _row(change: str, text: str) -> Row:
    return {"change": change, "text": text}
