"""Offsets that were committed in transactions which have not ended yet (KIP-98)."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Ended(NamedTuple):
    """An offset that counts from now on, because its transaction was committed."""

    group_id: str
    place: Place
    value: OffsetCommitValue


class PendingOffsets:
    """Pending offsets of one shard, by group, partition and producer id.

    Those of one partition are kept in the order of the log, for that order decides in the end and
    not the one in which transactions end (KAFKA-5600): an offset is *overtaken* when another one
    that was written after it counts before. It stays as None until its own transaction has ended,
    because until then the partition is not stable.
    """

    __slots__ = ("_groups", "_producers")

    def __init__(self) -> None:
        self._groups: dict[str, dict[Place, dict[int, OffsetCommitValue | None]]] = {}
        self._producers: dict[int, dict[tuple[str, Place], None]] = {}

    def add(self, producer_id: int, group_id: str, place: Place, value: OffsetCommitValue) -> None:
        """A producer has written an offset; it replaces the one that the producer wrote before."""
        waiting = self._groups.setdefault(group_id, {}).setdefault(place, {})
        waiting.pop(producer_id, None)  # for a new place in the order
        waiting[producer_id] = value
        self._producers.setdefault(producer_id, {})[group_id, place] = None

    def overtake(self, group_id: str, place: Place) -> None:
        """An offset without a transaction was written after all that wait."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        for producer_id in waiting:
            waiting[producer_id] = None

    def drop(self, group_id: str, place: Place) -> None:
        """The offset of a partition was deleted, whoever committed it."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        for producer_id in tuple(waiting):
            self._take(producer_id, group_id, place)
            places = self._producers[producer_id]
            del places[group_id, place]
            if not places:
                del self._producers[producer_id]

    def end(self, producer_id: int, *, commit: bool) -> list[Ended]:
        """The transaction of a producer has ended; returns the offsets that count from now on."""
        ended = []
        for group_id, place in self._producers.pop(producer_id, ()):
            if commit:
                self._overtake_before(producer_id, self._groups[group_id][place])
            value = self._take(producer_id, group_id, place)
            if commit and value is not None:
                ended.append(Ended(group_id, place, value))
        return ended

    @staticmethod
    def _overtake_before(producer_id: int, waiting: dict[int, OffsetCommitValue | None]) -> None:
        for other in waiting:
            if other == producer_id:
                return
            waiting[other] = None

    def _take(self, producer_id: int, group_id: str, place: Place) -> OffsetCommitValue | None:
        places = self._groups[group_id]
        waiting = places[place]
        value = waiting.pop(producer_id)
        if not waiting:
            del places[place]
        if not places:
            del self._groups[group_id]
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
