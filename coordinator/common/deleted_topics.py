"""Deleted topics whose committed offsets may not have been removed from a shard yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from .pending import Place


class DeletedTopics:
    """Names of deleted topics, and the offsets committed since to new topics of the same names.

    Most committed offsets contain the ID of their topic. An offset without an ID belongs to the
    deleted topic, unless it was committed after the deletion.
    """

    __slots__ = ("_names", "_since", "_waiting")

    def __init__(self) -> None:
        # Names that the current round looks for.
        self._names: frozenset[str] = frozenset()
        # Names for the next round.
        self._waiting: set[str] = set()
        # (group ID, topic partition) pairs committed since their topic was deleted.
        self._since: set[tuple[str, Place]] = set()

    @property
    def any(self) -> bool:
        """Return True if offsets of a deleted topic may be left."""
        return bool(self._names or self._waiting)

    def add(self, names: Iterable[str]) -> None:
        """Add topics that were deleted."""
        self._waiting.update(names)
        self._since = {each for each in self._since if each[1][0] not in self._waiting}

    def rounds(self) -> Iterator[Collection[str]]:
        """Yield, per round, the names to look for in all groups, until no name is left."""
        while self._waiting:
            self._names = frozenset(self._waiting)
            self._waiting.clear()
            yield self._names
            self._names = frozenset()
        self._since.clear()

    def spare(self, group_id: str, place: Place) -> None:
        """Note a commit to an existing topic, which must survive the removal."""
        if self.any and self._is_name(place[0]):
            self._since.add((group_id, place))

    def had(self, group_id: str, place: Place) -> bool:
        """Return True if a committed offset without a topic ID belongs to a deleted topic."""
        return self.any and self._is_name(place[0]) and (group_id, place) not in self._since

    def _is_name(self, name: str) -> bool:
        return name in self._names or name in self._waiting
