"""Offsets that were committed in transactions which have not ended yet (KIP-98)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

from .memory import OFFSET_BYTES, ShardMemory, group_bytes, offset_bytes

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Ended(NamedTuple):
    """An offset that counts from now on, because its transaction was committed."""

    group_id: str
    place: Place
    value: OffsetCommitValue


class PendingTransactionalOffsets:
    """Pending transactional offsets of one shard, by group, partition and producer ID.

    Those of one partition are kept in the order of the log, for that order decides in the end and
    not the one in which transactions end (KAFKA-5600): an offset is *overtaken* when another one
    that was written after it counts before. It stays as None until its own transaction has ended,
    because until then the partition is not stable.
    """

    __slots__ = ("_groups", "_memory", "_producers")

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._groups: dict[str, dict[Place, dict[int, OffsetCommitValue | None]]] = {}
        self._producers: dict[int, dict[str, dict[Place, None]]] = {}

    def add(self, producer_id: int, group_id: str, place: Place, value: OffsetCommitValue) -> None:
        """A producer has written an offset; it replaces the one that the producer wrote before."""
        places = self._groups.get(group_id)
        if places is None:
            places = self._groups[group_id] = {}
            self._memory.change_offsets(group_bytes(group_id))
        waiting = places.setdefault(place, {})
        if producer_id in waiting:  # for a new place in the order
            self._memory.change_offsets(-_bytes(place, waiting.pop(producer_id)))
        waiting[producer_id] = value
        self._memory.change_offsets(_bytes(place, value))
        self._producers.setdefault(producer_id, {}).setdefault(group_id, {})[place] = None

    def overtake(self, group_id: str, place: Place) -> None:
        """An offset without a transaction was written after all that wait."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        for producer_id in waiting:
            self._overtake(waiting, producer_id, place)

    def _overtake(
        self, waiting: dict[int, OffsetCommitValue | None], producer_id: int, place: Place
    ) -> None:
        self._memory.change_offsets(_bytes(place, None) - _bytes(place, waiting[producer_id]))
        waiting[producer_id] = None

    def holds(self, producer_id: int, group_id: str, place: Place) -> int:
        """Return the bytes of a producer's pending offset, 0 if there is none."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        return _bytes(place, waiting[producer_id]) if producer_id in waiting else 0

    def drop(self, group_id: str, place: Place) -> None:
        """The offset of a partition was deleted, whoever committed it."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        for producer_id in tuple(waiting):
            self._take(producer_id, group_id, place)
            groups = self._producers.get(producer_id, {})
            groups.get(group_id, {}).pop(place, None)  # it is not there while its transaction ends
            if group_id in groups and not groups[group_id]:
                del groups[group_id]
            if not groups:
                self._producers.pop(producer_id, None)

    def groups(self, producer_id: int) -> Collection[str]:
        """The groups that have pending offsets of a producer."""
        return self._producers.get(producer_id, {}).keys()

    def end(self, producer_id: int, *, commit: bool) -> Iterator[Ended | None]:
        """The transaction of a producer has ended; yields each of its offsets, or None for one that
        does not count. There may be many: take them in pieces.

        What the producer writes from the call on belongs to its next transaction; before it writes
        to one of the groups, all are to be taken.
        """
        return self._end(producer_id, self._producers.pop(producer_id, {}), commit=commit)

    def _end(
        self, producer_id: int, groups: dict[str, dict[Place, None]], *, commit: bool
    ) -> Iterator[Ended | None]:
        for group_id, places in groups.items():
            while places:  # which are let go one by one: to free many takes long
                place = places.popitem()[0]
                waiting = self._groups.get(group_id, {}).get(place, {})
                if producer_id not in waiting:
                    continue  # it was deleted meanwhile
                if commit:
                    self._overtake_before(producer_id, waiting, place)
                value = self._take(producer_id, group_id, place)
                yield Ended(group_id, place, value) if commit and value is not None else None

    def _overtake_before(
        self, producer_id: int, waiting: dict[int, OffsetCommitValue | None], place: Place
    ) -> None:
        for other in waiting:
            if other == producer_id:
                return
            self._overtake(waiting, other, place)

    def _take(self, producer_id: int, group_id: str, place: Place) -> OffsetCommitValue | None:
        places = self._groups[group_id]
        waiting = places[place]
        value = waiting.pop(producer_id)
        self._memory.change_offsets(-_bytes(place, value))
        if not waiting:
            del places[place]
        if not places:
            del self._groups[group_id]
            self._memory.change_offsets(-group_bytes(group_id))
        return value

    def values(self, group_id: str, place: Place) -> list[OffsetCommitValue]:
        """The offsets of one partition that may count some day."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        return [value for value in waiting.values() if value is not None]

    def places(self, group_id: str) -> Collection[Place]:
        """The partitions in which a group has pending offsets."""
        return self._groups.get(group_id, {}).keys()

    def producers(self, group_id: str) -> list[int]:
        """The producers whose transactions a group's pending offsets belong to, in rising order."""
        places = self._groups.get(group_id, {}).values()
        return sorted({producer_id for waiting in places for producer_id in waiting})


def _bytes(place: Place, value: OffsetCommitValue | None) -> int:
    """Return the bytes in memory of a pending offset; None stands for one that was overtaken."""
    return OFFSET_BYTES if value is None else offset_bytes(place[0], value)
