"""Moves of groups: from which record on they will read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from .cluster import ClusterClient
from .errors import ClientError
from .groups import commit_offsets, committed_offsets, is_share_group
from .offset_spec import END, START, OffsetSpec, find
from .share_groups import alter_share_offsets, share_offsets
from .topic_details import choose_partitions
from .topics import Partition


class SeekRow(TypedDict):
    """The move of one partition; `error` names what became of it when it was refused."""

    topic: str
    partition: int
    prior_offset: int | None
    new_offset: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Seek:
    """A move of one group: exactly one of `spec`, `shift` and `offsets` is not None.

    `topics` have the partitions that are meant, None for all; none are all that the group has committed.
    """

    group: str
    spec: OffsetSpec | None
    shift: int | None
    offsets: Mapping[Partition, int] | None
    topics: Mapping[str, set[int] | None]

    async def plan(self, cluster: ClusterClient) -> list[SeekRow]:
        """What would change. Raises NoSuchTopic, and NoSuchGroup when nothing says which."""
        committed = await self._known_offsets(cluster)
        partitions = await self._partitions(cluster, committed)
        if not partitions:
            raise ClientError(
                f"group {self.group!r} has committed nothing; say which topics with --topic NAME"
            )
        new = await self._new_offsets(cluster, partitions, committed)
        return [
            {
                "topic": one[0],
                "partition": one[1],
                "prior_offset": committed.get(one),
                "new_offset": offset,
                "error": None,
            }
            for one, offset in sorted(new.items())
        ]

    async def run(self, cluster: ClusterClient) -> list[SeekRow]:
        """Plan, and commit what is planned."""
        rows = await self.plan(cluster)
        new = {(row["topic"], row["partition"]): row["new_offset"] for row in rows}
        shared = await is_share_group(cluster, self.group)
        outcome = await (alter_share_offsets if shared else commit_offsets)(
            cluster, self.group, new
        )
        for row in rows:
            code = outcome[row["topic"], row["partition"]]
            row["error"] = code.name if code else None
        return rows

    async def _known_offsets(self, cluster: ClusterClient) -> dict[Partition, int]:
        """Where the group is; nothing of one that does not exist."""
        if not await is_share_group(cluster, self.group):
            return await committed_offsets(cluster, self.group)
        known = await share_offsets(cluster, self.group)
        return {one: each.start for one, each in known.items() if each.start is not None}

    async def _partitions(
        self, cluster: ClusterClient, committed: Mapping[Partition, int]
    ) -> list[Partition]:
        known = list(self.offsets if self.offsets is not None else committed)
        if not self.topics:
            return known
        if self.offsets is not None:
            return [one for one in known if is_wanted(self.topics, one)]
        chosen = []
        for name, numbers in self.topics.items():
            chosen += await choose_partitions(cluster, name, tuple(numbers or ()))
        return chosen

    async def _new_offsets(
        self,
        cluster: ClusterClient,
        partitions: list[Partition],
        committed: Mapping[Partition, int],
    ) -> dict[Partition, int]:
        starts = await find(cluster, partitions, START)
        ends = await find(cluster, partitions, END)
        if self.spec is not None:
            new = await find(cluster, partitions, self.spec)
        elif self.shift is not None:
            new = {one: committed.get(one, starts[one]) + self.shift for one in partitions}
        else:
            assert self.offsets is not None
            new = {one: self.offsets[one] for one in partitions}
        return {one: min(max(new[one], starts[one]), ends[one]) for one in partitions}


def is_wanted(wanted: Mapping[str, set[int] | None], partition: Partition) -> bool:
    """Whether a partition is one of those; none of a topic are all of it."""
    name, index = partition
    numbers = wanted.get(name, set())
    return numbers is None or index in numbers
