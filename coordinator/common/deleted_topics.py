"""Deleted topics whose committed offsets may not have been removed from a shard yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from .pending import TopicPartition


class DeletedTopics:
    """Names of deleted topics, and the offsets committed since to new topics of the same names.

    Most committed offsets contain the ID of their topic. An offset without an ID belongs to the
    deleted topic, unless it was committed after the deletion.
    """

    __slots__ = ("_committed_since", "_names", "_next_names")

    def __init__(self) -> None:
        # Names whose offsets the current round removes.
        self._names: frozenset[str] = frozenset()
        # Names for the next round.
        self._next_names: set[str] = set()
        # (group ID, topic partition) pairs committed since their topic was deleted.
        self._committed_since: set[tuple[str, TopicPartition]] = set()

    @property
    def any(self) -> bool:
        """True if offsets of a deleted topic may be left."""
        return bool(self._names or self._next_names)

    def add(self, names: Iterable[str]) -> None:
        """Add topics that were deleted."""
        self._next_names.update(names)
        self._committed_since = {
            each for each in self._committed_since if each[1][0] not in self._next_names
        }

    def rounds(self) -> Iterator[Collection[str]]:
        """Yield, per round, the names to look for in all groups, until no name is left."""
        while self._next_names:
            self._names = frozenset(self._next_names)
            self._next_names.clear()
            yield self._names
            self._names = frozenset()
        self._committed_since.clear()

    def note_commit(self, group_id: str, topic_partition: TopicPartition) -> None:
        """Remember a commit to an existing topic: it must survive the removal."""
        if self.any and self._is_deleted_name(topic_partition[0]):
            self._committed_since.add((group_id, topic_partition))

    def covers(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return True if a committed offset without a topic ID belongs to a deleted topic."""
        return (
            self.any
            and self._is_deleted_name(topic_partition[0])
            and (group_id, topic_partition) not in self._committed_since
        )

    def _is_deleted_name(self, name: str) -> bool:
        return name in self._names or name in self._next_names
