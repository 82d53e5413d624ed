"""`kbroker cluster clients`: the members of groups and the producers of a cluster."""

from __future__ import annotations

import time

import click

from kbroker.text.times import iso_time

from .completion import complete_topics
from .confirmation import count_of
from .output import Column, format_options, say, show, table
from .target import Target, run, target_options
from .units import DURATION

SINCE = "1h"


@click.command()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Show only clients of this topic; can be given several times.",
)
@click.option(
    "--since",
    "since_seconds",
    type=DURATION,
    metavar="TIME",
    default=SINCE,
    show_default=True,
    help="Show only producers whose last record is not older than this.",
)
@format_options
@target_options
def clients(target: Target, topics: tuple[str, ...], since_seconds: float, output: str) -> None:
    """Show the members of groups, and the producers with their last records.

    NAME is the group of a consumer, or the transactional ID or producer ID of a producer.
    Brokers report only idempotent and transactional producers, without their client IDs, and no
    consumers without a group. The log of kbroker can have the client ID of each request: see the
    page below.
    """
    from kbroker.client.cluster_clients import PRODUCER, cluster_clients

    since_ms = round((time.time() - since_seconds) * 1000)
    found = run(target, lambda cluster: cluster_clients(cluster, topics, since_ms=since_ms))
    rows = [
        each.row()
        | {
            "name": each.group or each.transactional_id or each.producer_id,
            "topics": ", ".join(each.topics) or None,
            "last_record": iso_time(each.last_timestamp),
        }
        for each in found.listed
    ]
    columns = [Column("role"), Column("name"), Column("client_id"), Column("host")]
    columns += [Column("transactional_id", wide=True), Column("producer_id", wide=True)]
    columns += [Column("topics"), Column("last_record", optional=True)]

    def text(wide: bool) -> list[str]:
        return table(columns, rows, wide=wide) if rows else ["no clients found"]

    show(output, [each.row() for each in found.listed], text)
    if found.old_producers:
        say(
            f"{count_of(found.old_producers, 'producer')} without a newer record left out; "
            "--since 1d shows those of a day",
            err=True,
        )
    if found.hidden:
        say(f"this user may not describe all {' or '.join(found.hidden)}", err=True)
    if any(each.role == PRODUCER for each in found.listed):
        say(
            "brokers do not report the client IDs of producers; `kbroker config log-level "
            "kbroker.audit=DEBUG` logs them on kbroker brokers with ACLs",
            err=True,
        )
