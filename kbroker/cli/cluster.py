"""The `kbroker cluster` command: brokers, clients, problems, log directories, transactions, quotas."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

import click

from kbroker.text.sizes import human_size

from .access import Access
from .cluster_clients import clients
from .cluster_data_dirs import migrate_metadata, resize
from .cluster_moves import drain, rebalance, unregister
from .cluster_node import link, node
from .cluster_quotas import quotas
from .confirmation import count_of
from .lazy import CommandGroup
from .output import Column, format_options, paragraphs, show, table
from .target import FAILED, Target, run, target_options
from .transactions import txn

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.cluster_details import Row


SECTIONS = {
    "State": ("info", "health", "logdirs", "clients"),
    "Brokers and partitions": ("rebalance", "drain", "unregister", "resize", "migrate-metadata"),
    "Nodes of a server with several nodes": ("node", "link"),
    "Transactions and quotas": ("txn", "quotas"),
}


@click.group(cls=CommandGroup, sections=SECTIONS)
def cluster() -> None:
    """Show brokers, problems, disks, transactions and quotas; stop and start nodes."""


cluster.add_command(clients)
cluster.add_command(txn)
cluster.add_command(node)
cluster.add_command(link)
cluster.add_command(resize)
cluster.add_command(migrate_metadata)
cluster.add_command(drain)
cluster.add_command(rebalance)
cluster.add_command(unregister)
cluster.add_command(quotas)


@cluster.command()
@format_options
@target_options
def info(target: Target, output: str) -> None:
    """Show the cluster ID and the brokers, including those that are down.

    A drained broker gets no new partitions. A broker that is down is shown with its last address.
    """
    from kbroker.client.cluster_details import cluster_details

    value = run(target, cluster_details)
    brokers = value["brokers"]

    def text(wide: bool) -> list[str]:
        columns = [Column("broker"), Column("host"), Column("port"), Column("rack", optional=True)]
        columns += [Column("controller"), Column("leads"), Column("state")]
        topics, partitions = (count_of(value[key], key[:-1]) for key in ("topics", "partitions"))
        head = f"cluster {value['cluster_id']}: {topics}, {partitions}"
        return [head, *table(columns, brokers, wide=wide)]

    show(output, value, text)


@cluster.command()
@format_options
@target_options
def health(target: Target, output: str) -> None:
    """Look for brokers, directories and partitions with problems. Exit status 1 if there are any.

    The command connects to every broker at its advertised address, and reads the end offset of
    every partition. It also reports directories whose disk is 90 % full, but exits with status 0 as
    long as they accept records. Partitions with the same problem share a row; -o wide shows a row
    for each partition. Transactions that have been open for a minute are warnings, which leave the
    exit status 0.
    """
    from kbroker.client.cluster_details import ERROR, cluster_problems, summarize
    from kbroker.client.transaction_problems import long_transaction_problems

    async def work(cluster: ClusterClient) -> list[Row]:
        now_ms = round(time.time() * 1000)
        return await cluster_problems(cluster) + await long_transaction_problems(cluster, now_ms)

    problems = run(target, work, needed=[Access("describe", "cluster")])
    for row in problems:
        if row["what"] == "transaction":
            row["action"] += f": `kbroker cluster txn abort {shlex.quote(row['where'])}`"
    columns = [Column("what"), Column("where"), Column("problem"), Column("action")]

    def text(wide: bool) -> list[str]:
        shown = problems if wide else summarize(problems)
        return table(columns, shown, wide=wide) if problems else ["healthy"]

    show(output, problems, text)
    if any(problem["severity"] == ERROR for problem in problems):
        raise SystemExit(FAILED)


@cluster.command()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Count only partitions of this topic; can be given several times.",
)
@format_options
@target_options
def logdirs(target: Target, topics: tuple[str, ...], output: str) -> None:
    """Show the log directories of all brokers; with -o wide, the size of each partition.

    The largest partitions come first.
    """
    from kbroker.client.cluster_details import log_dir_row
    from kbroker.client.log_dirs import describe_log_dirs

    rows = [log_dir_row(found, topics) for found in run(target, describe_log_dirs)]
    columns = [Column("broker"), Column("directory"), Column("partitions"), Column("size")]
    columns += [Column("free"), Column("total"), Column("error", optional=True)]

    def text(wide: bool) -> list[str]:
        parts = [table(columns, [_log_dir_sums(row) for row in rows], wide=wide)]
        if wide:
            flat = [{"broker": row["broker"], **each} for row in rows for each in row["partitions"]]
            flat.sort(key=lambda each: each["bytes"], reverse=True)
            shown = [each | {"size": human_size(each["bytes"])} for each in flat]
            sizes = [Column("broker"), Column("partition"), Column("size")]
            parts.append(table(sizes, shown, wide=True))
        return paragraphs(parts)

    show(output, rows, text)


def _log_dir_sums(row: Row) -> Row:
    """Return the columns of a log directory in the text formats."""
    return row | {
        "partitions": len(row["partitions"]),
        "size": human_size(sum(each["bytes"] for each in row["partitions"])),
        "free": human_size(row["usable_bytes"]),
        "total": human_size(row["total_bytes"]),
    }
