"""The `kbroker cluster txn` command: state of transactions, and aborts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kbroker.text.times import iso_time

from .completion import complete_topics, complete_transactional_ids
from .confirmation import Change, Preview, count_of, destructive
from .lazy import CommandGroup
from .output import Column, format_options, paragraphs, show, table
from .target import Target, run, target_options
from .units import DURATION

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.errors import ClientError
    from kbroker.client.topics import Partition
    from kbroker.client.transactions import OpenTransaction, Row, Transaction

# Default of the brokers' transaction.max.timeout.ms.
OLDER_THAN = "15m"


@click.group(cls=CommandGroup)
def txn() -> None:
    """Show and abort transactions."""


@txn.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Show only transactions in this state; can be given several times.",
)
@click.option(
    "--longer-than",
    type=DURATION,
    metavar="TIME",
    help="Show only transactions that have been open for longer than this.",
)
@format_options
@target_options
def list_(target: Target, states: tuple[str, ...], longer_than: float | None, output: str) -> None:
    """Show the transactional IDs of all brokers."""
    from kbroker.client.transactions import list_transactions

    longer_than_ms = -1 if longer_than is None else round(longer_than * 1000)
    found = run(
        target,
        lambda cluster: list_transactions(cluster, states=states, longer_than_ms=longer_than_ms),
    )
    rows = [one.row() for one in found]
    columns = [Column("transactional_id"), Column("producer_id"), Column("state")]
    columns += [Column("coordinator", wide=True)]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


@txn.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_transactional_ids)
@format_options
@target_options
def describe(target: Target, names: tuple[str, ...], output: str) -> None:
    """Show the transactions of transactional IDs NAMES."""
    from kbroker.client.transactions import describe_transaction

    async def work(cluster: ClusterClient) -> list[Transaction]:
        return [await describe_transaction(cluster, name) for name in names]

    rows = [one.row() for one in run(target, work)]
    show(output, rows, lambda _: paragraphs(map(_summary, rows)))


def _summary(row: Row) -> list[str]:
    lines = {key.upper().replace("_", "-"): value for key, value in row.items()}
    lines["START-TIMESTAMP"] = iso_time(row["start_timestamp"])
    lines["PARTITIONS"] = ", ".join(row["partitions"]) or None
    return [f"{key:<18}{'-' if value is None else value}" for key, value in lines.items()]


@txn.command()
@click.argument("transactional_id", shell_complete=complete_transactional_ids)
@destructive
@target_options
def abort(target: Target, transactional_id: str, change: Change) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID.

    The command fences the producer: it cannot write with this transactional ID until it starts
    again. `txn abort-hanging` aborts transactions that no coordinator knows.
    """
    from kbroker.client.transactions import fence_producer, find_ongoing_transaction

    found = run(target, lambda cluster: find_ongoing_transaction(cluster, transactional_id))
    question = f"Abort the transaction of {transactional_id} and fence its producer?"
    if not change.confirm(Preview(question, [found.row()], [_abort_summary(found)])):
        return

    async def work(cluster: ClusterClient) -> None:
        current = await find_ongoing_transaction(cluster, transactional_id)
        if _identity(current) != _identity(found):
            raise _changed(transactional_id)
        await fence_producer(cluster, transactional_id)

    run(target, work)
    done = f"{transactional_id}: aborted the transaction"
    change.report([found.row()], lambda _: [done])


def _identity(found: Transaction) -> tuple[int, int, int]:
    """Return the values that differ between two transactions of a transactional ID."""
    return found.producer_id, found.producer_epoch, found.start_ms


def _changed(subject: str) -> ClientError:
    """Return the error for a transaction that has ended, and another one began."""
    from kbroker.client.errors import ClientError

    return ClientError(
        f"{subject}: another transaction has begun in the meantime; nothing was changed",
        hint="repeat the command to see it",
    )


def _abort_summary(found: Transaction) -> str:
    """Return the producer, age and partitions of a transaction in a line."""
    places = ", ".join(found.row()["partitions"]) or "no partition"
    line = f"{found.id}: transaction of producer {found.producer_id} in {places}"
    if found.start_ms < 0:
        return line
    open_seconds = max(int(time.time() - found.start_ms / 1000), 0)
    return f"{line}, open since {iso_time(found.start_ms)} ({count_of(open_seconds, 'second')})"


# -- transactions that hang

HANGING_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("producer_id"),
    Column("producer_epoch"),
    Column("start_offset"),
    Column("last_timestamp"),
    Column("coordinator_epoch", wide=True),
]


@txn.command("find-hanging")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Search only in this topic; can be given several times.",
)
@click.option(
    "--older-than",
    type=DURATION,
    metavar="TIME",
    default=OLDER_THAN,
    show_default=True,
    help="Show only transactions without a new record for this long.",
)
@format_options
@target_options
def find_hanging(target: Target, topics: tuple[str, ...], older_than: float, output: str) -> None:
    """Show transactions that are open in a partition, but unknown to any coordinator.

    A hanging transaction blocks read_committed consumers of its partition until
    `txn abort-hanging` aborts it.
    """
    from kbroker.client.transactions import hanging_transactions

    before_ms = round((time.time() - older_than) * 1000)

    async def work(cluster: ClusterClient) -> list[OpenTransaction]:
        return await hanging_transactions(
            cluster, await _partitions(cluster, topics), before_ms=before_ms
        )

    rows = [one.row() for one in run(target, work)]
    dated = [{**row, "last_timestamp": iso_time(row["last_timestamp"])} for row in rows]
    show(output, rows, lambda wide: table(HANGING_COLUMNS, dated, wide=wide))


async def _partitions(cluster: ClusterClient, topics: tuple[str, ...]) -> list[Partition]:
    rows = await cluster.topics(topics) if topics else (await cluster.metadata()).topics
    return [(row.name or "", each.partition_index) for row in rows for each in row.partitions]


@txn.command("abort-hanging")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=int)
@click.argument("start_offset", type=int)
@click.option(
    "--force", is_flag=True, help="Abort the transaction even if its coordinator still manages it."
)
@destructive
@target_options
def abort_hanging(
    target: Target, topic: str, partition: int, start_offset: int, force: bool, change: Change
) -> None:
    """Abort the hanging transaction that starts at START_OFFSET in PARTITION of TOPIC.

    The command writes an abort marker to this partition only. It does not change the state of the
    coordinator or of other partitions. `txn abort` aborts transactions that a coordinator knows.
    """
    from kbroker.client.transactions import abort_transaction, find_hanging_transaction

    found = run(
        target,
        lambda cluster: find_hanging_transaction(
            cluster, (topic, partition), start_offset, force=force
        ),
    )
    place = f"{topic}-{partition}"
    line = (
        f"{place}: transaction of producer {found.producer_id} from offset {start_offset}, newest "
        f"record at {iso_time(found.last_timestamp)}"
    )
    question = f"Abort the transaction at offset {start_offset} of {place}?"
    if not change.confirm(Preview(question, [found.row()], [line])):
        return

    async def work(cluster: ClusterClient) -> None:
        current = await find_hanging_transaction(
            cluster, (topic, partition), start_offset, force=force
        )
        if (current.producer_id, current.producer_epoch) != (
            found.producer_id,
            found.producer_epoch,
        ):
            raise _changed(place)
        await abort_transaction(cluster, current)

    run(target, work)
    done = f"{place}: aborted the transaction at offset {start_offset}"
    change.report([found.row()], lambda _: [done])
