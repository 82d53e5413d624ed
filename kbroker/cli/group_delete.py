"""`kbroker group delete` and `offset-delete`: remove groups and committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from .completion import complete_groups
from .confirmation import Change, Preview, count_of, destructive
from .output import reported_changes, say
from .patterns import Names, group_names, regex_option
from .target import Target, fail, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.group_details import Row
    from kbroker.client.topics import Partition
    from kbroker.protocol.errors import ErrorCode, KafkaError

# Topics and their partitions, or None for all partitions.
Selection = Mapping[str, set[int] | None]


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@regex_option
@click.option("--if-exists", is_flag=True, help="Do not fail if a group does not exist.")
@destructive
@target_options
def delete(
    target: Target, names: tuple[str, ...], regex: bool, if_exists: bool, change: Change
) -> None:
    """Delete groups NAMES and their offsets; the groups must have no members.

    NAMES may be patterns such as 'bill*'.
    """
    from kbroker.protocol.errors import ErrorCode

    from .deletion import DeletedKind, delete_objects

    async def find(cluster: ClusterClient) -> list[Row]:
        chosen = await group_names(cluster, Names(names, regex), may_miss=if_exists)
        found = [await _deletion(cluster, name, if_exists=if_exists) for name in chosen]
        return [row for row in found if row is not None]

    kind = DeletedKind(
        "group",
        " with all offsets",
        ErrorCode.GROUP_ID_NOT_FOUND,
        _deletion_line,
        _delete_groups,
        lambda error: _error_text(error.code, error.message),
    )
    delete_objects(target, change, kind, run(target, find), if_exists=if_exists)


async def _delete_groups(
    cluster: ClusterClient, names: Sequence[str]
) -> dict[str, KafkaError | None]:
    """Delete groups; return the error of each, or None if it was deleted."""
    from kbroker.client.groups import delete_groups

    errors: dict[str, KafkaError | None] = {}
    with reported_changes(names) as deleted:
        for name in names:
            errors |= await delete_groups(cluster, [name])
            if errors[name] is None:
                deleted.append(name)
    return errors


async def _deletion(cluster: ClusterClient, name: str, *, if_exists: bool) -> Row | None:
    """Return what the deletion of a group destroys; None if it does not exist and need not.

    Raises:
        NoSuchGroup: The group does not exist, and `if_exists` is False.
        KafkaError: The coordinator rejects a request.
    """
    from kbroker.client.errors import NoSuchGroup
    from kbroker.client.groups import describe_group

    try:
        group = await describe_group(cluster, name)
    except NoSuchGroup:
        if if_exists:
            return None
        raise
    offsets = await _offsets(cluster, name, group.type)
    return {
        "group": name,
        "state": group.state,
        "members": len(group.members),
        "offsets": len(offsets),
        "topics": sorted({topic for topic, _ in offsets}),
    }


async def _offsets(
    cluster: ClusterClient, name: str, group_type: str
) -> dict[Partition, int | None]:
    """Return the offsets of a group: committed ones, or the start offsets of a share group."""
    from kbroker.client.groups import SHARE, committed_offsets
    from kbroker.client.share_groups import share_offsets

    if group_type == SHARE:
        return {one: each.start for one, each in (await share_offsets(cluster, name)).items()}
    return {**await committed_offsets(cluster, name)}


def _deletion_line(row: Row) -> str:
    parts = [row["state"], count_of(row["members"], "member"), count_of(row["offsets"], "offset")]
    topics = f" in {', '.join(row['topics'])}" if row["topics"] else ""
    return f"group {row['group']}: {', '.join(parts)}{topics}"


def _error_text(code: ErrorCode, message: str | None = None) -> str:
    from kbroker.protocol.errors import ErrorCode

    if code == ErrorCode.NON_EMPTY_GROUP:
        return "the group has members; stop them (`kbroker group describe` lists them)"
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "the group does not exist; `kbroker group list` lists all groups"
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return "the group is subscribed to this topic; stop its members first"
    return message or code.name


@click.command("offset-delete")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@regex_option
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="NAME[:0,1]",
    help="Topic, or partitions of it, whose offsets to delete; can be given several times.",
)
@destructive
@target_options
def offset_delete(
    target: Target, names: tuple[str, ...], regex: bool, topics: tuple[str, ...], change: Change
) -> None:
    """Delete the offsets of groups NAMES in topics that they are not subscribed to.

    NAMES may be patterns such as 'bill*'. A share group must have no members; its offsets can be
    deleted for whole topics only.
    """
    from .group_seek import BadOffsets, parse_topics

    try:
        wanted = parse_topics(topics)
    except BadOffsets as error:
        raise click.UsageError(str(error)) from None

    async def find(cluster: ClusterClient) -> list[Row]:
        chosen = await group_names(cluster, Names(names, regex))
        return [row for name in chosen for row in await _offset_rows(cluster, name, wanted)]

    found = run(target, find)
    if not found:
        fail(
            f"{_groups_text(names)} no offsets for these topics; `kbroker group describe "
            f"{names[0]}` shows the offsets of a group"
        )
    lines = [
        f"group {row['group']}: offset {row['offset']} of {row['topic']}-{row['partition']}"
        for row in found
    ]
    question = f"Delete {count_of(len(found), 'offset')}?"
    if not change.confirm(Preview(question, found, lines)):
        return
    outcome = run(target, lambda cluster: _delete_offsets(cluster, found))
    rows = [row | {"error": code.name if code else None} for row, code in outcome]
    done = [f"{row['topic']}-{row['partition']}: deleted" for row, code in outcome if not code]
    change.report(rows, lambda _: done)
    for row, code in outcome:
        if code:
            say(f"{row['topic']}-{row['partition']}: {_error_text(code)}", err=True)
    if any(code for _, code in outcome):
        raise SystemExit(1)


def _groups_text(names: tuple[str, ...]) -> str:
    return f"group {names[0]!r} has" if len(names) == 1 else "these groups have"


async def _offset_rows(cluster: ClusterClient, name: str, wanted: Selection) -> list[Row]:
    """Return the offsets of a group in the selected partitions.

    Raises:
        UsageError: The group is a share group, and single partitions are selected.
        KafkaError: The coordinator rejects a request.
    """
    from kbroker.client.offset_deletion import WholeTopicsOnly, offsets_to_delete

    try:
        offsets = await offsets_to_delete(cluster, name, wanted)
    except WholeTopicsOnly as error:
        raise click.UsageError(str(error)) from None
    return [
        {"group": name, "topic": one[0], "partition": one[1], "offset": offset}
        for one, offset in offsets.items()
    ]


async def _delete_offsets(cluster: ClusterClient, rows: list[Row]) -> list[tuple[Row, ErrorCode]]:
    """Delete the offsets of all rows, and return the error code of each."""
    from kbroker.client.offset_deletion import delete_group_offsets
    from kbroker.protocol.errors import ErrorCode

    partitions: dict[str, list[Partition]] = {}
    for row in rows:
        partitions.setdefault(row["group"], []).append((row["topic"], row["partition"]))
    codes: dict[tuple[str, str, int], ErrorCode] = {}
    with reported_changes([*partitions]) as changed:
        for name, chosen in partitions.items():
            found = await delete_group_offsets(cluster, name, chosen)
            codes |= {(name, *one): code for one, code in found.items()}
            if not any(found.values()):
                changed.append(name)
    # An offset that has expired in the meantime needs no deletion.
    return [
        (row, codes.get((row["group"], row["topic"], row["partition"]), ErrorCode.NONE))
        for row in rows
    ]
