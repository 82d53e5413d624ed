"""Pending offsets: committed in transactions that are still open (KIP-98)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

from .memory import OFFSET_BYTES, ShardMemory, group_bytes, offset_bytes

# Topic name and partition index.
Place: TypeAlias = tuple[str, int]


class Ended(NamedTuple):
    """An offset that became visible because its transaction was committed."""

    group_id: str
    place: Place
    value: OffsetCommitValue


class PendingTransactionalOffsets:
    """Pending transactional offsets of one shard, by group, partition and producer ID.

    The offsets of one partition are kept in log order. The log order decides which offset remains,
    not the order in which the transactions end (KAFKA-5600). An offset is *superseded* when an
    offset that was written later becomes visible first. A superseded offset stays as None until its
    own transaction ends, because the partition is not stable until then.
    """

    __slots__ = ("_groups", "_memory", "_producers")

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._groups: dict[str, dict[Place, dict[int, OffsetCommitValue | None]]] = {}
        self._producers: dict[int, dict[str, dict[Place, None]]] = {}

    def add(self, producer_id: int, group_id: str, place: Place, value: OffsetCommitValue) -> None:
        """Add an offset of a producer, replacing an earlier one of the same producer."""
        places = self._groups.get(group_id)
        if places is None:
            places = self._groups[group_id] = {}
            self._memory.change_offsets(group_bytes(group_id))
        waiting = places.setdefault(place, {})
        if producer_id in waiting:  # append it again at the end
            self._memory.change_offsets(-_bytes(place, waiting.pop(producer_id)))
        waiting[producer_id] = value
        self._memory.change_offsets(_bytes(place, value))
        self._producers.setdefault(producer_id, {}).setdefault(group_id, {})[place] = None

    def overtake(self, group_id: str, place: Place) -> None:
        """Mark the pending offsets of a partition as superseded by a non-transactional commit."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        for producer_id in waiting:
            self._overtake(waiting, producer_id, place)

    def _overtake(
        self, waiting: dict[int, OffsetCommitValue | None], producer_id: int, place: Place
    ) -> None:
        self._memory.change_offsets(_bytes(place, None) - _bytes(place, waiting[producer_id]))
        waiting[producer_id] = None

    def holds(self, producer_id: int, group_id: str, place: Place) -> int:
        """Return the bytes of a producer's pending offset, or 0 if there is none."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        return _bytes(place, waiting[producer_id]) if producer_id in waiting else 0

    def drop(self, group_id: str, place: Place) -> None:
        """Delete all pending offsets of a partition."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        for producer_id in tuple(waiting):
            self._take(producer_id, group_id, place)
            groups = self._producers.get(producer_id, {})
            groups.get(group_id, {}).pop(place, None)  # absent while its transaction is ending
            if group_id in groups and not groups[group_id]:
                del groups[group_id]
            if not groups:
                self._producers.pop(producer_id, None)

    def groups(self, producer_id: int) -> Collection[str]:
        """Return the groups in which a producer has pending offsets."""
        return self._producers.get(producer_id, {}).keys()

    def end(self, producer_id: int, *, commit: bool) -> Iterator[Ended | None]:
        """End the transaction of a producer.

        Offsets that the producer writes after this call belong to its next transaction. The caller
        must exhaust the iterator before the producer writes to one of these groups again.

        Args:
            producer_id: Producer whose transaction ended.
            commit: True to make the offsets visible, False to drop them.

        Yields:
            Each offset that becomes visible, or None for one that does not. There may be many
            offsets: consume the iterator in pieces.
        """
        return self._end(producer_id, self._producers.pop(producer_id, {}), commit=commit)

    def _end(
        self, producer_id: int, groups: dict[str, dict[Place, None]], *, commit: bool
    ) -> Iterator[Ended | None]:
        for group_id, places in groups.items():
            while places:  # release one at a time: freeing many at once takes long
                place = places.popitem()[0]
                waiting = self._groups.get(group_id, {}).get(place, {})
                if producer_id not in waiting:
                    continue  # the offset was deleted in the meantime
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
        """Return the pending offsets of one partition that may still become visible."""
        waiting = self._groups.get(group_id, {}).get(place, {})
        return [value for value in waiting.values() if value is not None]

    def places(self, group_id: str) -> Collection[Place]:
        """Return the partitions in which a group has pending offsets."""
        return self._groups.get(group_id, {}).keys()

    def producers(self, group_id: str) -> list[int]:
        """Return the sorted IDs of the producers that have pending offsets in a group."""
        places = self._groups.get(group_id, {}).values()
        return sorted({producer_id for waiting in places for producer_id in waiting})


def _bytes(place: Place, value: OffsetCommitValue | None) -> int:
    """Return the bytes in memory of a pending offset; None is a superseded offset."""
    return OFFSET_BYTES if value is None else offset_bytes(place[0], value)
