"""The `kbroker audit` command: checks of a topic's records, and comparison with another copy."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.text.times import iso_time

from .completion import complete_topics
from .output import Column, format_options, paragraphs, show, table
from .target import Target, parse_addresses, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.pipelines.audit import Identity, PairReport, Source, TopicReport
    from kbroker.pipelines.audit.compare import Compared
    from kbroker.pipelines.audit.partition import PartitionFacts

# Exit codes: the audit has findings; the audit failed.
FOUND, NOT_DONE = 1, 3

OFFSET = "offset"

FACTS_COLUMNS = [
    Column("partition"),
    Column("records"),
    Column("first_offset"),
    Column("last_offset"),
    Column("first_time"),
    Column("last_time"),
    Column("bytes"),
    Column("batches", wide=True),
    Column("codecs"),
    Column("absent", optional=True),
    Column("tombstones", wide=True),
    Column("without_key", wide=True),
    Column("with_headers", wide=True),
    Column("times_back", wide=True),
    Column("producers", wide=True),
]
COMPARED_COLUMNS = [
    Column("partition"),
    Column("equal"),
    Column("lost", optional=True),
    Column("pending", optional=True),
]


@click.command(
    epilog="""
FORM is record (key, value and headers), key, header:NAME, or field:NAME of a JSON value.

Exit status: 0 no findings, 1 findings, 2 invalid usage, 3 the audit failed, 4 timeout.
"""
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--against", metavar="TOPIC", help="Compare TOPIC with this topic.")
@click.option(
    "--against-bootstrap",
    metavar="HOST:PORT",
    help="Cluster of the --against topic.  [default: the cluster of --bootstrap]",
)
@click.option(
    "--against-lake",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Compare TOPIC with the lake in this directory, written by `kbroker lake`.",
)
@click.option(
    "--match-by",
    metavar="offset|FORM",
    default=OFFSET,
    show_default=True,
    help="With --against: match records by offset, or by their identity FORM.",
)
@click.option(
    "--distinct", is_flag=True, help="With --match-by FORM: ignore how often a record occurs."
)
@click.option(
    "--allow-lag", is_flag=True, help="Accept that the other side lacks the newest records."
)
@click.option(
    "--unique-by", metavar="FORM", help="Report duplicate records: those with equal identity FORM."
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Audit only this partition; can be given several times.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_committed treats records of aborted transactions as absent; read_uncommitted counts "
    "them.",
)
@click.option(
    "--list",
    "listed",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Maximum number of findings to list, for each kind.",
)
@format_options
@target_options
def audit(target: Target, topic: str, output: str, **options: Any) -> None:
    """Check the records of TOPIC: gaps, duplicates, timestamps and keys.

    With --against or --against-lake, report records that are missing, duplicated or different
    there.
    """
    choices = _choices(target, **options)

    async def work(cluster: ClusterClient) -> TopicReport | PairReport:
        return await _audit(cluster, topic, choices)

    report = run(target, work, failed=NOT_DONE)
    show(output, _as_json(report), lambda wide: _text(report, wide=wide))
    if report.findings:
        sys.exit(FOUND)


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of the command line. If `identity` is None, records are compared by offset."""

    against: str | None
    other_cluster: Target | None
    lake: Path | None
    identity: Identity | None
    distinct: bool
    allow_lag: bool
    unique: Identity | None
    partitions: tuple[int, ...]
    committed: bool
    listed: int


def _choices(target: Target, **options: Any) -> Choices:
    against, bootstrap, lake = (
        options[name] for name in ("against", "against_bootstrap", "against_lake")
    )
    if against is not None and lake is not None:
        raise click.UsageError("--against and --against-lake exclude each other")
    if against is None and (
        bootstrap is not None or options["match_by"] != OFFSET or options["distinct"]
    ):
        raise click.UsageError(
            "--against-bootstrap, --match-by and --distinct need --against TOPIC"
        )
    if options["distinct"] and options["match_by"] == OFFSET:
        raise click.UsageError("--distinct needs --match-by FORM, because offsets are unique")
    if options["unique_by"] is not None and (against or lake):
        raise click.UsageError("--unique-by cannot be combined with --against or --against-lake")
    return Choices(
        against,
        None
        if bootstrap is None
        else replace(target, bootstrap=parse_addresses(bootstrap, "--against-bootstrap")),
        lake,
        None if options["match_by"] == OFFSET else _identity(options["match_by"], "--match-by"),
        options["distinct"],
        options["allow_lag"],
        None if options["unique_by"] is None else _identity(options["unique_by"], "--unique-by"),
        options["partitions"],
        options["isolation"] == "read_committed",
        options["listed"],
    )


def _identity(text: str, option: str) -> Identity:
    from kbroker.pipelines.audit import BadIdentity, Identity

    try:
        return Identity.parse(text)
    except BadIdentity as error:
        raise click.BadParameter(str(error), param_hint=option) from None


async def _audit(cluster: ClusterClient, topic: str, choices: Choices) -> TopicReport | PairReport:
    from kbroker.pipelines.audit import Source, audit_topic

    source = Source(cluster, topic, choices.committed, choices.partitions)
    if choices.lake is not None:
        return await _compare_with_lake(source, choices.lake, choices)
    if choices.against is None:
        return await audit_topic(source, unique=choices.unique, listed=choices.listed)
    if choices.other_cluster is None:
        return await _compare_with_topic(source, cluster, choices.against, choices)
    async with choices.other_cluster.connect() as other:
        return await _compare_with_topic(source, other, choices.against, choices)


async def _compare_with_topic(
    source: Source, cluster: ClusterClient, name: str, choices: Choices
) -> PairReport:
    from kbroker.pipelines.audit import Source, compare_contents, compare_offsets

    other = Source(cluster, name, choices.committed, choices.partitions)
    listed = choices.listed
    if choices.identity is None:
        return await compare_offsets(source, other, allow_lag=choices.allow_lag, listed=listed)
    return await compare_contents(
        source, other, choices.identity, distinct=choices.distinct, listed=listed
    )


async def _compare_with_lake(source: Source, lake: Path, choices: Choices) -> PairReport:
    from kbroker.client.errors import ClientError

    try:
        from kbroker.pipelines.audit.lake import compare_lake
    except ModuleNotFoundError as error:
        raise ClientError(
            f"reading a lake needs {error.name}: pip install 'kbroker[spark]'"
        ) from None
    return await compare_lake(source, lake, allow_lag=choices.allow_lag, listed=choices.listed)


# -- what is printed


def _as_json(report: TopicReport | PairReport) -> dict[str, object]:
    from kbroker.pipelines.audit import TopicReport

    found: dict[str, object] = {
        "topic": report.topic,
        "clean": not report.findings,
        "counts": {str(kind): count for kind, count in report.findings.counts.items()},
        "findings": [finding.as_json() for finding in report.findings.listed],
        "partitions": [_facts(facts) for facts in report.partitions],
    }
    if isinstance(report, TopicReport):
        keys = {"keys": report.keys, "keys_exact": report.keys_exact}
        return found | keys | {"repeated": report.repeated, "compacted": report.compacted}
    return found | {
        "against": report.other,
        "by": report.by,
        "against_partitions": [_facts(facts) for facts in report.other_partitions],
        "compared": [_compared_row(one) for one in report.compared],
        "files": report.files,
        "poison": report.poison,
    }


def _text(report: TopicReport | PairReport, *, wide: bool) -> list[str]:
    from kbroker.pipelines.audit import TopicReport

    parts = [table(FACTS_COLUMNS, map(_facts, report.partitions), wide=wide)]
    if isinstance(report, TopicReport):
        about = "" if report.keys_exact else "about "
        remark = (
            f"{report.records:,} records, {about}{report.keys:,} different keys, "
            f"{report.repeated:,} duplicate records"
        )
        parts.append([remark])
    else:
        if report.other_partitions:
            other_rows = table(FACTS_COLUMNS, map(_facts, report.other_partitions), wide=wide)
            parts.append([f"against {report.other} by {report.by}", *other_rows])
        else:
            remark = (
                f"against {report.other}: {report.files:,} files, {report.poison:,} unreadable "
                "records in dead-letter files"
            )
            parts.append([remark])
        if report.compared:
            parts.append(table(COMPARED_COLUMNS, map(_compared_row, report.compared), wide=wide))
    open_ends = sum(facts.beyond_stable for facts in report.partitions)
    if open_ends:
        remark = (
            f"{open_ends:,} offsets after the last stable offset were not read because of open "
            "transactions; `kbroker cluster txn list` shows the transactions"
        )
        parts.append([remark])
    parts.append(report.findings.lines() if report.findings else ["clean"])
    return paragraphs(parts)


def _facts(facts: PartitionFacts) -> dict[str, object]:
    return {
        "partition": facts.partition,
        "records": facts.records,
        "first_offset": facts.first_offset,
        "last_offset": facts.last_offset,
        "log_start": facts.log_start,
        "end": facts.end,
        "first_time": iso_time(facts.first_timestamp),
        "last_time": iso_time(facts.last_timestamp),
        "times_back": facts.times_back,
        "bytes": facts.bytes,
        "batches": facts.batches,
        "codecs": dict(facts.codecs),
        "absent": {str(reason): count for reason, count in facts.absent.items()},
        "tombstones": facts.tombstones,
        "without_key": facts.without_key,
        "with_headers": facts.with_headers,
        "producers": facts.producers,
        "beyond_stable": facts.beyond_stable,
    }


def _compared_row(one: Compared) -> dict[str, object]:
    return {
        "partition": one.partition,
        "equal": one.equal,
        "lost": {str(reason): count for reason, count in one.excused.items()},
        "pending": one.pending or None,
    }
