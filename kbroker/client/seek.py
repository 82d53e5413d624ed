"""Offset resets of groups: plan and commit new offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from .cluster import ClusterClient
from .errors import ClientError
from .groups import commit_offsets, committed_offsets, is_share_group
from .offset_spec import END, START, OffsetSpec, check_offsets, find
from .share_groups import alter_share_offsets, share_offsets
from .topic_details import choose_partitions
from .topics import Partition


class NoOffsets(ClientError):
    """A group has no committed offsets that could be reset."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group!r} has no committed offsets; select topics",
            hint="use --topic NAME",
        )


class SeekRow(TypedDict):
    """New offset of one partition; `error` is the error code name if the commit failed."""

    topic: str
    partition: int
    prior_offset: int | None
    new_offset: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Seek:
    """An offset reset of one group; exactly one of `spec`, `shift` and `offsets` is not None.

    Attributes:
        group: Group ID.
        spec: Offset spec to move to.
        shift: Number of records to move by, negative for backwards.
        offsets: New offset by partition.
        topics: Partition numbers by topic, None for all partitions of the topic. If empty, all
            partitions that the group has committed.
        creates: Type of the group to create: True for a share group, False for a consumer group.
            None if the group may exist.
    """

    group: str
    spec: OffsetSpec | None
    shift: int | None
    offsets: Mapping[Partition, int] | None
    topics: Mapping[str, set[int] | None]
    creates: bool | None = None

    async def plan(self, cluster: ClusterClient) -> list[SeekRow]:
        """Return the changes without applying them.

        Raises:
            NoSuchTopic: A topic does not exist.
            NoOffsets: No topics are given and the group has no committed offsets.
            LooksLikeTime: An offset is probably a time.
        """
        committed = await self._known_offsets(cluster)
        partitions = await self._partitions(cluster, committed)
        if not partitions:
            raise NoOffsets(self.group)
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
        """Plan the changes and commit them."""
        return await self.apply(cluster, await self.plan(cluster))

    async def apply(self, cluster: ClusterClient, rows: list[SeekRow]) -> list[SeekRow]:
        """Commit planned changes; return their rows with the error of each partition.

        Args:
            cluster: The cluster of the group.
            rows: Rows from `plan`.

        Raises:
            KafkaError: The coordinator rejects the request.
        """
        new = {(row["topic"], row["partition"]): row["new_offset"] for row in rows}
        shared = self.creates
        if shared is None:
            shared = await is_share_group(cluster, self.group)
        outcome = await (alter_share_offsets if shared else commit_offsets)(
            cluster, self.group, new
        )
        for row in rows:
            code = outcome[row["topic"], row["partition"]]
            row["error"] = code.name if code else None
        return rows

    async def _known_offsets(self, cluster: ClusterClient) -> dict[Partition, int]:
        """Return the current offsets of the group; empty if it does not exist."""
        if self.creates is not None:
            return {}
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
            return [one for one in known if is_selected(self.topics, one)]
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
            check_offsets(new, ends)
        return {one: min(max(new[one], starts[one]), ends[one]) for one in partitions}


def is_selected(wanted: Mapping[str, set[int] | None], partition: Partition) -> bool:
    """Return True if a partition is selected; None selects all partitions of a topic."""
    name, index = partition
    numbers = wanted.get(name, set())
    return numbers is None or index in numbers
