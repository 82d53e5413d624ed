"""Layout of tables: columns that fit the terminal, or one block of lines per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from .terminal import Line, Style, display_width

_GAP: Final = "  "
# A column gets no narrower than its heading, or than this number of characters.
_MINIMUM: Final = 12
# Characters after which a cell may be wrapped.
_BREAKS: Final = " ,;/=.-_:"


class Cell(NamedTuple):
    """Printable text of a cell, with its style."""

    text: str
    style: Style = Style.PLAIN

    @property
    def width(self) -> int:
        """Width in columns of the terminal."""
        return display_width(self.text)


def layout(
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    numeric: Sequence[bool],
    width: int | None,
) -> list[str]:
    """Return the lines of a table.

    Args:
        headings: Heading of each column.
        rows: Cells of each row.
        numeric: For each column, True if its cells are numbers, which are right-aligned and never
            wrapped.
        width: Width of the terminal; None if the table may have any width.
    """
    head = [Cell(text, Style.HEADING) for text in headings]
    natural = [max([head[i].width, *(row[i].width for row in rows)]) for i in range(len(headings))]
    widths = natural if width is None else _fitted(natural, head, numeric, width)
    if widths is None:
        assert width is not None
        return list(_blocks(head, rows, width))
    return [line for row in (head, *rows) for line in _lines(row, widths, numeric)]


def _fitted(
    natural: Sequence[int], head: Sequence[Cell], numeric: Sequence[bool], width: int
) -> list[int] | None:
    """Return widths of columns whose sum fits, or None if that is impossible."""
    space = width - len(_GAP) * (len(natural) - 1)
    lowest = [
        each if is_number else min(each, max(one.width, _MINIMUM))
        for each, one, is_number in zip(natural, head, numeric, strict=True)
    ]
    widths = [max(low, min(each, space)) for low, each in zip(lowest, natural, strict=True)]
    if sum(lowest) > space:
        return None
    while sum(widths) > space:
        widest = max(
            (i for i in range(len(widths)) if widths[i] > lowest[i]), key=widths.__getitem__
        )
        widths[widest] -= 1
    return widths


def _lines(row: Sequence[Cell], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[Line]:
    """Yield the lines of one row; wrapped cells take several."""
    wrapped = [list(wrap(cell.text, width)) for cell, width in zip(row, widths, strict=True)]
    for texts in zip_longest(*wrapped, fillvalue=""):
        parts: list[tuple[str, Style]] = []
        last = max((i for i, text in enumerate(texts) if text), default=-1)
        for i, text in enumerate(texts[: last + 1]):
            pad = " " * (widths[i] - display_width(text))
            before, after = (pad, "") if numeric[i] else ("", pad)
            if i == last:
                after = ""
            parts += [(before, Style.PLAIN), (text, row[i].style), (after, Style.PLAIN)]
            parts += [(_GAP, Style.PLAIN)] if i < last else []
        yield Line(*parts)


def _blocks(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], width: int) -> Iterator[Line]:
    """Yield one block of lines per row: a heading and a value in each line."""
    label = max(cell.width for cell in head) + len(_GAP)
    for number, row in enumerate(rows):
        if number:
            yield Line()
        for heading, cell in zip(head, row, strict=True):
            name = heading.text.ljust(label)
            for text in wrap(cell.text, max(width - label, _MINIMUM)):
                yield Line((name, heading.style), (text, cell.style))
                name = " " * label


def wrap(text: str, width: int) -> Iterator[str]:
    """Yield the lines of text; it is broken after separators if possible."""
    while display_width(text) > width:
        end = 1
        while end < len(text) and display_width(text[: end + 1]) <= width:
            end += 1
        at = max((text.rfind(each, 0, end) for each in _BREAKS), default=-1) + 1
        cut = at if at > end // 2 else end
        yield text[:cut].rstrip()
        text = text[cut:].lstrip()
    yield text
