"""The `kbroker topic` command; `produce` and `consume` have their own modules."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from kbroker.text.sizes import human_size

from .completion import complete_topics
from .confirmation import Change, Preview, count_of, destructive, question_about
from .lazy import LazyGroup
from .output import (
    Column,
    Format,
    format_options,
    largest_first,
    paragraphs,
    said_on_error,
    say,
    show,
    sort_option,
    table,
)
from .patterns import Names, regex_option, topic_names
from .resource_settings import (
    alter_settings,
    configs_option,
    delete_option,
    set_option,
    setting_lines,
    show_settings,
)
from .setting_completion import complete_topic_setting_names, complete_topic_settings
from .target import Target, fail, run, target_options

if TYPE_CHECKING:
    from uuid import UUID

    from kbroker.client.cluster import ClusterClient
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.client.topic_details import Row
    from kbroker.protocol.errors import ErrorCode, KafkaError

    from .topic_files import DeclaredTopic


COMMANDS = {
    "create": ("kbroker.cli.topic:create", "Create topics."),
    "list": ("kbroker.cli.topic:list_", "Show all topics."),
    "describe": ("kbroker.cli.topic:describe", "Show partitions and settings of topics."),
    "delete": ("kbroker.cli.topic:delete", "Delete topics with all their records."),
    "alter-config": ("kbroker.cli.topic:alter_config", "Change settings of a topic."),
    "add-partitions": ("kbroker.cli.topic:add_partitions", "Add partitions to a topic."),
    "move": ("kbroker.cli.cluster_moves:move", "Move the replicas of topics to other brokers."),
    "trim": ("kbroker.cli.topic:trim", "Delete the oldest records of a topic."),
    "produce": ("kbroker.cli.produce:produce", "Write records."),
    "consume": ("kbroker.cli.consume:consume", "Read records."),
}


SECTIONS = {
    "Topics": ("create", "list", "describe", "delete", "alter-config", "add-partitions", "move"),
    "Records": ("produce", "consume", "trim"),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, sections=SECTIONS)
def topic() -> None:
    """Create, show and change topics; produce and consume records."""


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1),
    help="Number of partitions.  [default: broker setting num.partitions]",
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    help="Number of replicas.  [default: broker setting default.replication.factor]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_topic_settings,
    help="Set a topic setting, such as retention.ms=7d; can be given several times.",
)
@click.option(
    "--file",
    "file",
    type=click.File(encoding="utf-8"),
    help="Create the topics in this file: JSON from `topic describe -o json`, or TOML; - means "
    "standard input.",
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic already exists.")
@click.option("--dry-run", is_flag=True, help="Only validate the request; create nothing.")
@target_options
def create(
    target: Target,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    file: IO[str] | None,
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics NAMES and wait until they are usable."""
    from kbroker.client.topics import NewTopic, create_topics, wait_until_ready
    from kbroker.config import Scope
    from kbroker.protocol.errors import ErrorCode

    requested = _requested_topics(names, partitions, replication_factor, configs, file)
    topics = [NewTopic(*each) for each in requested]
    shown_settings = {each.name: setting_lines(Scope.TOPIC, each.configs) for each in requested}

    async def work(cluster: ClusterClient) -> None:
        outcome = await create_topics(cluster, topics, validate_only=dry_run)
        created = {
            topic.name: topic.partitions
            for topic in topics
            if not (code := outcome[topic.name][0])
            or (if_not_exists and code == ErrorCode.TOPIC_ALREADY_EXISTS)
        }
        rejected = {name: each for name, each in outcome.items() if name not in created}
        word = "can be created" if dry_run else "created"
        try:
            if created and not dry_run:
                await wait_until_ready(cluster, dict.fromkeys(created, -1))
        except BaseException:
            say(*(f"{name}: created, but maybe not usable yet" for name in created))
            _say_rejections(rejected)
            raise
        for name, (code, _) in outcome.items():
            if name in created:
                say(f"{name}: {'exists' if code else word}")
                if dry_run:
                    say(*shown_settings[name])
        _say_rejections(rejected)
        if rejected:
            raise SystemExit(1)

    run(target, work)


def _requested_topics(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    file: IO[str] | None,
) -> list[DeclaredTopic]:
    """Return the topics of names, options and file; options take precedence over the file."""
    from .topic_files import DEFAULT, BadTopic, DeclaredTopic, parse_configs, parse_topics

    try:
        given = parse_configs(configs)
        declared = [DeclaredTopic(name) for name in names]
        if file is not None:
            declared += parse_topics(file.read(), toml=file.name.endswith(".toml"))
    except BadTopic as error:
        raise click.UsageError(str(error)) from None
    if not declared:
        raise click.UsageError("name a topic, or give --file")
    return [
        DeclaredTopic(
            each.name,
            partitions or each.partitions or DEFAULT,
            replication_factor or each.replication_factor or DEFAULT,
            each.configs | given,
        )
        for each in declared
    ]


def _say_rejections(rejected: Mapping[str, tuple[ErrorCode, str | None]]) -> None:
    """Print the rejected topics."""
    from .hints import rejection_text

    for name, (code, message) in rejected.items():
        say(f"kbroker: {name}: {rejection_text(code, message)}", err=True)


@click.command("list")
@click.argument("patterns", nargs=-1, shell_complete=complete_topics)
@regex_option
@click.option("-i", "--internal", is_flag=True, help="Also show internal topics.")
@sort_option("name", "size", "records", "lag")
@format_options
@target_options
def list_(
    target: Target,
    patterns: tuple[str, ...],
    regex: bool,
    internal: bool,
    sort: str,
    output: str,
) -> None:
    """Show all topics, or those whose names match one of PATTERNS (such as 'order*').

    All formats but text have the records, the size on disk of all replicas, the groups with
    committed offsets and their lag, and the cleanup policy. The text format has only the column of
    --sort. A value is - if a broker does not report it.
    """
    from kbroker.client.topic_details import topic_row
    from kbroker.client.topic_overview import topic_overviews

    async def work(cluster: ClusterClient) -> list[Row]:
        if patterns:
            names = await topic_names(cluster, Names(patterns, regex), internal=internal)
            found = await cluster.topics(names)
        else:
            found = [
                row for row in (await cluster.metadata()).topics if internal or not row.is_internal
            ]
        topics = sorted(found, key=lambda row: row.name or "")
        if output == Format.TEXT and sort == "name":
            return [topic_row(row) for row in topics]
        return await topic_overviews(cluster, topics)

    rows = run(target, work)
    if sort != "name":
        rows = largest_first(rows, "bytes" if sort == "size" else sort)
    columns = [
        Column("name"),
        Column("partitions"),
        Column("replicas"),
        *(Column(key, wide=key != sort) for key in ("records", "size", "lag", "groups")),
        *(Column(key, wide=True) for key in ("cleanup_policy", "topic_id", "internal")),
    ]

    def text(wide: bool) -> list[str]:
        has_sizes = wide or sort == "size"
        shown = [row | {"size": human_size(row["bytes"])} for row in rows] if has_sizes else rows
        return table(columns, shown, wide=wide)

    show(output, rows, text)


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@regex_option
@configs_option
@format_options
@target_options
def describe(
    target: Target, names: tuple[str, ...], regex: bool, configs: bool, output: str
) -> None:
    """Show partitions and settings of topics NAMES; `topic create --file` reads `-o json` output.

    NAMES may be patterns such as 'order*'. The output has only settings that the topic itself
    has; --configs shows all.
    """
    if configs:
        from kbroker.config import Scope

        show_settings(target, Scope.TOPIC, partial(_existing, Names(names, regex)), output)
        return

    from kbroker.client.topic_details import topic_details

    async def work(cluster: ClusterClient) -> list[Row]:
        return await topic_details(cluster, await topic_names(cluster, Names(names, regex)))

    rows = run(target, work)

    def text(wide: bool) -> list[str]:
        return paragraphs(_description(row, wide=wide) for row in rows)

    show(output, rows, text)


def _description(row: Row, *, wide: bool) -> list[str]:
    columns = [
        Column("partition"),
        Column("leader"),
        Column("leader_epoch", wide=True),
        Column("replicas"),
        Column("isr"),
        Column("offline", optional=True),
        Column("start_offset"),
        Column("end_offset"),
        Column("error", optional=True),
    ]
    counts = f"partitions={len(row['partitions'])} replicas={row['replication_factor']}"
    lines = [f"{row['name']}  {counts} id={row['topic_id']}"]
    lines += [f"  {key}={value}" for key, value in row["configs"].items()]
    return [*lines, *table(columns, row["partitions"], wide=wide)]


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@regex_option
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@destructive
@target_options
def delete(
    target: Target, names: tuple[str, ...], regex: bool, if_exists: bool, change: Change
) -> None:
    """Delete topics NAMES with all their records.

    NAMES may be patterns such as 'order*', which never match internal topics.
    """
    from kbroker.protocol.errors import ErrorCode

    from .deletion import DeletedKind, delete_objects
    from .hints import rejection_text

    ids: dict[str, UUID] = {}

    async def find(cluster: ClusterClient) -> list[Row]:
        from kbroker.client.topics import topic_ids

        chosen = await topic_names(cluster, Names(names, regex), may_miss=if_exists)
        if if_exists:
            chosen = await _existing_only(cluster, chosen)
        ids.update(await topic_ids(cluster, chosen))
        return await _deletions(cluster, chosen)

    kind = DeletedKind(
        "topic",
        " with all records",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        _deletion_line,
        partial(_delete_topics, ids),
        lambda error: rejection_text(error.code, error.message),
    )
    delete_objects(target, change, kind, run(target, find), if_exists=if_exists)


async def _delete_topics(
    ids: Mapping[str, UUID], cluster: ClusterClient, names: Sequence[str]
) -> dict[str, KafkaError | None]:
    """Delete the topics with the IDs; return the error of each, or None if it was deleted."""
    from kbroker.client.topics import delete_topics
    from kbroker.protocol.errors import ErrorCode, KafkaError

    outcome = await delete_topics(cluster, names, ids=ids)
    gone = KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "the topic was deleted in the meantime; if a new one has this name, it is kept",
    )
    return {
        name: (gone if code == ErrorCode.UNKNOWN_TOPIC_ID else KafkaError(code, message))
        if code
        else None
        for name, (code, message) in outcome.items()
    }


async def _existing_only(cluster: ClusterClient, names: Sequence[str]) -> list[str]:
    """Return the topics that exist."""
    from kbroker.protocol.errors import ErrorCode

    described = (await cluster.metadata(names)).topics if names else []
    missing = {
        row.name for row in described if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    return [name for name in names if name not in missing]


async def _deletions(cluster: ClusterClient, names: Sequence[str]) -> list[Row]:
    """Return what a deletion of topics destroys. Raises NoSuchTopic."""
    from kbroker.client.topic_overview import topic_overviews

    topics = await cluster.topics(names)
    keys = ("partitions", "records", "bytes", "groups")
    return [
        {"topic": row["name"], **{key: row[key] for key in keys}}
        for row in await topic_overviews(cluster, topics, policies=False)
    ]


def _deletion_line(row: Row) -> str:
    """Return the line of a topic to delete; values that the brokers do not report are left out."""
    parts = [count_of(row["partitions"], "partition")]
    if row["records"] is not None:
        parts.append(count_of(row["records"], "record"))
    if row["bytes"] is not None:
        parts.append(human_size(row["bytes"]))
    if row["groups"]:
        parts.append(f"read by {', '.join(row['groups'])}")
    return f"topic {row['topic']}: {', '.join(parts)}"


@click.command("alter-config")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@regex_option
@set_option(complete_topic_settings)
@delete_option(complete_topic_setting_names)
@click.option(
    "--append",
    "appends",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_topic_settings,
    help="Append items to a list setting; can be given several times.",
)
@click.option(
    "--subtract",
    "subtracts",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_topic_settings,
    help="Remove items from a list setting; can be given several times.",
)
@destructive
@target_options
def alter_config(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    change: Change,
    **changes: tuple[str, ...],
) -> None:
    """Change settings of topics NAMES; all others stay unchanged.

    NAMES may be patterns such as 'order*'. The command asks for confirmation only with --delete.
    """
    from kbroker.config import Scope

    alter_settings(target, change, Scope.TOPIC, partial(_existing, Names(names, regex)), changes)


async def _existing(names: Names, cluster: ClusterClient) -> list[str]:
    """Return the topics that names and patterns select. Raises NoSuchTopic if one does not exist."""
    chosen = await topic_names(cluster, names)
    await cluster.topics(chosen)
    return chosen


@click.command("add-partitions")
@click.argument("name", shell_complete=complete_topics)
@click.argument("count", type=click.IntRange(1), required=False)
@click.option(
    "--total",
    type=click.IntRange(1),
    help="Instead of COUNT: number of partitions that the topic then has. If it has them, nothing "
    "changes.",
)
@click.option("--dry-run", is_flag=True, help="Only validate the request; add nothing.")
@target_options
def add_partitions(
    target: Target, name: str, count: int | None, total: int | None, dry_run: bool
) -> None:
    """Add COUNT partitions to topic NAME. You cannot remove them again.

    Existing keys may then map to other partitions.
    """
    from kbroker.client.topics import grow_topic, wait_until_ready

    if (count is None) == (total is None):
        raise click.UsageError("pass either COUNT or --total")

    async def work(cluster: ClusterClient) -> tuple[int, int]:
        (row,) = await cluster.topics([name])
        before = len(row.partitions)
        after = before + count if count is not None else total or before
        if after != before:
            await grow_topic(cluster, name, after, validate_only=dry_run)
            if not dry_run:
                raised = f"{name}: raised from {before} to {after} partitions"
                with said_on_error(f"{raised}, but maybe not all usable yet", err=False):
                    await wait_until_ready(cluster, {name: after})
        return before, after

    before, after = run(target, work)
    if after == before:
        say(f"{name}: has {count_of(before, 'partition')} already")
    else:
        verb = "can be raised" if dry_run else "raised"
        say(f"{name}: {verb} from {before} to {after} partitions")


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@regex_option
@click.option(
    "--before",
    required=True,
    metavar="OFFSET",
    help="Delete the records before this offset: an offset, end, -2 (before the end), or @TIME.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Delete only in this partition; can be given several times.  [default: all]",
)
@destructive
@target_options
def trim(
    target: Target,
    names: tuple[str, ...],
    regex: bool,
    before: str,
    partitions: tuple[int, ...],
    change: Change,
) -> None:
    """Delete the oldest records of topics NAMES, which may be patterns such as 'order*'."""
    from .offsets import BadOffsetSpec, first_record_text, parse_past_spec

    try:
        spec = parse_past_spec(before, time.time_ns() // 1_000_000)
    except BadOffsetSpec as error:
        raise click.BadParameter(str(error), param_hint="--before") from None

    ids: dict[str, UUID] = {}

    async def plan(cluster: ClusterClient) -> list[Row]:
        from kbroker.client.topics import topic_ids

        chosen = await topic_names(cluster, Names(names, regex))
        ids.update(await topic_ids(cluster, chosen))
        return [row for name in chosen for row in await _trims(cluster, name, partitions, spec)]

    columns = [Column("topic"), Column("partition"), Column("start_offset")]
    columns += [Column("new_start_offset"), Column("records"), Column("error", optional=True)]
    planned = run(target, plan)
    counts: dict[str, int] = {}
    for row in planned:
        counts[row["topic"]] = counts.get(row["topic"], 0) + row["records"]
    total = count_of(sum(counts.values()), "record")
    target_text = first_record_text(spec)
    lines = [f"new start offset: {target_text}"] if target_text else []
    lines += [f"topic {name}: delete {count_of(many, 'record')}" for name, many in counts.items()]
    preview = Preview(
        question_about(f"Delete {total} of", list(counts), "topic"),
        planned,
        lines,
        lambda wide: table(columns, planned, wide=wide),
        is_harmless=not any(counts.values()),
    )
    if not change.confirm(preview):
        return
    rows = run(target, lambda cluster: _trim(cluster, planned, ids))
    change.report(rows, lambda wide: table(columns, rows, wide=wide))
    if any(row["error"] for row in rows):
        fail("some partitions were not trimmed")


async def _trims(
    cluster: ClusterClient, name: str, partitions: tuple[int, ...], spec: OffsetSpec
) -> list[Row]:
    """Return the planned start offset of each partition."""
    from kbroker.client.offset_spec import START, find
    from kbroker.client.topic_details import choose_partitions

    chosen = await choose_partitions(cluster, name, partitions)
    starts = await find(cluster, chosen, START)
    wanted = await find(cluster, chosen, spec)
    return [
        {
            "topic": name,
            "partition": one[1],
            "start_offset": starts[one],
            "new_start_offset": max(wanted[one], starts[one]),
            "records": max(wanted[one] - starts[one], 0),
            "error": None,
        }
        for one in chosen
    ]


async def _trim(cluster: ClusterClient, planned: list[Row], ids: Mapping[str, UUID]) -> list[Row]:
    """Delete the planned records of the topics with the IDs; return the rows with the outcome."""
    from kbroker.client.topics import check_same_topics, delete_records

    await check_same_topics(cluster, ids)
    rows = {(row["topic"], row["partition"]): dict(row) for row in planned}
    moved = {one: row["new_start_offset"] for one, row in rows.items() if row["records"]}
    for one, (code, start) in (await delete_records(cluster, moved)).items():
        if code:
            rows[one] |= {"error": code.name, "new_start_offset": None, "records": 0}
        else:
            rows[one]["new_start_offset"] = start
    return list(rows.values())
