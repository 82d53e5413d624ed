"""Compaction tasks for tests."""

from __future__ import annotations

from pathlib import Path

from kbroker.protocol.records import Record

from ..wire import (
    Topic,
    Wire,
    batch,
    produce,
)

COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "2000"}


KEYS = 5


async def update(wire: Wire, topic: Topic, start: int, end: int) -> None:
    """Write values for consecutive keys."""
    for number in range(start, end):
        record = Record(b"key %d" % (number % KEYS), b"value %d " % number * 10, 1000 + number)
        row = await produce(wire, topic, batch([record]))
        assert row.error_code == 0


def leftovers(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*.cleaned")]
