"""The `kbroker topic` command; `produce` and `consume` have their own modules."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

import click

from .completion import complete_topics
from .lazy import LazyGroup
from .output import Column, format_options, paragraphs, say, show, table
from .target import Target, fail, rejection_text, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.offset_spec import OffsetSpec
    from kbroker.client.topic_details import Row
    from kbroker.protocol.errors import ErrorCode

    from .topic_files import DeclaredTopic


COMMANDS = {
    "create": ("kbroker.cli.topic:create", "Create topics."),
    "list": ("kbroker.cli.topic:list_", "Show all topics."),
    "describe": ("kbroker.cli.topic:describe", "Show partitions and settings of topics."),
    "delete": ("kbroker.cli.topic:delete", "Delete topics with all their records."),
    "alter-config": ("kbroker.cli.topic:alter_config", "Change settings of a topic."),
    "add-partitions": ("kbroker.cli.topic:add_partitions", "Add partitions to a topic."),
    "trim": ("kbroker.cli.topic:trim", "Delete the oldest records of a topic."),
    "produce": ("kbroker.cli.produce:produce", "Write records."),
    "consume": ("kbroker.cli.consume:consume", "Read records."),
}


SECTIONS = {
    "Topics": ("create", "list", "describe", "delete", "alter-config", "add-partitions"),
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
    help="Set a topic setting; can be given several times.",
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
    from kbroker.protocol.errors import ErrorCode

    requested = _requested_topics(names, partitions, replication_factor, configs, file)
    topics = [NewTopic(*each) for each in requested]

    async def work(cluster: ClusterClient) -> None:
        outcome = await create_topics(cluster, topics, validate_only=dry_run)
        created = {
            topic.name: topic.partitions
            for topic in topics
            if not (code := outcome[topic.name][0])
            or (if_not_exists and code == ErrorCode.TOPIC_ALREADY_EXISTS)
        }
        if created and not dry_run:
            await wait_until_ready(cluster, dict.fromkeys(created, -1))
        word = "can be created" if dry_run else "created"
        for name, (code, _) in outcome.items():
            if name in created:
                say(f"{name}: {'exists' if code else word}")
        _exit_on_rejections({name: each for name, each in outcome.items() if name not in created})

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


def _exit_on_rejections(rejected: Mapping[str, tuple[ErrorCode, str | None]]) -> None:
    """Print the rejected topics, and exit if there are any."""
    for name, (code, message) in rejected.items():
        say(f"kbroker: {name}: {rejection_text(code, message)}", err=True)
    if rejected:
        raise SystemExit(1)


@click.command("list")
@click.argument("patterns", nargs=-1)
@click.option("-i", "--internal", is_flag=True, help="Also show internal topics.")
@format_options
@target_options
def list_(target: Target, patterns: tuple[str, ...], internal: bool, output: str) -> None:
    """Show all topics, or those whose names match one of PATTERNS (such as 'order*')."""
    from kbroker.client.topic_details import topic_row

    metadata = run(target, lambda cluster: cluster.metadata())
    rows = [
        topic_row(row)
        for row in sorted(metadata.topics, key=lambda row: row.name or "")
        if (internal or not row.is_internal)
        and (not patterns or any(fnmatch.fnmatchcase(row.name or "", each) for each in patterns))
    ]
    columns = [
        Column("name"),
        Column("partitions"),
        Column("replicas"),
        Column("topic_id", wide=True),
        Column("internal", wide=True),
    ]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@format_options
@target_options
def describe(target: Target, names: tuple[str, ...], output: str) -> None:
    """Show partitions and settings of topics NAMES; `topic create --file` reads `-o json` output."""
    from kbroker.client.topic_details import topic_details

    rows = run(target, lambda cluster: topic_details(cluster, names))

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
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@target_options
def delete(target: Target, names: tuple[str, ...], if_exists: bool) -> None:
    """Delete topics NAMES with all their records."""
    from kbroker.client.topics import delete_topics
    from kbroker.protocol.errors import ErrorCode

    async def work(cluster: ClusterClient) -> None:
        if not if_exists:
            await cluster.topics(names)
        outcome = await delete_topics(cluster, names)
        rejected = {}
        for name, (code, message) in outcome.items():
            if not code:
                say(f"{name}: deleted")
            elif not (if_exists and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                rejected[name] = code, message
        _exit_on_rejections(rejected)

    run(target, work)


@click.command("alter-config")
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a setting; can be given several times.",
)
@click.option(
    "--delete",
    "deletes",
    multiple=True,
    metavar="KEY",
    help="Reset a setting to its default; can be given several times.",
)
@click.option(
    "--append",
    "appends",
    multiple=True,
    metavar="KEY=VALUE",
    help="Append items to a list setting; can be given several times.",
)
@click.option(
    "--subtract",
    "subtracts",
    multiple=True,
    metavar="KEY=VALUE",
    help="Remove items from a list setting; can be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Only validate the settings; change nothing.")
@target_options
def alter_config(target: Target, name: str, dry_run: bool, **changes: tuple[str, ...]) -> None:
    """Change settings of topic NAME; all others stay unchanged."""
    from kbroker.client.configs import Operation, Resource, alter_configs

    from .topic_files import BadTopic, parse_configs

    operations: dict[str, tuple[Operation, str | None]] = {}
    try:
        for operation, option in (
            (Operation.SET, "sets"),
            (Operation.APPEND, "appends"),
            (Operation.SUBTRACT, "subtracts"),
        ):
            pairs = parse_configs(changes[option])
            operations |= {key: (operation, value) for key, value in pairs.items()}
    except BadTopic as error:
        raise click.UsageError(str(error)) from None
    operations |= {key: (Operation.DELETE, None) for key in changes["deletes"]}
    if not operations:
        raise click.UsageError(
            "no changes; give at least one of --set, --delete, --append and --subtract"
        )

    async def work(cluster: ClusterClient) -> None:
        await cluster.topics([name])
        await alter_configs(cluster, Resource.TOPIC, name, operations, validate_only=dry_run)

    run(target, work)
    say(f"{name}: {'the settings are valid' if dry_run else 'changed'}")


@click.command("add-partitions")
@click.argument("name", shell_complete=complete_topics)
@click.argument("count", type=click.IntRange(1))
@target_options
def add_partitions(target: Target, name: str, count: int) -> None:
    """Add COUNT partitions to topic NAME. Existing keys may then map to other partitions."""
    from kbroker.client.topics import grow_topic, wait_until_ready

    async def work(cluster: ClusterClient) -> int:
        (row,) = await cluster.topics([name])
        total = len(row.partitions) + count
        await grow_topic(cluster, name, total)
        await wait_until_ready(cluster, {name: total})
        return total

    say(f"{name}: {run(target, work)} partitions")


@click.command()
@click.argument("name", shell_complete=complete_topics)
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
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@format_options
@target_options
def trim(
    target: Target, name: str, before: str, partitions: tuple[int, ...], dry_run: bool, output: str
) -> None:
    """Delete the oldest records of topic NAME."""
    from .offsets import BadOffsetSpec, parse_offset_spec

    try:
        spec = parse_offset_spec(before, time.time_ns() // 1_000_000)
    except BadOffsetSpec as error:
        raise click.BadParameter(str(error), param_hint="--before") from None
    rows = run(target, lambda cluster: _trim(cluster, name, partitions, spec, dry_run))
    columns = [Column("partition"), Column("start_offset"), Column("new_start_offset")]
    columns += [Column("records"), Column("error", optional=True)]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))
    if any(row["error"] for row in rows):
        fail("some partitions were not trimmed")


async def _trim(
    cluster: ClusterClient, name: str, partitions: tuple[int, ...], spec: OffsetSpec, dry_run: bool
) -> list[dict[str, object]]:
    from kbroker.client.offset_spec import START, find
    from kbroker.client.topic_details import choose_partitions
    from kbroker.client.topics import delete_records

    chosen = await choose_partitions(cluster, name, partitions)
    starts = await find(cluster, chosen, START)
    wanted = await find(cluster, chosen, spec)
    rows: list[dict[str, object]] = [
        {
            "partition": one[1],
            "start_offset": starts[one],
            "new_start_offset": max(wanted[one], starts[one]),
            "records": max(wanted[one] - starts[one], 0),
            "error": None,
        }
        for one in chosen
    ]
    if dry_run:
        return rows
    moved = {one: wanted[one] for one in chosen if wanted[one] > starts[one]}
    for one, (code, start) in (await delete_records(cluster, moved)).items():
        row = rows[chosen.index(one)]
        if code:
            row |= {"error": code.name, "new_start_offset": None, "records": 0}
        else:
            row["new_start_offset"] = start
    return rows
