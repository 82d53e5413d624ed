"""Validation of the records of a batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kbroker.protocol.log_validator import validate_at_once
from kbroker.protocol.record_walk import ORDINARY_MAX, RecordSteps, RecordWalk
from kbroker.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    ProduceRules,
    Record,
    encode_batch,
    read_header,
)

from .validating import HOUR, NOW, as_stored


def outcome(header: BatchHeader, pieces: Sequence[bytes], rules: ProduceRules, step: int) -> object:
    """Return the result of a validation of records in pieces."""
    walk = RecordWalk(header, rules, NOW)
    steps = RecordSteps(walk)
    try:
        for piece in pieces:
            walk.feed(piece)
            while not steps.step(step):
                pass
        walk.finish()
    except ValueError as error:
        return type(error)
    return walk.max_timestamp, walk.untimely, walk.errors, walk.index, walk.headers


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_records_in_pieces_are_checked_like_records_in_one(seed: int) -> None:
    draw = random.Random(seed)
    rules = ProduceRules(compacted=seed % 3 == 0, timestamp_before_max_ms=HOUR, max_headers=40)
    count = draw.choice([1, 3, 80, 300])
    alike, apart = draw.random(), draw.choice([1, 3, 1000])
    records = [
        Record(
            None if draw.random() < 0.02 else b"key",
            bytes(5 if draw.random() < alike else draw.choice([0, 1, 70, 9000])),
            NOW + index * apart + (draw.choice([-HOUR, HOUR]) if draw.random() < 0.02 else 0),
            [("h", b"x")] * draw.choice([0, 0, 0, 0, 0, 0, 0, 0, 1, 2]) if seed % 2 else [],
        )
        for index in range(count)
    ]
    batch = encode_batch(records)
    header, content = read_header(batch), bytearray(batch[HEADER_SIZE:])
    for _ in range(draw.choice([0, 0, 1])):
        content[draw.randrange(min(len(content), 500))] ^= 1 << draw.randrange(8)
    data = bytes(content)
    expected = outcome(header, [data], rules, 1000)
    for size in (1, 2, 7, 64, 1000):
        if size == 1 and len(data) > 5000:
            continue
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert outcome(header, pieces, rules, draw.choice([1, 10, 1000])) == expected
    one_by_one = [outcome(header, [data], rules, 1)]
    assert one_by_one == [expected]


@pytest.mark.parametrize("seed", range(40))
def test_ordinary_batch_is_validated_at_once(seed: int) -> None:
    draw = random.Random(seed)
    rules = ProduceRules(compacted=seed % 2 == 0, timestamp_before_max_ms=HOUR)
    keys = [b"", b"k", bytes(63), bytes(64), bytes(9000)]
    records = [
        Record(
            draw.choice(keys if rules.compacted else [None, *keys]),
            draw.choice([None, b"", bytes(63), bytes(64), bytes(8192), bytes(70_000)]),
            NOW + draw.randrange(-32, 32),
        )
        for _ in range(draw.randint(1, ORDINARY_MAX))
    ]
    batch = memoryview(encode_batch(records))
    assert validate_at_once(batch, 9, NOW, rules) == as_stored(batch, 9, NOW, rules)
