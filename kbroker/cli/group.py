"""The `kbroker group` command: members, offsets and lag of groups, and offset resets."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING

import click

from .completion import complete_groups, complete_topics
from .output import Column, format_options, paragraphs, say, show, table
from .target import Target, fail, run, target_options
from .units import DURATION

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.group_details import Row
    from kbroker.client.topics import Partition
    from kbroker.protocol.errors import ErrorCode

POLL_SECONDS = 0.2


@click.group()
def group() -> None:
    """Show, reset and delete groups."""


@group.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Show only groups in this state; can be given several times.",
)
@format_options
@target_options
def list_(target: Target, states: tuple[str, ...], output: str) -> None:
    """Show all groups."""
    from kbroker.client.groups import list_groups

    wanted = {state.lower() for state in states}
    rows = [
        {
            "group": each.name,
            "state": each.state,
            "type": each.type,
            "protocol": each.protocol_type,
            "coordinator": each.coordinator,
        }
        for each in run(target, list_groups)
        if not wanted or each.state.lower() in wanted
    ]
    columns = [Column("group"), Column("state"), Column("type", optional=True)]
    columns += [Column("protocol", wide=True), Column("coordinator", wide=True)]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


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
@click.option("-s", "--summary", is_flag=True, help="Show only the summary.")
@click.option("-c", "--commits", is_flag=True, help="Show only the committed offsets.")
@click.option("-t", "--topics", is_flag=True, help="Show only the lag of each topic.")
@format_options
@target_options
def describe(
    target: Target, names: tuple[str, ...], summary: bool, commits: bool, topics: bool, output: str
) -> None:
    """Show members, offsets and lag of groups NAMES.

    The output for a share group has its dead-letter queue, and for a streams group its topology.
    """
    if summary + commits + topics > 1:
        raise click.UsageError("--summary, --commits and --topics exclude each other")

    from kbroker.client.group_details import details_by_type, group_details

    async def work(cluster: ClusterClient) -> list[Row]:
        rows = [await group_details(cluster, name) for name in names]
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


TOPIC_COLUMNS = [Column("topic"), Column("partitions"), Column("lag")]
# Statuses of topology descriptions (KIP-1331).
TOPOLOGY_STATUSES = {
    "NOT_REQUESTED": "unknown, because the broker does not support topology descriptions",
    "NOT_STORED": "not stored",
    "ERROR": "unknown, because the broker cannot read it; its log has the cause",
    "AVAILABLE": "stored",
}


def _summary(row: Row) -> list[str]:
    lines: dict[str, object] = {
        "GROUP": row["group"],
        "COORDINATOR": row["coordinator"],
        "STATE": row["state"],
        "ASSIGNOR": row["assignor"] or "-",
        "MEMBERS": row["members"],
        "TOTAL-LAG": "-" if row["total_lag"] is None else row["total_lag"],
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


# -- seek


@group.command()
@click.argument("name", shell_complete=complete_groups)
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
@click.option("--dry-run", is_flag=True, help="Only print the new offsets; change nothing.")
@format_options
@target_options
def seek(
    target: Target,
    name: str,
    spec: str | None,
    shift: int | None,
    file: IO[str] | None,
    topics: tuple[str, ...],
    dry_run: bool,
    output: str,
) -> None:
    """Set the offsets of group NAME, which must have no members.

    New offsets are limited to the range of the partition's log. If the group does not exist, it is
    created as a consumer group.
    """
    from kbroker.client.seek import Seek

    from .group_seek import BadOffsets, parse_offset_spec, parse_topics, read_offsets

    if sum(each is not None for each in (spec, shift, file)) != 1:
        raise click.UsageError("give exactly one of --to, --shift and --from-file")
    try:
        job = Seek(
            name,
            parse_offset_spec(spec, time.time_ns() // 1_000_000) if spec is not None else None,
            shift,
            read_offsets(file.read()) if file is not None else None,
            parse_topics(topics),
        )
    except BadOffsets as error:
        raise click.UsageError(str(error)) from None
    rows = run(target, job.plan if dry_run else job.run)
    columns = [Column("topic"), Column("partition"), Column("prior_offset"), Column("new_offset")]
    columns += [Column("error", optional=True)]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))
    if any(row["error"] for row in rows):
        fail(
            "some offsets were not set; stop the members of the group (`group wait` waits for that) "
            "and retry"
        )


# -- delete


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--if-exists", is_flag=True, help="Do not fail if a group does not exist.")
@target_options
def delete(target: Target, names: tuple[str, ...], if_exists: bool) -> None:
    """Delete groups NAMES and their offsets; the groups must have no members."""
    from kbroker.client.groups import delete_groups
    from kbroker.protocol.errors import ErrorCode

    outcome = run(target, lambda cluster: delete_groups(cluster, names))
    has_failed = False
    for name, error in outcome.items():
        if error is None:
            say(f"{name}: deleted")
        elif not (if_exists and error.code == ErrorCode.GROUP_ID_NOT_FOUND):
            has_failed = True
            say(f"kbroker: {name}: {_error_text(error.code, error.message)}", err=True)
    if has_failed:
        raise SystemExit(1)


def _error_text(code: ErrorCode, message: str | None = None) -> str:
    from kbroker.protocol.errors import ErrorCode

    if code == ErrorCode.NON_EMPTY_GROUP:
        return "the group has members; stop them (`kbroker group describe` lists them)"
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "the group does not exist; `kbroker group list` lists all groups"
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return "the group is subscribed to this topic; stop its members first"
    return message or code.name


@group.command("offset-delete")
@click.argument("name", shell_complete=complete_groups)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="NAME[:0,1]",
    help="Topic, or partitions of it, whose offsets to delete; can be given several times.",
)
@target_options
def offset_delete(target: Target, name: str, topics: tuple[str, ...]) -> None:
    """Delete the offsets of group NAME in topics that it is not subscribed to.

    A share group must have no members; its offsets can be deleted for whole topics only.
    """
    from kbroker.client.offset_deletion import WholeTopicsOnly, delete_group_offsets

    from .group_seek import BadOffsets, parse_topics

    try:
        wanted = parse_topics(topics)
    except BadOffsets as error:
        raise click.UsageError(str(error)) from None

    async def work(cluster: ClusterClient) -> dict[Partition, ErrorCode]:
        try:
            return await delete_group_offsets(cluster, name, wanted)
        except WholeTopicsOnly as error:
            raise click.UsageError(str(error)) from None

    outcome = run(target, work)
    if not outcome:
        fail(
            f"group {name!r} has no offsets for these topics; `kbroker group describe {name}` "
            "shows its offsets"
        )
    for (topic, index), code in outcome.items():
        say(f"{topic}-{index}: {_error_text(code) if code else 'deleted'}", err=bool(code))
    if any(outcome.values()):
        raise SystemExit(1)


# -- wait


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--state", help="Wait until the group is in this state, such as Stable or Empty.")
@click.option(
    "--members", type=click.IntRange(0), help="Wait until the group has this number of members."
)
@click.option(
    "--lag",
    type=click.IntRange(0),
    help="Wait until the total lag is at most this number of records.",
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
        from kbroker.client.group_details import group_details

        deadline = trio.current_time() + timeout
        while True:
            try:
                group_state = await group_details(cluster, name)
            except NoSuchGroup:
                group_state = {"state": "absent", "members": 0, "total_lag": None}
            is_met = (
                state in (None, group_state["state"])
                and members in (None, group_state["members"])
                and (
                    lag is None
                    or (group_state["total_lag"] is not None and group_state["total_lag"] <= lag)
                )
            )
            description = f"{group_state['state']}, {group_state['members']} members, lag {group_state['total_lag']}"
            if is_met:
                say(f"{name}: {description}")
                return
            if trio.current_time() >= deadline:
                raise TimedOut(f"after {timeout:g} s group {name!r} is still {description}")
            await trio.sleep(POLL_SECONDS)

    run(target, work)
