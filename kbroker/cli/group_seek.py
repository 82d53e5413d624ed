"""How `kbroker group seek` finds the offsets that a group is moved to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker.text.documents import read_json

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.places import Place
    from kbroker.client.topics import Partition


class BadOffsets(ValueError):
    """A text or file that does not say which offsets are meant."""


def parse_place(text: str, now_ms: int) -> Place:
    """Read `--to`. Raises BadOffsets."""
    from . import offsets

    try:
        return offsets.parse_place(text, now_ms)
    except offsets.BadPlace as error:
        raise BadOffsets(str(error)) from None


def parse_topics(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Read NAME[:0,1] texts; None stands for all partitions. Raises BadOffsets."""
    wanted: dict[str, set[int] | None] = {}
    for text in texts:
        name, separator, numbers = text.partition(":")
        try:
            wanted[name] = set(map(int, numbers.split(","))) if separator else None
        except ValueError:
            raise BadOffsets(f"{text!r} is not NAME or NAME:0,1") from None
    return wanted


def read_offsets(text: str) -> dict[Partition, int]:
    """Read offsets by partition from what commands print as JSON, or from lines with commas.

    Raises BadOffsets.
    """
    try:
        if text.lstrip()[:1] in ("[", "{"):
            rows = list(_rows(read_json(text)))
        else:
            lines = [line.split(",") for line in text.splitlines() if line.strip()]
            rows = [(topic, int(index), int(offset)) for topic, index, offset in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise BadOffsets(f"the file does not hold offsets: {error!r}") from None
    return {(topic, index): offset for topic, index, offset in rows}


def _rows(data: Any) -> Iterable[tuple[str, int, int]]:
    for row in data if isinstance(data, list) else [data]:
        if "partitions" in row:
            yield from _rows([each for each in row["partitions"] if each["topic"] is not None])
            continue
        offset = row["new_offset"] if "new_offset" in row else row["current_offset"]
        if offset is not None:
            yield str(row["topic"]), int(row["partition"]), int(offset)


@dataclass(frozen=True, slots=True)
class Seek:
    """A move of one group: exactly one of `place`, `shift` and `offsets` is not None.

    `topics` as `parse_topics` reads them; none are all that the group has committed.
    """

    group: str
    place: Place | None
    shift: int | None
    offsets: Mapping[Partition, int] | None
    topics: Mapping[str, set[int] | None]

    async def plan(self, cluster: ClusterClient) -> list[dict[str, Any]]:
        """What would change. Raises NoSuchTopic, and NoSuchGroup when nothing says which."""
        from kbroker.client.errors import ClientError

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

    async def run(self, cluster: ClusterClient) -> list[dict[str, Any]]:
        """Plan, and commit what is planned."""
        from kbroker.client.groups import commit_offsets, is_share_group
        from kbroker.client.share_groups import alter_share_offsets

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
        from kbroker.client.groups import committed_offsets, is_share_group
        from kbroker.client.share_groups import share_offsets

        if not await is_share_group(cluster, self.group):
            return await committed_offsets(cluster, self.group)
        known = await share_offsets(cluster, self.group)
        return {one: each.start for one, each in known.items() if each.start is not None}

    async def _partitions(
        self, cluster: ClusterClient, committed: Mapping[Partition, int]
    ) -> list[Partition]:
        from .topic import choose_partitions

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
        from kbroker.client.places import END, START, find

        starts = await find(cluster, partitions, START)
        ends = await find(cluster, partitions, END)
        if self.place is not None:
            new = await find(cluster, partitions, self.place)
        elif self.shift is not None:
            new = {one: committed.get(one, starts[one]) + self.shift for one in partitions}
        else:
            assert self.offsets is not None
            new = {one: self.offsets[one] for one in partitions}
        return {one: min(max(new[one], starts[one]), ends[one]) for one in partitions}


def is_wanted(wanted: Mapping[str, set[int] | None], partition: Partition) -> bool:
    """Whether `parse_topics` means a partition."""
    name, index = partition
    numbers = wanted.get(name, set())
    return numbers is None or index in numbers
