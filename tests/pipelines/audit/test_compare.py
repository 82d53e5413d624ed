"""Tests of the comparison by offset: each planted error is found, and no other."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from kbroker.pipelines.audit.compare import Compared, Comparison, Rules
from kbroker.pipelines.audit.findings import Findings, Kind
from kbroker.pipelines.audit.rows import Gap, Piece, Reason, Rows
from kbroker.protocol.records import Record

COUNT = 40


def record(offset: int) -> Record:
    return Record(b"k%d" % offset, b"v%d" % offset, offset * 10, [("h", b"x")], offset)


async def pieces(
    records: Sequence[Record], cuts: Sequence[int], gaps: Sequence[Gap] = (), end: int = COUNT
) -> AsyncIterator[Piece]:
    """Yield pieces that end at the given offsets."""
    begin = -1
    for cut in sorted({*cuts, end}):
        chosen = [one for one in records if begin <= one.offset < cut or begin < 0 > one.offset]
        inside = [gap for gap in gaps if begin < gap.end and gap.first < cut]
        yield Piece(Rows.of(chosen), cut, inside)
        begin = cut


async def as_files(records: Sequence[Record], size: int) -> AsyncIterator[Piece]:
    """Yield pieces as a lake returns them: a few records each, with no gaps between them."""
    for at in range(0, len(records), size):
        part = records[at : at + size]
        yield Piece(Rows.of(part), part[-1].offset + 1)


async def compare(
    topic: AsyncIterator[Piece],
    other: AsyncIterator[Piece],
    *,
    begin: int = 0,
    end: int = COUNT,
    other_end: int = 1 << 62,
    values: bool = True,
) -> tuple[dict[Kind, int], Compared, Findings]:
    findings = Findings()
    compared = Compared("t", 0, "the lake")
    await Comparison(compared, Rules(begin, end, other_end, values), findings).run(topic, other)
    return dict(findings.counts), compared, findings


SOUND = [record(offset) for offset in range(COUNT)]

DEFECTS: dict[str, tuple[Callable[[list[Record]], object], dict[Kind, int]]] = {
    "sound": (lambda rows: None, {}),
    "missing": (lambda rows: rows.pop(17), {Kind.MISSING: 1}),
    "first missing": (lambda rows: rows.pop(0), {Kind.MISSING: 1}),
    "last missing": (lambda rows: rows.pop(), {Kind.MISSING: 1}),
    "doubled": (lambda rows: rows.insert(18, rows[17]), {Kind.DOUBLED: 1}),
    "last doubled": (lambda rows: rows.append(rows[-1]), {Kind.DOUBLED: 1}),
    "three times": (lambda rows: rows.__setitem__(slice(5, 6), [rows[5]] * 3), {Kind.DOUBLED: 2}),
    "value": (
        lambda rows: rows.__setitem__(9, rows[9]._replace(value=b"!")),
        {Kind.DIFFERENT: 1},
    ),
    "tombstone": (
        lambda rows: rows.__setitem__(9, rows[9]._replace(value=None)),
        {Kind.DIFFERENT: 1},
    ),
    "key": (lambda rows: rows.__setitem__(9, rows[9]._replace(key=b"!")), {Kind.DIFFERENT: 1}),
    "header lost": (
        lambda rows: rows.__setitem__(9, rows[9]._replace(headers=[])),
        {Kind.DIFFERENT: 1},
    ),
    "time": (
        lambda rows: rows.__setitem__(9, rows[9]._replace(timestamp=0)),
        {Kind.DIFFERENT: 1},
    ),
    "extra": (lambda rows: rows.append(record(COUNT)), {Kind.EXTRA: 1}),
}


@pytest.mark.parametrize("name", DEFECTS)
async def test_each_planted_error_is_found_and_no_other(name: str) -> None:
    plant, expected = DEFECTS[name]
    planted = list(SOUND)
    plant(planted)
    for size in (1, 2, 3, 7, 17, 18, 100):
        for cuts in ((), (17,), (18,), tuple(range(COUNT))):
            counts, compared, findings = await compare(pieces(SOUND, cuts), as_files(planted, size))
            assert counts == expected, (size, cuts, findings.text())
            lost = sum(expected.get(kind, 0) for kind in (Kind.MISSING, Kind.DIFFERENT))
            assert compared.equal == COUNT - lost


async def test_random_changes_are_counted_exactly() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        planted, expected = [], dict.fromkeys((Kind.MISSING, Kind.DOUBLED, Kind.DIFFERENT), 0)
        for one in SOUND:
            kind = chance.choice([None] * 7 + list(expected))
            if kind is not None:
                expected[kind] += 1
            if kind is Kind.DIFFERENT:
                one = one._replace(value=b"!")
            planted += [one] * (0 if kind is Kind.MISSING else 2 if kind is Kind.DOUBLED else 1)
        cuts = sorted(chance.sample(range(COUNT), 5))
        found, _, _ = await compare(pieces(SOUND, cuts), as_files(planted, chance.randint(1, 9)))
        assert found == {kind: count for kind, count in expected.items() if count}, seed


async def test_records_lost_by_topic_are_excused() -> None:
    gaps = [
        Gap(10, 12, Reason.COMPACTION),
        Gap(12, 13, Reason.DELETED),
        Gap(20, 21, Reason.CONTROL),
        Gap(21, 22, Reason.ABORTED),
    ]
    absent = {one for gap in gaps for one in range(gap.first, gap.end)} | set(range(5))
    left = [one for one in SOUND if one.offset not in absent]
    counts, compared, findings = await compare(
        pieces(left, (11, 25), gaps), as_files(SOUND, 6), begin=5
    )
    assert counts == {Kind.EXTRA: 2}
    assert compared.excused == {Reason.COMPACTION: 2, Reason.DELETED: 6}
    assert "a transaction marker" in findings.text()
    assert "was aborted" in findings.text()


async def test_explained_gaps_of_copy_are_excused() -> None:
    copy = [one for one in SOUND if one.offset != 30]
    counts, compared, _ = await compare(
        pieces(SOUND, ()), pieces(copy, (7,), [Gap(30, 31, Reason.COMPACTION)])
    )
    assert counts == {}
    assert compared.excused == {Reason.COMPACTION: 1}


async def test_records_beyond_end_of_other_side_are_pending() -> None:
    counts, compared, _ = await compare(pieces(SOUND, ()), as_files(SOUND[:30], 8), other_end=30)
    assert (counts, compared.pending) == ({}, 10)


async def test_comparison_without_values_still_compares_nulls() -> None:
    other = [one._replace(value=b"") for one in SOUND]
    counts, _, _ = await compare(pieces(SOUND, ()), as_files(other, 8), values=False)
    assert counts == {}
    other[3] = other[3]._replace(value=None)
    counts, _, _ = await compare(pieces(SOUND, ()), as_files(other, 8), values=False)
    assert counts == {Kind.DIFFERENT: 1}


async def test_empty_side_is_missing_or_extra() -> None:
    counts, _, _ = await compare(pieces(SOUND, (5,)), as_files([], 1))
    assert counts == {Kind.MISSING: COUNT}
    counts, _, _ = await compare(pieces([], (5,)), as_files(SOUND, 9))
    assert counts == {Kind.EXTRA: COUNT}
