"""Parsers for the offset options and files of `kbroker group seek`, and its preview."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.text.documents import read_json

from .confirmation import Preview, count_of, question_about
from .output import Column, reported_changes, say, table
from .target import fail

if TYPE_CHECKING:
    from uuid import UUID

    from kbroker.client.cluster import ClusterClient
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.client.seek import Seek, SeekRow
    from kbroker.client.topics import Partition

# Maximum number of clients that a message about members names.
CLIENTS_SHOWN_MAX = 3


class BadOffsets(ValueError):
    """A string or file does not contain valid offsets."""


def parse_new_offset(text: str, now_ms: int) -> OffsetSpec:
    """Parse `--to`.

    Raises:
        BadOffsets: The text is not an offset spec, or is a time in the future.
    """
    from . import offsets

    try:
        return offsets.parse_past_spec(text, now_ms)
    except offsets.BadOffsetSpec as error:
        raise BadOffsets(str(error)) from None


def parse_topics(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Parse NAME[:0,1] strings; None means all partitions.

    Raises:
        BadOffsets: A partition is not an integer.
    """
    wanted: dict[str, set[int] | None] = {}
    for text in texts:
        name, separator, numbers = text.partition(":")
        try:
            wanted[name] = set(map(int, numbers.split(","))) if separator else None
        except ValueError:
            raise BadOffsets(f"invalid topic {text!r}; expected NAME or NAME:0,1") from None
    return wanted


def read_offsets(text: str) -> dict[Partition, int]:
    """Parse offsets by partition from the JSON output of commands, or from lines with commas.

    Raises:
        BadOffsets: The text has neither format.
    """
    try:
        if text.lstrip()[:1] in ("[", "{"):
            rows = list(_rows(read_json(text)))
        else:
            lines = [line.split(",") for line in text.splitlines() if line.strip()]
            rows = [(topic, int(index), int(offset)) for topic, index, offset in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise BadOffsets(f"cannot read offsets from the file: {error!r}") from None
    return {(topic, index): offset for topic, index, offset in rows}


def _rows(data: Any) -> Iterable[tuple[str, int, int]]:
    for row in data if isinstance(data, list) else [data]:
        if "partitions" in row:
            yield from _rows([each for each in row["partitions"] if each["topic"] is not None])
            continue
        offset = row["new_offset"] if "new_offset" in row else row["current_offset"]
        if offset is not None:
            yield str(row["topic"]), int(row["partition"]), int(offset)


class PlannedSeeks(NamedTuple):
    """The new offsets of groups, and the IDs of their topics."""

    jobs: Sequence[tuple[Seek, list[SeekRow]]]
    topic_ids: Mapping[str, UUID]

    @property
    def rows(self) -> dict[str, list[SeekRow]]:
        """The rows of each group."""
        return {job.group: rows for job, rows in self.jobs}

    async def apply(self, cluster: ClusterClient) -> dict[str, list[SeekRow]]:
        """Commit the offsets; return the rows of each group with the errors.

        Raises:
            TopicReplaced: A topic was deleted and created again.
            KafkaError: A coordinator rejects a request.
        """
        from kbroker.client.topics import check_same_topics

        await check_same_topics(cluster, self.topic_ids)
        with reported_changes([*self.rows]) as changed:
            for job, rows in self.jobs:
                await job.apply(cluster, rows)
                if not any(row["error"] for row in rows):
                    changed.append(job.group)
        return self.rows


async def plan_seeks(cluster: ClusterClient, jobs: Iterable[Seek]) -> PlannedSeeks:
    """Return the new offsets of groups. Raises the errors of `Seek.plan`."""
    from kbroker.client.topics import topic_ids

    planned = [(job, await job.plan(cluster)) for job in jobs]
    names = (row["topic"] for _, rows in planned for row in rows)
    return PlannedSeeks(planned, await topic_ids(cluster, names))


def rows_of(offsets: Mapping[str, Sequence[SeekRow]]) -> list[dict[str, object]]:
    """Return the rows of all groups, with the name of the group."""
    return [{"group": name, **row} for name, some in offsets.items() for row in some]


def table_of(rows: Sequence[Mapping[str, object]], *, wide: bool) -> list[str]:
    """Return the table of offsets; it names the groups if there are several."""
    columns = [Column("group")] if len({row["group"] for row in rows}) > 1 else []
    columns += [Column("topic"), Column("partition"), Column("prior_offset")]
    columns += [Column("new_offset"), Column("error", optional=True)]
    return table(columns, rows, wide=wide)


def preview_of(planned: Mapping[str, Sequence[SeekRow]], to: OffsetSpec | None) -> Preview:
    """Return the preview of new offsets.

    Args:
        planned: The rows of each group.
        to: The value of `--to`, or None without it.
    """
    from .offsets import first_record_text

    target = first_record_text(to) if to is not None else None
    rows = rows_of(planned)
    return Preview(
        question_about("Set the offsets of", list(planned), "group"),
        rows,
        [
            *([f"new offset: {target}"] if target else ()),
            *(_seek_line(name, some) for name, some in planned.items()),
        ],
        lambda wide: table_of(rows, wide=wide),
        is_harmless=all(row["prior_offset"] in (None, row["new_offset"]) for row in rows),
    )


def report_members(problems: Sequence[str], *, is_dry_run: bool) -> None:
    """Print which groups have members; exit unless this is a dry run."""
    say(*problems, err=True)
    if not is_dry_run:
        fail(
            "nothing was changed; `kbroker group wait NAME --members 0` waits until the members "
            "have left"
        )


async def members_problems(cluster: ClusterClient, groups: Iterable[str]) -> list[str]:
    """Return a sentence for each group whose members prevent new offsets."""
    from kbroker.client.errors import NoSuchGroup
    from kbroker.client.groups import describe_group

    problems = []
    for name in groups:
        try:
            members = (await describe_group(cluster, name)).members
        except NoSuchGroup:
            continue
        if members:
            clients = sorted({member.client_id or member.id for member in members})
            shown = ", ".join(clients[:CLIENTS_SHOWN_MAX])
            more = len(clients) - CLIENTS_SHOWN_MAX
            problems.append(
                f"group {name} has {count_of(len(members), 'active member')} "
                f"({'client' if len(clients) == 1 else 'clients'} {shown}"
                f"{f' and {more:,} more' if more > 0 else ''}): stop "
                f"{'it' if len(members) == 1 else 'them'} first"
            )
    return problems


def _seek_line(name: str, rows: Sequence[SeekRow]) -> str:
    """Return the line of a group: how many records its members read again, or skip."""
    moves = [
        row["new_offset"] - row["prior_offset"] for row in rows if row["prior_offset"] is not None
    ]
    parts = [count_of(len(rows), "partition")]
    if again := sum(-move for move in moves if move < 0):
        parts.append(f"read {count_of(again, 'record')} again")
    if skipped := sum(move for move in moves if move > 0):
        parts.append(f"skip {count_of(skipped, 'record')}")
    if len(moves) < len(rows):
        parts.append(f"{count_of(len(rows) - len(moves), 'partition')} without an offset before")
    return f"group {name}: {', '.join(parts)}"
