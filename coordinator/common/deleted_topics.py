"""Topics that were deleted, as long as groups of a shard may still have offsets of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from .pending import Place


class DeletedTopics:
    """Names of deleted topics, and what was committed to later topics of these names.

    An offset mostly says which topic it was committed to. One that does not is of the deleted topic,
    unless it was committed since the topic was deleted.
    """

    __slots__ = ("_names", "_since", "_waiting")

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        """Those of this round."""
        self._waiting: set[str] = set()
        """Those of the next one."""
        self._since: set[tuple[str, Place]] = set()

    @property
    def any(self) -> bool:
        """Whether there may be offsets left of a deleted topic."""
        return bool(self._names or self._waiting)

    def add(self, names: Iterable[str]) -> None:
        """These topics are deleted."""
        self._waiting.update(names)
        self._since = {each for each in self._since if each[1][0] not in self._waiting}

    def rounds(self) -> Iterator[Collection[str]]:
        """The names to look for among all groups, until nothing is left of any."""
        while self._waiting:
            self._names = frozenset(self._waiting)
            self._waiting.clear()
            yield self._names
            self._names = frozenset()
        self._since.clear()

    def spare(self, group_id: str, place: Place) -> None:
        """An offset was committed, to a topic that is there."""
        if self.any and self._is_name(place[0]):
            self._since.add((group_id, place))

    def had(self, group_id: str, place: Place) -> bool:
        """Whether an offset that does not say so was committed to a deleted topic."""
        return self.any and self._is_name(place[0]) and (group_id, place) not in self._since

    def _is_name(self, name: str) -> bool:
        return name in self._names or name in self._waiting
