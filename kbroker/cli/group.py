"""The `kbroker group` command: members, offsets and lag of groups, and offset resets."""

from __future__ import annotations

import time
from functools import partial
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

import click

from .completion import complete_groups, complete_topics
from .confirmation import Change, destructive
from .group_delete import delete, offset_delete
from .lazy import CommandGroup
from .output import (
    Column,
    format_options,
    largest_first,
    paragraphs,
    say,
    show,
    sort_option,
    table,
)
from .patterns import GROUP, Names, group_names, matching_names, regex_option
from .resource_settings import (
    alter_settings,
    configs_option,
    delete_option,
    set_option,
    show_settings,
)
from .setting_completion import complete_group_setting_names, complete_group_settings
from .target import Target, fail, run, target_options
from .units import DURATION

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.group_details import Row
    from kbroker.client.group_overview import GroupOverview

POLL_SECONDS = 0.2


SECTIONS = {
    "Groups": ("list", "describe", "alter-config", "wait", "delete"),
    "Offsets": ("seek", "offset-delete"),
}


@click.group(cls=CommandGroup, sections=SECTIONS)
def group() -> None:
    """Show, reset and delete groups."""


group.add_command(delete)
group.add_command(offset_delete)


@group.command("list")
@click.argument("patterns", nargs=-1, shell_complete=complete_groups)
@regex_option
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Show only groups in this state; can be given several times.",
)
@sort_option("name", "lag", "members")
@format_options
@target_options
def list_(
    target: Target,
    patterns: tuple[str, ...],
    regex: bool,
    states: tuple[str, ...],
    sort: str,
    output: str,
) -> None:
    """Show all groups with their members and lag, or those that match one of PATTERNS ('bill*').

    A value is - if a broker does not report it. The lag includes only partitions with a committed
    offset. WITHOUT-OFFSET counts the other partitions with records of the topics that a group reads.
    """
    from kbroker.client.group_overview import group_overviews
    from kbroker.client.groups import list_groups

    wanted = {state.lower() for state in states}

    async def work(cluster: ClusterClient) -> list[GroupOverview]:
        groups = await list_groups(cluster)
        if patterns:
            existing = [each.name for each in groups]
            names = set(matching_names(Names(patterns, regex), existing, GROUP, must_exist=True))
            groups = [each for each in groups if each.name in names]
        shown = [each for each in groups if not wanted or each.state.lower() in wanted]
        return await group_overviews(cluster, shown)

    rows = [_overview_row(each) for each in run(target, work)]
    if sort != "name":
        rows = largest_first(rows, sort)
    columns = [Column("group"), Column("state"), Column("type", optional=True)]
    columns += [Column("members"), Column("lag"), Column("without_offset", optional=True)]
    columns += [Column(key, wide=True) for key in ("topics", "assignor", "protocol", "coordinator")]
    shown = [row | {"without_offset": row["without_offset"] or None} for row in rows]
    show(output, rows, lambda wide: table(columns, shown, wide=wide))


def _overview_row(found: GroupOverview) -> Row:
    return {
        "group": found.listed.name,
        "state": found.listed.state,
        "type": found.listed.type,
        "members": found.members,
        "lag": found.lag,
        "without_offset": found.without_offset,
        "topics": found.topics,
        "assignor": found.assignor,
        "protocol": found.listed.protocol_type,
        "coordinator": found.listed.coordinator,
    }


# -- describe

PARTITION_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("current_offset"),
    Column("log_start_offset"),
    Column("log_end_offset"),
    Column("lag"),
    Column("member_id", optional=True),
    Column("instance_id", wide=True, optional=True),
    Column("client_id", optional=True),
    Column("host", optional=True),
]


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@regex_option
@click.option("-s", "--summary", is_flag=True, help="Show only the summary.")
@click.option("-c", "--commits", is_flag=True, help="Show only the committed offsets.")
@click.option("-t", "--topics", is_flag=True, help="Show only the lag of each topic.")
@configs_option
@format_options
@target_options
def describe(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    summary: bool,
    commits: bool,
    topics: bool,
    configs: bool,
    output: str,
) -> None:
    """Show members, offsets and lag of groups NAMES, which may be patterns such as 'bill*'.

    The output has all partitions of the topics that a group reads. Partitions without a committed
    offset have the lag -, which the total does not include.

    The output for a share group has its dead-letter queue, and for a streams group its topology.
    """
    if summary + commits + topics + configs > 1:
        raise click.UsageError("--summary, --commits, --topics and --configs exclude each other")
    if configs:
        from kbroker.config import Scope

        show_settings(target, Scope.GROUP, partial(_described, Names(names, regex)), output)
        return

    from kbroker.client.group_details import details_by_type, group_details

    async def work(cluster: ClusterClient) -> list[Row]:
        chosen = await group_names(cluster, Names(names, regex))
        rows = [await group_details(cluster, name) for name in chosen]
        return [row | await details_by_type(cluster, row["group"], row["type"]) for row in rows]

    rows = run(target, work)

    def text(wide: bool) -> list[str]:
        parts = []
        for row in rows:
            if not commits and not topics:
                parts.append(_summary(row))
            if not summary:
                if not commits and not topics:
                    parts += _topology(row)
                columns = TOPIC_COLUMNS if topics else PARTITION_COLUMNS
                listed = row["topics"] if topics else row["partitions"]
                parts.append(table(columns, listed, wide=wide))
        return paragraphs(parts)

    show(output, rows, text)


async def _described(names: Names, cluster: ClusterClient) -> list[str]:
    """Return the groups that names and patterns select; each exists or has settings of its own.

    Raises:
        NoSuchGroup: A group does not exist.
    """
    from kbroker.client.configs import Resource, describe_configs
    from kbroker.client.group_details import group_details

    chosen = await group_names(cluster, names)
    settings = await describe_configs(cluster, Resource.GROUP, chosen)
    for name in chosen:
        if not any(each.is_own for each in settings[name]):
            await group_details(cluster, name)
    return chosen


TOPIC_COLUMNS = [Column("topic"), Column("partitions"), Column("lag"), Column("without_offset")]
# Statuses of topology descriptions (KIP-1331).
TOPOLOGY_STATUSES = {
    "NOT_REQUESTED": "unknown, because the broker does not support topology descriptions",
    "NOT_STORED": "not stored",
    "ERROR": "unknown, because the broker cannot read it; its log has the cause",
    "AVAILABLE": "stored",
}


def _summary(row: Row) -> list[str]:
    from kbroker.client.group_details import lag_text

    lines: dict[str, object] = {
        "GROUP": row["group"],
        "COORDINATOR": row["coordinator"],
        "STATE": row["state"],
        "ASSIGNOR": row["assignor"] or "-",
        "MEMBERS": row["members"],
        "TOTAL-LAG": lag_text(row["total_lag"], row["without_offset"]),
    }
    if "topology_description" in row:
        lines["TOPOLOGY"] = TOPOLOGY_STATUSES[row["topology_description"]["status"]]
    if "dead_letter_queue" in row:
        lines |= _dead_letter_queue(row["dead_letter_queue"])
    return [f"{key:<13}{value}" for key, value in lines.items()]


def _dead_letter_queue(queue: Row | None) -> dict[str, object]:
    if queue is None:
        return {"DLQ-TOPIC": "-"}
    lines = {
        "DLQ-TOPIC": queue["topic"],
        "DLQ-COPIES": "yes" if queue["copies_records"] else "no",
        "DLQ-RECORDS": queue["records"],
        "DLQ-PROBLEM": queue["problem"],
    }
    return {key: value for key, value in lines.items() if value is not None}


def _topology(row: Row) -> list[list[str]]:
    """Return the paragraphs that draw the topology of a streams group."""
    nodes = row.get("topology_description", {}).get("nodes")
    if not nodes:
        return []
    from kbroker.client.topology_descriptions import TopologyNode

    from .topology_drawing import draw_topology

    return [draw_topology(TopologyNode(**node) for node in nodes)]


# -- alter-config


@group.command("alter-config")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@regex_option
@set_option(complete_group_settings)
@delete_option(complete_group_setting_names)
@destructive
@target_options
def alter_config(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    change: Change,
    **changes: tuple[str, ...],
) -> None:
    """Change settings of groups NAMES, which may be patterns; all others stay unchanged.

    A group need not exist yet. The command asks for confirmation only with --delete.
    """
    from kbroker.config import Scope

    alter_settings(target, change, Scope.GROUP, partial(_altered, Names(names, regex)), changes)


async def _altered(names: Names, cluster: ClusterClient) -> list[str]:
    """Return the groups that names and patterns select, and print a note on unknown ones."""
    from kbroker.client.groups import list_groups

    chosen = await group_names(cluster, names)
    existing = {each.name for each in await list_groups(cluster)}
    for name in chosen:
        if name not in existing:
            say(f"note: group {name!r} does not exist yet, or you may not see it", err=True)
    return chosen


# -- seek


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@regex_option
@click.option(
    "--to",
    "spec",
    metavar="OFFSET",
    help="New offset: start, end, 47, +3 (after the start), -2 (before the end) or @TIME.",
)
@click.option(
    "--shift",
    type=int,
    metavar="N",
    help="Move each offset forward by N records, or back if N is negative.",
)
@click.option(
    "--from-file",
    "file",
    type=click.File(encoding="utf-8"),
    help="Read the new offsets from a file: output of `group describe -o json` or `seek -o json`, "
    "or lines TOPIC,PARTITION,OFFSET.",
)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[:0,1]",
    shell_complete=complete_topics,
    help="Change only this topic, or these partitions of it; can be given several times. "
    "[default: all with a committed offset]",
)
@destructive
@target_options
def seek(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    spec: str | None,
    shift: int | None,
    file: IO[str] | None,
    topics: tuple[str, ...],
    change: Change,
) -> None:
    """Set the offsets of groups NAMES, which may be patterns and must have no members.

    New offsets are limited to the range of the partition's log. If a group does not exist, it is
    created as a consumer group.
    """
    from kbroker.client.seek import Seek

    from .group_seek import (
        BadOffsets,
        PlannedSeeks,
        members_problems,
        parse_new_offset,
        parse_topics,
        plan_seeks,
        preview_of,
        read_offsets,
        report_members,
        rows_of,
        table_of,
    )

    if sum(each is not None for each in (spec, shift, file)) != 1:
        raise click.UsageError("give exactly one of --to, --shift and --from-file")
    try:
        to = parse_new_offset(spec, time.time_ns() // 1_000_000) if spec is not None else None
        offsets = read_offsets(file.read()) if file is not None else None
        selected = parse_topics(topics)
    except BadOffsets as error:
        raise click.UsageError(str(error)) from None

    async def plan(cluster: ClusterClient) -> PlannedSeeks:
        chosen = await group_names(cluster, Names(names, regex))
        if problems := await members_problems(cluster, chosen):
            report_members(problems, is_dry_run=change.is_dry_run)
        jobs = [Seek(name, to, shift, offsets, selected) for name in chosen]
        return await plan_seeks(cluster, jobs)

    planned = run(target, plan)
    if not change.confirm(preview_of(planned.rows, to)):
        return
    rows = rows_of(run(target, planned.apply))
    change.report(rows, lambda wide: table_of(rows, wide=wide))
    if any(row["error"] for row in rows):
        fail(
            "some offsets were not set; stop the members of the group (`group wait` waits for that) "
            "and retry"
        )


# -- wait

ABSENT = MappingProxyType({"state": "absent", "members": 0, "total_lag": None, "without_offset": 0})


def _has_lag(found: Row, most: int) -> bool:
    """Return True if the lag of all partitions with records is known and at most `most`."""
    lag = found["total_lag"]
    return lag is not None and lag <= most and not found["without_offset"]


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--state", help="Wait until the group is in this state, such as Stable or Empty.")
@click.option(
    "--members", type=click.IntRange(0), help="Wait until the group has this number of members."
)
@click.option(
    "--lag",
    type=click.IntRange(0),
    help="Wait until the total lag is at most this number of records, and every partition with "
    "records has a committed offset.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Maximum time to wait.",
)
@target_options
def wait(
    target: Target,
    name: str,
    state: str | None,
    members: int | None,
    lag: int | None,
    timeout: float,
) -> None:
    """Wait until group NAME meets all given conditions. Exit status 4 on a timeout."""
    if state is None and members is None and lag is None:
        raise click.UsageError("give at least one condition: --state, --members or --lag")

    async def work(cluster: ClusterClient) -> None:
        import trio

        from kbroker.client.errors import NoSuchGroup, TimedOut
        from kbroker.client.group_details import group_details, lag_text

        deadline = trio.current_time() + timeout
        while True:
            try:
                group_state = await group_details(cluster, name)
            except NoSuchGroup:
                group_state = dict(ABSENT)
            is_met = (
                state in (None, group_state["state"])
                and members in (None, group_state["members"])
                and (lag is None or _has_lag(group_state, lag))
            )
            shown_lag = lag_text(group_state["total_lag"], group_state["without_offset"])
            description = (
                f"{group_state['state']}, {group_state['members']} members, lag {shown_lag}"
            )
            if is_met:
                say(f"{name}: {description}")
                return
            if trio.current_time() >= deadline:
                raise TimedOut(f"after {timeout:g} s group {name!r} is still {description}")
            await trio.sleep(POLL_SECONDS)

    run(target, work)
