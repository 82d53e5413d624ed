"""The `kbroker explain` command: explains the state of an object of a cluster in sentences."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from .completion import complete_groups, complete_topics, complete_transactional_ids
from .control import Control, ask, control_options
from .lazy import CommandGroup
from .output import say
from .target import FAILED, Target, exit_with_error, run_or_end, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., object])
# What brokers do not report of a client, and where it is.
_UNREPORTED = (
    (
        "brokers do not report the requests and errors of a client, the topics to which it produces, "
        "and consumers without a group; of kbroker, these have them:"
    ),
    "the Activity page of the console: requests, errors and disconnects (`kbroker serve --http-port`)",
    (
        "the log, with the topics of each client: `kbroker config log-level kbroker.audit=DEBUG` with "
        "ACLs, kbroker.protocol=DEBUG without (for tests)"
    ),
)


def _sources(command: Command) -> Command:
    """Add the options of the cluster and of the control port."""
    return target_options(functools.partial(control_options, optional=True)(command))


def _explain(
    target: Target,
    control: Control | None,
    work: Callable[[ClusterClient], Awaitable[list[str]]],
    **what: object,
) -> None:
    """Print what the APIs of Kafka tell, after what the control port tells, with the history.

    With a history, an object that does not exist any more is no error, and no broker needs to
    respond.
    """
    from kbroker.client.errors import (
        ClientError,
        NoSuchGroup,
        NoSuchPartition,
        NoSuchTopic,
        NoSuchTransaction,
    )

    if control is not None:
        say(*ask(control, do="explain", **what)["text"].split("\n"))

    async def sentences(cluster: ClusterClient) -> list[str]:
        try:
            return await work(cluster)
        except (NoSuchGroup, NoSuchTopic, NoSuchPartition, NoSuchTransaction) as error:
            if control is None:
                raise
            return [str(error)]

    def end(error: BaseException) -> NoReturn:
        """Exit without an error if the control port has answered, but no broker."""
        if control is not None and isinstance(error, ClientError | OSError):
            raise SystemExit(0)
        exit_with_error(error, failed=FAILED, needed=(), user=target.principal)

    first, *others = run_or_end(target, sentences, end)
    if control is not None:
        say("")
    say(first, *(f"  {line}" for line in others))


@click.group(cls=CommandGroup)
def explain() -> None:
    """Explain the state of an object of any Kafka cluster.

    With --control after the type of the object, also show the history that a kbroker broker with
    --control-port keeps: kbroker explain group NAME --control ADDRESS --control-token-file FILE
    """


@explain.command()
@_sources
@click.argument("name", shell_complete=complete_groups)
def group(target: Target, control: Control | None, name: str) -> None:
    """Explain what the group NAME waits for, and which partitions nobody reads.

    If an open transaction blocks the group, `kbroker explain transaction` explains it.
    """
    from kbroker.client.explanations import explain_group

    _explain(target, control, lambda cluster: explain_group(cluster, name), group=name)


@explain.command()
@_sources
@click.argument("group", shell_complete=complete_groups)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("index", type=click.IntRange(0))
def share(target: Target, control: Control | None, group: str, topic: str, index: int) -> None:
    """Explain why members of share group GROUP get records of partition INDEX of TOPIC, or none."""
    from kbroker.client.explanations import explain_share

    def work(cluster: ClusterClient) -> Awaitable[list[str]]:
        return explain_share(cluster, group, topic, index)

    _explain(target, control, work, group=group, topic=topic, partition=index)


@explain.command()
@_sources
@click.argument("topic", shell_complete=complete_topics)
@click.argument("index", type=click.IntRange(0))
def partition(target: Target, control: Control | None, topic: str, index: int) -> None:
    """Explain whether partition INDEX of TOPIC is available, and if not, why."""
    from kbroker.client.explanations import explain_partition

    def work(cluster: ClusterClient) -> Awaitable[list[str]]:
        return explain_partition(cluster, topic, index)

    _explain(target, control, work, topic=topic, partition=index)


@explain.command()
@_sources
@click.argument("transactional_id", shell_complete=complete_transactional_ids)
def transaction(target: Target, control: Control | None, transactional_id: str) -> None:
    """Explain the state of the transaction of TRANSACTIONAL_ID."""
    from kbroker.client.explanations import explain_transaction
    from kbroker.client.transactions import ONGOING

    async def work(cluster: ClusterClient) -> list[str]:
        lines = await explain_transaction(cluster, transactional_id)
        if f" is {ONGOING}: " in lines[0]:
            lines.append(f"`kbroker cluster txn abort {shlex.quote(transactional_id)}` aborts it")
        return lines

    _explain(target, control, work, transactional_id=transactional_id)


@explain.command()
@_sources
@click.argument("client_id")
def client(target: Target, control: Control | None, client_id: str) -> None:
    """Show the groups in which clients with CLIENT_ID are members.

    With --control, also show the metrics that they have pushed (KIP-714). Brokers report no
    requests, errors and producers of a client; the output says where kbroker has them.
    """
    from kbroker.client.explanations import explain_client

    async def work(cluster: ClusterClient) -> list[str]:
        return [*await explain_client(cluster, client_id), *_UNREPORTED]

    _explain(target, control, work, client_id=client_id)
