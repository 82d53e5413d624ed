"""Random histories of a compacted partition, and the values that must remain.

A history is a list of steps without offsets and times, so that different brokers can run the same
one. The driver reports the offsets of the records to `CommittedValues`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

ABORT_CHANCE = 0.4
TOMBSTONE_CHANCE = 0.25
# Number of transactions per producer id before a new producer replaces it.
LIFETIME = 6

# Key and value of a record. None as value deletes the key.
Pair = tuple[bytes, bytes | None]


class Put(NamedTuple):
    """Step that writes one batch. Producer 0 writes without transactions, the others within them."""

    producer: int
    pairs: tuple[Pair, ...]


class End(NamedTuple):
    """Step that ends the transaction of a producer."""

    producer: int
    commit: bool


class Roll(NamedTuple):
    """Step that closes the active segment."""


class Clean(NamedTuple):
    """Step that compacts once, with a map for `keys` keys.

    `cut_after` is the disk operation before which the broker is killed, or None for no kill.
    """

    keys: int
    cut_after: int | None


class Wait(NamedTuple):
    """Step that waits for a fraction of `delete.retention.ms`."""

    share: float


class Kill(NamedTuple):
    """Step that kills the broker between two passes."""


Step = Put | End | Roll | Clean | Wait | Kill


def steps(random_: random.Random, count: int, *, producers: int = 3) -> Iterator[Step]:
    """Yield about `count` random steps. Open transactions are ended at the end."""
    open_: set[int] = set()
    ended: dict[int, int] = defaultdict(int)
    ids = list(range(1, producers + 1))
    keys = random_.choice([4, 12, 40])
    written = 0
    for _ in range(count):
        choice = random_.random()
        if choice < 0.5:
            producer = random_.choice([0, *ids])
            written += 1
            yield Put(producer, _pairs(random_, written, keys))
            open_ |= {producer} - {0}
        elif choice < 0.7 and open_:
            producer = random_.choice(sorted(open_))
            open_.discard(producer)
            yield End(producer, commit=random_.random() >= ABORT_CHANCE)
            ended[producer] += 1
            if ended[producer] == LIFETIME:
                ids[ids.index(producer)] = max(ids) + 1
        elif choice < 0.8:
            yield Roll()
        elif choice < 0.93:
            yield Roll()
            yield Clean(
                random_.choice([2, 5, 1000]),
                random_.choice([None, random_.randrange(60), random_.randrange(200)]),
            )
        elif choice < 0.98:
            yield Wait(random_.choice([0.4, 1.1]))
        else:
            yield Kill()
    for producer in sorted(open_):
        yield End(producer, commit=random_.random() >= ABORT_CHANCE)


def _pairs(random_: random.Random, written: int, keys: int) -> tuple[Pair, ...]:
    return tuple(
        (
            b"key %d" % random_.randrange(keys),
            None if random_.random() < TOMBSTONE_CHANCE else b"value %d.%d" % (written, number),
        )
        for number in range(random_.choice([1, 1, 2, 4]))
    )


class CommittedValues:
    """The latest committed value of each key, computed only from the writes."""

    def __init__(self) -> None:
        self.committed: dict[int, Pair] = {}
        self._open: dict[int, dict[int, Pair]] = defaultdict(dict)

    def put(self, step: Put, base_offset: int) -> None:
        """Record the base offset of a written batch."""
        placed = {base_offset + number: pair for number, pair in enumerate(step.pairs)}
        if step.producer:
            self._open[step.producer] |= placed
        else:
            self.committed |= placed

    def end(self, step: End) -> None:
        """Record the end of a transaction."""
        placed = self._open.pop(step.producer, {})
        if step.commit:
            self.committed |= placed

    def latest(self, limit: int | None = None) -> dict[bytes, bytes]:
        """Return the value of each key that is not deleted, from the records before an offset."""
        found = {
            key: value
            for offset, (key, value) in sorted(self.committed.items())
            if limit is None or offset < limit
        }
        return {key: value for key, value in found.items() if value is not None}
